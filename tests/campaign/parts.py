"""The parts of the campaign, in the order in which they run."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.campaign import checks, measures, sizes
from tests.campaign.found import Found, Where


@dataclass(frozen=True)
class Part:
    """One part: a function that says what it finds.

    Attributes:
        limit_s: it is ended after so many seconds.
        needs: a part that has to have passed before.
    """

    name: str
    title: str
    limit_s: float
    do: Callable[[Where, Found], None]
    needs: str = ""


_LIST = (
    Part("machine", "machine and links", 60, measures.machine),
    Part("tests", "tests/gpu", 360, checks.tests),
    Part("workloads", "workloads, planned with recomputation and reactive", 240, checks.workloads),
    Part("programs", "programs on several streams, written and random", 150, checks.programs),
    Part("collectives", "distributed training", 150, checks.collectives),
    Part("overhead", "microseconds that LMS takes the host", 210, measures.overhead),
    Part("calibration", "what operations reach", 150, measures.calibration),
    Part("validation", "predictions beside measurements", 180, measures.validation, needs="calibration"),
    *(
        Part(f"card-{model}", f"small cards: {model}", limit_s, lambda *given, m=model: sizes.small_cards(m, *given))
        for model, limit_s in (("resnet50", 180), ("unet3d", 180), ("deeplabv3plus", 180), ("gpt", 180))
    ),
    Part("largest", "the largest size that runs on a small card", 180, sizes.largest),
)
PARTS = {part.name: part for part in _LIST}
"""By name. Their limits are 40 minutes together."""
