"""The learning rate, a function of the step alone: nothing of it has to be kept in a checkpoint."""

from collections.abc import Callable, Mapping

POWER = 0.9
"""Of the polynomial: arXiv 1706.05587, section 4; arXiv 1904.08128 likewise."""

Schedule = Callable[[float, int, int], float]


def poly(lr: float, step: int, steps: int) -> float:
    """``lr`` at first, 0 after the last of ``steps``."""
    return float(lr * (1 - step / steps) ** POWER)


def constant(lr: float, step: int, steps: int) -> float:
    return lr


SCHEDULES: Mapping[str, Schedule] = {"poly": poly, "constant": constant}
