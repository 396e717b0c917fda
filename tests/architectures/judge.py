"""One network, trained in stock PyTorch and with LMS."""

import random
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

import torch_lms
from tests.architectures.networks import Network, built, loss_of
from tests.bits import same_bits
from tests.shares import trained

SHARES = (0.5, 0.2)
"""Of the demand: limits."""

_MIN_SIZE = 1024
_STEPS = 4


@dataclass
class Verdict:
    """On one network.

    Attributes:
        state: "equal"; "differs", from stock PyTorch's training; "raised", with LMS alone; "unrepeatable", in stock
            PyTorch; "left out", as it cannot be made; or "crashed".
        detail: where, or why.
        demand_bytes: of the training.
        peaks: by share of the demand that the limit is, the most bytes of pages on the device, in limits.
    """

    state: str
    detail: str = ""
    demand_bytes: int = 0
    peaks: dict[str, float] = field(default_factory=dict)


def judge(name: str) -> Verdict:
    """Of the network of this name."""
    try:
        network = built(name)
        expected = _trained(network)
    except Exception as error:  # also where its library cannot load it
        return Verdict("left out", f"{type(error).__name__}: {error}")
    if not same_bits(_trained(network), expected):
        return Verdict("unrepeatable")
    verdict = Verdict("equal")
    for share in (None, *SHARES):
        limit = 1 << 40 if share is None else int(share * verdict.demand_bytes)
        where = "where all fits" if share is None else f"at {share:g} of its demand"
        try:
            with torch_lms.session(limit=limit, min_size=_MIN_SIZE, device="cpu") as lms:
                found = _trained(network)
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


def _trained(network: Network) -> list[Tensor]:
    """Losses, weights and buffers."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    model = network.make().train()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-4)
    return [*trained(model, optimizer, lambda: loss_of(network.result(model)), _STEPS), *model.buffers()]
