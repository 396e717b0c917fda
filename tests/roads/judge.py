"""Compares the calls of a case with stock PyTorch's."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tests.roads.exceptions import NOT_CALLED
from tests.roads.roads import Road, all_roads
from tests.roads.runs import Seen, empty_mode, has_raised, outcome, paged, stock, takes
from tests.roads.states import STATES, State

_CONTEXT = 60
"""Characters before the first difference that are shown, and half of those after it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A road, and the state of the tensor on it."""

    road: Road
    state: State

    def __str__(self) -> str:
        return f"{self.road} ({self.state.name})"


@dataclass(slots=True)
class Call:
    """What became of one call.

    Attributes:
        pattern: its arguments.
        verdict: "equal", "raised" (on stock, and equally with LMS), "mode" (equals an empty dispatch mode only),
            "unrepeatable" (two stock calls differ), "differs", "crashed", or "excluded".
        detail: what differed first, or the reason.
    """

    pattern: str
    verdict: str
    detail: str = ""


def all_cases() -> list[Case]:
    """In a fixed order."""
    return [Case(road, state) for road in all_roads() for state in STATES.values()]


def judge(case: Case, tell: Callable[[str], None] = lambda doing: None) -> list[Call]:
    """Every kind of call of ``case`` that stock PyTorch takes, compared.

    Args:
        case: is judged.
        tell: hears what is about to be done: it may crash.
    """
    if reason := NOT_CALLED.get(str(case.road)):
        return [Call("", "excluded", reason)]
    tell("stock")
    typical = _typical(case.state.kind)
    patterns = _patterns(case.road, typical)
    if not patterns:  # it takes no tensor: its error is compared once
        patterns = case.road.groups[0][:1] if case.state is typical else ()
    return [_compared(case, pattern, tell) for pattern in (patterns[:1] if case.state.is_first_only else patterns)]


@cache
def _patterns(road: Road, state: State) -> tuple[str, ...]:
    """Of each group the first pattern that stock takes, if there is one."""
    found = (next((pattern for pattern in group if takes(road, pattern, state)), None) for group in road.groups)
    return tuple(pattern for pattern in found if pattern is not None)


def _typical(kind: str) -> State:
    """The state of that kind for which patterns are looked for: the first."""
    return next(state for state in STATES.values() if state.kind == kind)


def _compared(case: Case, pattern: str, tell: Callable[[str], None]) -> Call:
    road, state = case.road, case.state
    expected = outcome(road, pattern, state, stock)
    tell(f"LMS: {pattern}")
    seen = outcome(road, pattern, state, paged)
    if seen == expected:
        return Call(pattern, "raised" if has_raised(expected) else "equal")
    tell("stock")
    detail = _first_difference(expected, seen)
    if outcome(road, pattern, state, stock) != expected:
        return Call(pattern, "unrepeatable", detail)
    if outcome(road, pattern, state, empty_mode) == seen:
        return Call(pattern, "mode", detail)
    return Call(pattern, "differs", detail)


def _first_difference(expected: Seen, seen: Seen) -> str:
    for (what, stock_text), (other, lms_text) in zip(expected, seen, strict=False):
        if what != other or stock_text != lms_text:
            also = "" if what == other else f" ({other})"
            begin = _same(stock_text, lms_text)
            return f"{what}{also}: {_clip(stock_text, begin)} became {_clip(lms_text, begin)}"
    return f"{len(expected)} things to look at became {len(seen)}: {(expected + seen)[-1]}"


def _same(one: str, other: str) -> int:
    """How many of their first characters are the same."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _clip(text: str, begin: int) -> str:
    """The part of ``text`` around ``begin``."""
    first = max(0, begin - _CONTEXT)
    last = begin + 2 * _CONTEXT
    return f"{'...' if first else ''}{text[first:last]}{'...' if last < len(text) else ''}"
