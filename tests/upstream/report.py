"""What is printed at the end."""

from collections import Counter
from collections.abc import Iterator

from rich.table import Table

from tests.upstream import exceptions
from tests.upstream.exceptions import Known
from tests.upstream.judging import ANY_MODE, EQUAL, NAMED, NOT_RUN, ONLY_LMS, RUN, UNREPEATABLE, Verdict


def table(verdicts: list[Verdict], title: str) -> Table:
    """A row for each file and setting, and for each setting over all files."""
    columns = ("run", "moved", "planned", "evictions", "recomputed", "compared")
    shown = Table("file", "setting", *columns, ANY_MODE, UNREPEATABLE, "named", ONLY_LMS, title=title)
    for column in shown.columns[2:]:
        column.justify = "right"
    settings = dict.fromkeys(verdict.setting for verdict in verdicts)
    files = list(dict.fromkeys(verdict.file for verdict in verdicts))
    for file in [*files, *(["all"] if len(files) > 1 else [])]:
        for setting in settings:
            its = [v for v in verdicts if file in (v.file, "all") and v.setting == setting and v.state in RUN]
            shown.add_row(file, setting, *(f"{figure:,}" for figure in _figures(its)))
        shown.add_section()
    return shown


def _figures(ran: list[Verdict]) -> Iterator[int]:
    states = Counter(verdict.state for verdict in ran)
    yield len(ran)
    yield sum(bool(verdict.evictions or verdict.fetches) for verdict in ran)
    yield sum(bool(verdict.planned_steps) for verdict in ran)
    yield sum(verdict.evictions for verdict in ran)
    yield sum(verdict.recomputes for verdict in ran)
    yield sum(verdict.compared for verdict in ran)
    yield from (states[state] for state in (ANY_MODE, UNREPEATABLE, NAMED, ONLY_LMS))


def not_counted(verdicts: list[Verdict]) -> Iterator[str]:
    """A line for each file with runs that say nothing."""
    for file in dict.fromkeys(verdict.file for verdict in verdicts):
        states = Counter(verdict.state for verdict in verdicts if verdict.file == file)
        others = [f"{count} {state}" for state, count in sorted(states.items()) if state not in RUN]
        if others:
            yield f"{file}, tests times settings: {', '.join(others)}"


def failures(verdicts: list[Verdict]) -> list[str]:
    """A line for each test that fails under LMS only, with the settings where it does so alike."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for verdict in verdicts:
        if verdict.state == ONLY_LMS:
            alike.setdefault((verdict.file, verdict.test, verdict.detail), []).append(verdict.setting)
    return [f"{file} {test} [{', '.join(its)}]: {detail}" for (file, test, detail), its in sorted(alike.items())]


def name_known(verdict: Verdict) -> None:
    """Mark a failure that is among the exceptions."""
    if verdict.state == ONLY_LMS and _known(verdict) is not None:
        verdict.state = NAMED


def named(verdicts: list[Verdict]) -> list[str]:
    """A line for each exception that was needed, and for each that was not: its tests ran, and all passed."""
    states: dict[Known, set[str]] = {}
    for verdict in verdicts:
        if (known := _known(verdict)) is not None:
            states.setdefault(known, set()).add(verdict.state if known.is_run else NAMED)
    needed = [f"named exception: {known}" for known, seen in states.items() if NAMED in seen]
    needless = [known for known, seen in states.items() if EQUAL in seen and not seen & {NAMED, NOT_RUN}]
    return [*needed, *(f"no longer needed: {known}" for known in needless)]


def _known(verdict: Verdict) -> Known | None:
    return exceptions.known(verdict.file, verdict.test, verdict.setting)
