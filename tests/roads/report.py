"""The tables, and which differences count."""

from collections import Counter
from collections.abc import Callable

from rich.table import Table

from tests.roads.exceptions import EXPECTED
from tests.roads.judge import Call, Case

Results = list[tuple[Case, list[Call]]]

_FINE = "equal", "raised", "excluded"
_COLUMNS = "callables", "calls", "raised on stock", "differences", "crashed", "expected", "excluded"


def failure(case: Case, call: Call) -> str:
    """Why ``call`` fails, if it does."""
    if call.verdict in _FINE or reason(case, call):
        return ""
    return f"{call.verdict}: {call.detail}"


def reason(case: Case, call: Call) -> str:
    """Why ``call`` may differ, if it may."""
    what = f"{case} called as ({call.pattern})"
    return next((known.reason for known in EXPECTED if known.covers(what, call.verdict, call.detail)), "")


def reasons(results: Results) -> list[str]:
    """Why calls were left out, or may differ, and how many."""
    counts = Counter(
        call.detail if call.verdict == "excluded" else reason(case, call)
        for case, calls in results
        for call in calls
        if call.verdict not in ("equal", "raised")
    )
    return [f"{number:,} calls: {text}" for text, number in counts.most_common() if text]


def tables(results: Results) -> list[Table]:
    """What was called, by family and by state; and where the differences are."""
    return [
        _figures("family of callables", results, lambda case: case.road.family),
        _figures("state of the tensor", results, lambda case: case.state.name),
        _matrix(results),
    ]


def _figures(what: str, results: Results, row_of: Callable[[Case], str]) -> Table:
    shown = Table(what, *_COLUMNS, title="LMS at limit=0, min_size=1 against stock PyTorch")
    for column in shown.columns[1:]:
        column.justify = "right"
    for row in [*dict.fromkeys(row_of(case) for case, _ in results), "all"]:
        its = [(case, calls) for case, calls in results if row in (row_of(case), "all")]
        counts = Counter(_kind(case, call) for case, calls in its for call in calls)
        roads = len({case.road for case, _ in its})
        figures = (roads, counts.total() - counts["excluded"], *(counts[kind] for kind in _COLUMNS[2:]))
        shown.add_row(row, *(f"{figure:,}" for figure in figures))
    return shown


def _kind(case: Case, call: Call) -> str:
    """The column in which a call counts."""
    if call.verdict == "excluded":
        return "excluded"
    if failure(case, call):
        return "crashed" if call.verdict == "crashed" else "differences"
    return {"raised": "raised on stock", "equal": "equal"}.get(call.verdict, "expected")


def _matrix(results: Results) -> Table:
    """Families and states in which there is a difference."""
    failed = Counter(
        (case.road.family, case.state.name) for case, calls in results for call in calls if failure(case, call)
    )
    families = list(
        dict.fromkeys(case.road.family for case, _ in results if case.road.family in {f for f, _ in failed})
    )
    shown = Table("differences and crashes", *families)
    for column in shown.columns[1:]:
        column.justify = "right"
    for state in dict.fromkeys(case.state.name for case, _ in results):
        if any(failed[family, state] for family in families):
            shown.add_row(state, *(str(failed[family, state] or "") for family in families))
    return shown
