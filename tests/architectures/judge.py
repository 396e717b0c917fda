"""One network, used in stock PyTorch and with LMS."""

from dataclasses import dataclass, field

import torch_lms
from tests.architectures.networks import built
from tests.architectures.ways import WAYS
from tests.bits import same_bits

SHARES = (0.5, 0.2)
"""Of the demand: limits."""

_MIN_SIZE = 1024


@dataclass
class Verdict:
    """On one network.

    Attributes:
        state: "equal"; "differs", from stock PyTorch's results; "raised", with LMS alone; "unrepeatable", in stock
            PyTorch; "left out", as it cannot be made, or used in that way; or "crashed".
        detail: where, or why.
        demand_bytes: where all fits.
        peaks: by share of the demand that the limit is, the most bytes of pages on the device, in limits.
    """

    state: str
    detail: str = ""
    demand_bytes: int = 0
    peaks: dict[str, float] = field(default_factory=dict)


def judge(name: str, way: str = "train") -> Verdict:
    """Of the network of this name, used in that one of ``WAYS``."""
    use = WAYS[way]
    try:
        network = built(name)
        expected = use(network)
    except Exception as error:  # also where its library cannot load it
        return Verdict("left out", f"{type(error).__name__}: {error}")
    if not same_bits(use(network), expected):
        return Verdict("unrepeatable")
    verdict = Verdict("equal")
    for share in (None, *SHARES):
        limit = 1 << 40 if share is None else int(share * verdict.demand_bytes)
        where = "where all fits" if share is None else f"at {share:g} of its demand"
        try:
            with torch_lms.session(limit=limit, min_size=_MIN_SIZE, device="cpu") as lms:
                found = use(network)
                lms.validate()
                stats = lms.stats()
        except Exception as error:
            return Verdict("raised", f"{where}: {type(error).__name__}: {error}")
        if not same_bits(found, expected):
            return Verdict("differs", where)
        if share is None:
            verdict.demand_bytes = stats.demand_bytes
        else:
            verdict.peaks[f"{share:g}"] = stats.peak_resident_bytes / limit
    return verdict
