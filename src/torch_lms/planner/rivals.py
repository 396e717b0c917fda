"""What others do, as plans: to be simulated beside ours. Facts: the papers and documents of TensorFlow LMS, PyTorch's.

``demand``, IBM's LMS for PyTorch 1.1, has no plan: see ``FirstIn``.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch_lms.planner.gaps import Gap, gaps_of
from torch_lms.planner.room import Room
from torch_lms.policy import Plan, Policy, View
from torch_lms.residency import Page
from torch_lms.trace import Trace

_MEMORY_RATIO = 0.9
"""Of the device's memory, what TFLMS 2 counts on by default."""

_MOST_AHEAD = 10


class FirstIn(Policy):
    """PyTorch LMS 1.1: whoever has been inactive longest leaves, when memory is asked for and not before."""

    @property
    def name(self) -> str:
        return "demand"

    def victims(self, view: View) -> Iterator[Page]:
        yield from sorted((*view.clean.values(), *view.dirty.values()), key=lambda page: page.last_use)


@dataclass(frozen=True)
class Rival:
    """How others go about it.

    Attributes:
        plan: for a step under a limit; None if they have none.
        is_blocking: whoever copies waits for it.
        keeps_copies: what came back and was not changed may leave without a copy.
        grows: the limit is whatever the operations so far have needed: memory is taken only if nothing can leave.
    """

    plan: Callable[[Trace, int], Plan] | None
    is_blocking: bool = False
    keeps_copies: bool = False
    grows: bool = False


def swap_all(trace: Trace, limit: int) -> Plan:
    """TFLMS 1 with n_tensors=-1 and lb=1: every tensor that the backward pass needs leaves, and comes back one
    operation before it is needed. Weights stay.
    """
    return _plan(trace, limit, _saved(trace), ahead=1)


def tflms2(trace: Trace, limit: int) -> Plan:
    """TFLMS 2: tensors leave that are not needed for more operations than a threshold, the largest that fits; they come
    back as many operations early as fits, ten at most. Weights stay.
    """
    gaps = [gap for gap in gaps_of(trace) if trace.pages[gap.page].born >= 0 and gap.before > gap.after >= 0]
    budget = int(limit * _MEMORY_RATIO)
    low, high = 0, len(trace.ops)
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(trace, budget, _longer_than(gaps, middle), ahead=1):
            low = middle
        else:
            high = middle - 1
    chosen = _longer_than(gaps, low)
    ahead = next((n for n in range(_MOST_AHEAD, 1, -1) if _fits(trace, budget, chosen, n)), 1)
    return _plan(trace, limit, chosen, ahead)


def save_on_cpu(trace: Trace, limit: int) -> Plan:
    """``torch.autograd.graph.save_on_cpu``: every tensor that is saved for backward is copied at once, and waited for;
    and so again when it is needed.
    """
    return _plan(trace, limit, _saved(trace), ahead=0)


RIVALS = {
    "demand": Rival(plan=None, is_blocking=True, grows=True),
    "swap-all": Rival(swap_all),
    "tflms2": Rival(tflms2),
    "save_on_cpu": Rival(save_on_cpu, is_blocking=True),
}


def _saved(trace: Trace) -> list[Gap]:
    """From the last use in the forward pass to the first in the backward pass."""
    turn = next((number for number, op in enumerate(trace.ops) if "backward" in op.name), len(trace.ops))
    return [gap for gap in gaps_of(trace) if trace.pages[gap.page].born >= 0 and gap.after < turn <= gap.before]


def _longer_than(gaps: Iterable[Gap], threshold: int) -> list[Gap]:
    return [gap for gap in gaps if gap.before - gap.after > threshold]


def _fits(trace: Trace, limit: int, chosen: Iterable[Gap], ahead: int) -> bool:
    room = Room(trace, limit)
    for gap in chosen:
        room.take(gap)
        if ahead > 1 and gap.before - ahead < gap.spans[-1][1]:
            room.fill((max(gap.spans[-1][0], gap.before - ahead), gap.spans[-1][1]), gap.nbytes)
    return room.worst is None


def _plan(trace: Trace, limit: int, chosen: Iterable[Gap], ahead: int) -> Plan:
    leaves: list[list[int]] = [[] for _ in trace.ops]
    comes: list[list[int]] = [[] for _ in trace.ops]
    for gap in sorted(chosen, key=lambda gap: gap.before):
        leaves[gap.after].append(gap.page)
        if ahead and gap.before - ahead > gap.after:
            comes[gap.before - ahead].append(gap.page)
    return Plan(trace, limit, tuple(map(tuple, leaves)), tuple(map(tuple, comes)), frozenset(), {})
