"""Plans by the rules of IBM's LMS for TensorFlow (TFLMS), of version 2 and of version 1.

Facts are from its papers and documents; docs/tflms.md says what differs. TFLMS rewrote a graph, and counted topological
levels of it. A recorded step is a sequence: here distances are in operations. As there, weights and the optimizer's
state stay, and where the step fits nothing moves.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from torch_lms.engine import Speeds
from torch_lms.planner.autotuned import chosen_before, remember
from torch_lms.planner.gaps import Gap, gaps_of, written
from torch_lms.planner.headroom import Headroom
from torch_lms.planner.tunables import Tunables
from torch_lms.policy import Plan
from torch_lms.residency import PageId
from torch_lms.trace import Trace, demand_curve

_MEMORY_RATIO = 0.9
"""Share of the room beside the weights that TFLMS 2 counted on by default."""

_MAX_AHEAD = 10
"""Operations by which fetches start early, at most, where that is chosen: as far TFLMS 2 searched."""

_WAIT_FOR_COPIES_OUT = (1, 3)
_WAIT_FOR_COPIES_IN = (2, 3)
"""Values of ``sync_mode``."""


class Chosen(NamedTuple):
    """The tunables of version 2, none left open (see ``Tunables``)."""

    swapout_threshold: int
    swapin_ahead: int
    swapin_groupby: int
    sync_mode: int

    @property
    def ahead(self) -> int:
        """Operations before a use at which the fetch starts; 0: it starts when it is needed."""
        return 0 if self.sync_mode in _WAIT_FOR_COPIES_IN else self.swapin_ahead


def make_tflms_plan(trace: Trace, limit: int, ids: Mapping[PageId, int], _: Speeds, *, tunables: Tunables) -> Plan:
    """A plan for steps like ``trace`` under ``limit`` (see ``engine.MakePlan``). The link's speed does not count."""
    known = {page: number for page, number in ids.items() if trace.pages[number].successor == number}
    if demand_curve(trace).demand_bytes <= limit:
        return plan_of(trace, limit, (), ahead=0, known=known)
    if tunables.n_tensors is not None:
        saved = sorted(saved_gaps(trace), key=lambda gap: gap.after)
        first = saved if tunables.n_tensors < 0 else saved[: tunables.n_tensors]
        return plan_of(trace, limit, first, ahead=tunables.lb or 1, known=known)
    chosen = _choose(trace, limit, tunables)
    plan = plan_of(trace, limit, _opened(_edges(trace), chosen), chosen.ahead, known)
    return replace(plan, waits_for_evictions=chosen.sync_mode in _WAIT_FOR_COPIES_OUT)


def saved_gaps(trace: Trace) -> list[Gap]:
    """The gaps from a tensor's last use in the forward pass to its first in the backward pass."""
    turn = next((number for number, op in enumerate(trace.ops) if "backward" in op.name), len(trace.ops))
    return [gap for gap in gaps_of(trace) if trace.pages[gap.page].born >= 0 and gap.after < turn <= gap.before]


def plan_of(trace: Trace, limit: int, opened: Iterable[Gap], ahead: int, known: Mapping[PageId, int]) -> Plan:
    """The plan with pages away in the gaps ``opened``, and fetched ``ahead`` operations early where the gap is longer.
    With 0, and in shorter gaps, they are fetched when they are needed.
    """
    evicted: list[list[int]] = [[] for _ in trace.ops]
    fetched: list[list[int]] = [[] for _ in trace.ops]
    for gap in sorted(opened, key=lambda gap: gap.before):
        evicted[gap.after].append(gap.page)
        if _is_fetched_early(gap, ahead):
            fetched[gap.before - ahead].append(gap.page)
    return Plan(
        trace,
        limit,
        evicts=tuple(tuple(pages) for pages in evicted),
        fetches=tuple(tuple(pages) for pages in fetched),
        away=frozenset(),
        known=known,
    )


def _is_fetched_early(gap: Gap, ahead: int) -> bool:
    return 0 < ahead < gap.before - gap.after - 1


# -- version 2 -------------------------------------------------------------------------------------------------------


class _Edge(NamedTuple):
    """A gap, and how far from where its tensor was written it begins, and ends."""

    gap: Gap
    from_write: int
    to_use: int


def _edges(trace: Trace) -> list[_Edge]:
    """The gaps within the step, of the tensors that it makes."""
    made_here = (gap for gap in gaps_of(trace) if trace.pages[gap.page].born >= 0)
    within = (gap for gap in made_here if gap.before > gap.after >= 0 and not gap.wraps)
    return [_Edge(gap, gap.after - made, gap.before - made) for gap in within for made in [written(trace, gap)]]


def _opened(edges: Iterable[_Edge], by: Chosen) -> Iterator[Gap]:
    """The gaps in which pages are away. A page is brought back for each use farther than the threshold; those that are
    close together share one fetch.
    """
    for gap, from_write, to_use in edges:
        is_back = from_write > by.swapout_threshold
        if to_use > by.swapout_threshold and not (is_back and gap.before - gap.after <= by.swapin_groupby):
            yield gap


def _choose(trace: Trace, limit: int, given: Tunables) -> Chosen:
    """Choose what is not given, as TFLMS 2 did: what moves least, then what waits least, while the step fits."""
    fixed = {name: value for name in Chosen._fields if (value := getattr(given, name)) is not None}
    if given.autotune_plan is not None:
        found = chosen_before(given.autotune_plan, trace, limit, fixed)
        if found is not None:
            return Chosen(**found)
    chosen = _search(trace, limit, fixed)
    if given.autotune_plan is not None:
        remember(given.autotune_plan, trace, limit, fixed, chosen._asdict())
    return chosen


def _search(trace: Trace, limit: int, fixed: Mapping[str, int]) -> Chosen:
    edges = _edges(trace)
    kept = sum(page.nbytes for number, page in enumerate(trace.pages) if page.born < 0 and page.successor == number)
    room = Headroom(trace, kept + int(_MEMORY_RATIO * (limit - kept)) if kept < limit else limit)

    def fits(by: Chosen) -> bool:
        return _fits(room.copy(), edges, by)

    def with_largest(by: Chosen, name: str, high: int) -> Chosen:
        """``by`` with the largest value of ``name`` with which the step fits, unless it is given."""
        if name in fixed:
            return by
        value = _largest(getattr(by, name), high, lambda value: fits(by._replace(**{name: value})))
        return by._replace(**{name: value})

    chosen = Chosen(**{"swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 0, "sync_mode": 0, **fixed})
    if not {"swapout_threshold", "sync_mode"} & fixed.keys():
        modes = [chosen._replace(sync_mode=mode) for mode in range(4)]
        chosen = next((by for by in modes if fits(by)), modes[-1])
    chosen = with_largest(chosen, "swapout_threshold", len(trace.ops))
    chosen = with_largest(chosen, "swapin_ahead", _MAX_AHEAD)
    return with_largest(chosen, "swapin_groupby", len(trace.ops))


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest that fits, if whatever is less fits, too; ``low`` if nothing does."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _fits(room: Headroom, edges: Iterable[_Edge], by: Chosen) -> bool:
    """Whether the step fits, if a copy that nobody waits for takes as long as one operation: so TFLMS 2 had it."""
    for gap in _opened(edges, by):
        room.take(gap)
        if by.sync_mode not in _WAIT_FOR_COPIES_OUT:
            room.fill((gap.after + 1, gap.after + 1), gap.nbytes)
        if _is_fetched_early(gap, by.ahead):
            room.fill((gap.before - by.ahead, gap.before - 1), gap.nbytes)
    return room.worst is None
