"""What others do, as plans: to be simulated beside ours.

Facts are from the papers and documents of TensorFlow LMS and of PyTorch.

``demand``, IBM's LMS for PyTorch 1.1, has no plan: see ``FirstIn``.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch_lms.planner.gaps import Gap, gaps_of
from torch_lms.planner.headroom import Headroom
from torch_lms.policy import Plan, Policy, View
from torch_lms.residency import Page
from torch_lms.trace import Trace

_MEMORY_RATIO = 0.9
"""Share of the device's memory that TFLMS 2 counts on by default."""

_MAX_AHEAD = 10
"""Operations by which TFLMS 2 fetches early, at most."""


class FirstIn(Policy):
    """PyTorch LMS 1.1: when memory is asked for, and not before, the page goes that has been inactive longest."""

    @property
    def name(self) -> str:
        return "demand"

    def victims(self, view: View) -> Iterator[Page]:
        yield from sorted((*view.clean.values(), *view.dirty.values()), key=lambda page: page.last_use)


@dataclass(frozen=True)
class Rival:
    """A way in which others move tensors.

    Attributes:
        plan: makes a plan for a step under a limit; None if they have none.
        is_blocking: whether whoever starts a copy waits for it.
        keeps_copies: whether a page that was fetched and not changed may be evicted without a copy.
        grows: whether the limit is whatever the operations so far have needed: memory is taken only if nothing can
            leave.
    """

    plan: Callable[[Trace, int], Plan] | None
    is_blocking: bool = False
    keeps_copies: bool = False
    grows: bool = False


def swap_all(trace: Trace, limit: int) -> Plan:
    """TFLMS 1 with n_tensors=-1 and lb=1: every tensor that the backward pass needs is evicted, and fetched one
    operation before it is needed. Weights stay.
    """
    return _plan(trace, limit, _saved(trace), ahead=1)


def tflms2(trace: Trace, limit: int) -> Plan:
    """TFLMS 2: tensors are evicted that are not needed for more operations than a threshold, the largest that fits.
    They are fetched as many operations early as fits, ten at most. Weights stay.
    """
    gaps = [gap for gap in gaps_of(trace) if trace.pages[gap.page].born >= 0 and gap.before > gap.after >= 0]
    budget = int(limit * _MEMORY_RATIO)
    low = 0
    high = len(trace.ops)
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(trace, budget, _longer_than(gaps, middle), ahead=1):
            low = middle
        else:
            high = middle - 1
    chosen = _longer_than(gaps, low)
    ahead = _MAX_AHEAD
    while ahead > 1 and not _fits(trace, budget, chosen, ahead):
        ahead -= 1
    return _plan(trace, limit, chosen, ahead)


def save_on_cpu(trace: Trace, limit: int) -> Plan:
    """``torch.autograd.graph.save_on_cpu``: every tensor that is saved for backward is copied at once, and copied back
    when it is needed. The program waits for both.
    """
    return _plan(trace, limit, _saved(trace), ahead=0)


RIVALS = {
    "demand": Rival(plan=None, is_blocking=True, grows=True),
    "swap-all": Rival(swap_all),
    "tflms2": Rival(tflms2),
    "save_on_cpu": Rival(save_on_cpu, is_blocking=True),
}


def _saved(trace: Trace) -> list[Gap]:
    """The gaps from a tensor's last use in the forward pass to its first in the backward pass."""
    turn = next((number for number, op in enumerate(trace.ops) if "backward" in op.name), len(trace.ops))
    return [gap for gap in gaps_of(trace) if trace.pages[gap.page].born >= 0 and gap.after < turn <= gap.before]


def _longer_than(gaps: Iterable[Gap], threshold: int) -> list[Gap]:
    return [gap for gap in gaps if gap.before - gap.after > threshold]


def _fits(trace: Trace, limit: int, chosen: Iterable[Gap], ahead: int) -> bool:
    """Whether ``limit`` holds if ``chosen`` are evicted, and fetched ``ahead`` operations early."""
    room = Headroom(trace, limit)
    for gap in chosen:
        room.take(gap)
        first, last = gap.spans[-1]
        if ahead > 1 and gap.before - ahead < last:
            room.fill((max(first, gap.before - ahead), last), gap.nbytes)
    return room.worst is None


def _plan(trace: Trace, limit: int, chosen: Iterable[Gap], ahead: int) -> Plan:
    evicted: list[list[int]] = [[] for _ in trace.ops]
    fetched: list[list[int]] = [[] for _ in trace.ops]
    for gap in sorted(chosen, key=lambda gap: gap.before):
        evicted[gap.after].append(gap.page)
        if ahead and gap.before - ahead > gap.after:
            fetched[gap.before - ahead].append(gap.page)
    return Plan(
        trace,
        limit,
        evicts=tuple(tuple(pages) for pages in evicted),
        fetches=tuple(tuple(pages) for pages in fetched),
        away=frozenset(),
        known={},
    )
