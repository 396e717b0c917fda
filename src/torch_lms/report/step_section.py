"""The section of one step, and the one that sets several side by side."""

import importlib.util
from collections.abc import Iterator, Sequence
from functools import partial

from torch_lms.planner import floor_bytes
from torch_lms.report.contents import Step
from torch_lms.report.faster import MAX_OPS, Change, changes
from torch_lms.report.sections import Section, StepSection
from torch_lms.report.step_data import step_data
from torch_lms.report.step_figures import StepFigures, key_of
from torch_lms.report.tables import Bar, Cell, Table, Tensor, bars
from torch_lms.timeline import Lane, Life
from torch_lms.trace import Trace
from torch_lms.units import format_bytes, format_seconds

_LARGEST = 12
_WAITS = 10
_NOTHING_S = 1e-9
_MAX_FLOOR_OPS = 800
"""Of longer steps the floor is not told: its linear program takes minutes."""

_WHAT = {
    "run": "A step as it ran: the last one of the session.",
    "plan": "A step as it would run: simulated on a modelled machine.",
    "trace": "A step as it was recorded, laid out without moves: what it would hold with memory enough.",
}


def step_section(id: str, step: Step) -> StepSection:
    """The section of ``step``."""
    figures = StepFigures(step)
    about = step.file.about
    parts = [about.get("title") or step.name]
    if about.get("machine"):
        parts.append(about["machine"])
    if about.get("policy"):
        parts.append(about["policy"])
    title = ", ".join(parts)
    return StepSection(
        id,
        title,
        f"{_WHAT.get(about.get('what', ''), 'A timeline.')} File: {step.name}.",
        _figures(figures),
        list(_tables(figures)),
        step_data(id, title, figures),
    )


def _figures(figures: StepFigures) -> list[tuple[str, str]]:
    about = figures.step.file.about
    found = [("step", format_seconds(figures.end_s))]
    if about.get("limit_bytes") is not None:
        found.append(("limit", format_bytes(about["limit_bytes"])))
    if figures.lives:
        found.append(("demand without LMS", format_bytes(figures.demand_bytes)))
    if not figures.step.has_moves:
        return found
    waited_s = figures.named_s("stall")
    share = waited_s / figures.end_s if figures.end_s else 0.0
    found.append(("waited for copies", f"{format_seconds(waited_s)} ({share:.1%} of the step)"))
    found.append(("evicted", format_bytes(figures.moved_bytes(Lane.D2H))))
    found.append(("fetched", format_bytes(figures.moved_bytes(Lane.H2D))))
    found.append(("recomputed", format_bytes(figures.recomputed_bytes)))
    return found


def _tables(figures: StepFigures) -> Iterator[Table]:
    trace = figures.step.file.trace if figures.step.has_moves else None
    if figures.step.has_moves:
        yield _time(figures)
        if figures.waited_for:
            yield _waits(figures)
    if figures.lives:
        yield _largest(figures)
    limit = figures.step.file.about.get("limit_bytes")
    if figures.step.has_moves:
        yield _traffic(figures, trace, limit)
        yield _faster(figures, trace, limit)


def _time(figures: StepFigures) -> Table:
    ops_s = sum(op.end_s - op.start_s for op in figures.operations)
    compute_s = figures.busy_s(Lane.COMPUTE)
    values = {
        "operations": ops_s,
        "waits for copies": figures.named_s("stall"),
        "recomputation": figures.named_s("recompute"),
        "copies by the program's own cores": figures.named_s("copying"),
        "gaps: nothing runs": max(0.0, figures.end_s - compute_s),
        "the link out is busy": figures.busy_s(Lane.D2H),
        "the link in is busy": figures.busy_s(Lane.H2D),
        "the disk is busy": figures.busy_s(Lane.DISK),
        "plans are made": figures.busy_s(Lane.PLANNING),
        "the exchange between ranks": figures.busy_s(Lane.COLLECTIVE),
    }
    shown = {name: seconds for name, seconds in values.items() if seconds > _NOTHING_S or name == "operations"}
    whole_s = figures.end_s or 1.0
    cells: list[Cell] = [Bar(min(1.0, s / whole_s), format_seconds(s)) for s in shown.values()]
    rows = [
        [name, cell, f"{seconds / whole_s:.1%}"] for (name, seconds), cell in zip(shown.items(), cells, strict=True)
    ]
    return Table("Where the time goes", ["", "seconds", "of the step"], rows)


def _waits(figures: StepFigures) -> Table:
    rows = []
    for page, seconds, times, first_s in figures.waited_for[:_WAITS]:
        rows.append([_tensor(figures, page), format_seconds(seconds), str(times), format_seconds(first_s)])
    return Table(
        "What the program waited for",
        ["tensor", "waited", "times", "first at"],
        rows,
        note="Of each wait, the tensor whose copy ended it. Bookkeeping and freeing memory end with no copy.",
    )


def _tensor(figures: StepFigures, page: int) -> Cell:
    life = figures.life_of.get(page)
    if life is None:
        return "no copy ended it" if page < 0 else f"tensor {page}"
    return Tensor(str(page), _described(life))


def _described(life: Life) -> str:
    made_by = f"by {life.made_by}" if life.made_by else "from before the step"
    return f"{format_bytes(life.nbytes)} {made_by}"


def _largest(figures: StepFigures) -> Table:
    head = ["tensor", "made by", "born", "dead", "uses"]
    moves = ("evict", "fetch", "recompute") if figures.step.has_moves else ()
    rows: list[list[Cell]] = []
    for life in figures.largest(_LARGEST):
        times = figures.times_moved
        rows.append(
            [
                Tensor(str(life.page), f"{format_bytes(life.nbytes)} #{key_of(life)}"),
                life.made_by or "the step before",
                "before" if life.born_s is None else format_seconds(life.born_s),
                "lives on" if life.dead_s is None else format_seconds(life.dead_s),
                str(len(life.uses_s)),
                *(str(times.get((life.page, name), 0)) for name in moves),
            ]
        )
    named = {"evict": "evicted", "fetch": "fetched", "recompute": "recomputed"}
    return Table(
        "The largest tensors, and who made them",
        [*head, *(f"times {named[name]}" for name in moves)],
        rows,
        note="#operation.place says where a tensor is born: equal numbers are equal tensors, in each run of this step.",
    )


def _traffic(figures: StepFigures, trace: Trace | None, limit: int | None) -> Table:
    evicted = figures.moved_bytes(Lane.D2H)
    note = "The floor is the least that any schedule without recomputation evicts in such a step, by a linear program."
    floor = None
    if trace is None or limit is None:
        note = "The floor is not known: the file has no trace. Record it with `torch-lms run --timeline`."
    elif importlib.util.find_spec("scipy") is None:
        note = "The floor is not known: it needs scipy (pip install scipy)."
    elif len(trace.ops) > _MAX_FLOOR_OPS:
        note = f"The floor is not told of steps with more than {_MAX_FLOOR_OPS} operations: that takes minutes."
    else:
        floor = floor_bytes(trace, limit)
    names = ["evicted", "fetched", "recomputed instead", "floor of evictions"]
    values = [evicted, figures.moved_bytes(Lane.H2D), figures.recomputed_bytes, floor]
    cells = bars(values, ["-" if value is None else format_bytes(value) for value in values])
    rows: list[list[Cell]] = [[name, cell] for name, cell in zip(names, cells, strict=True)]
    if floor:
        rows.append(["evicted, times the floor", f"{evicted / floor:.2f}"])
    return Table("Traffic, against the least possible", ["", "bytes"], rows, note)


def _faster(figures: StepFigures, trace: Trace | None, limit: int | None) -> Table:
    caption, head = "What would make it faster", ["changed", "step", "against as it is", "waits", "moved", "recomputed"]
    link = figures.step.file.link
    if trace is None or limit is None or link is None:
        note = "Not simulated: the file has no trace or no speeds of links. Record it with `torch-lms run --timeline`."
        return Table(caption, head, [], note)
    if len(trace.ops) > MAX_OPS:
        note = f"Not simulated: the step has {len(trace.ops)} operations, and more than {MAX_OPS} take minutes."
        return Table(caption, head, [], note)
    found = list(changes(trace, limit, link, figures.step.file.tiers))
    return Table(
        caption,
        head,
        _changed(found),
        f"All simulated, with the operations' own {format_seconds(trace.seconds)} and this link; so compare the rows "
        f"with each other, not with what was measured.",
    )


def _changed(found: Sequence[Change]) -> list[list[Cell]]:
    as_it_is_s = found[0].step_s
    cells = bars([each.step_s for each in found], [format_seconds(each.step_s or 0.0) for each in found])
    rows: list[list[Cell]] = []
    for change, cell in zip(found, cells, strict=True):
        if change.step_s is None:
            rows.append([change.what, "does not fit", "-", "-", "-", "-"])
            continue
        less = "-" if as_it_is_s is None or change is found[0] else f"{change.step_s / as_it_is_s - 1:+.1%}"
        rows.append(
            [
                change.what,
                cell,
                less,
                format_seconds(change.wait_s),
                format_bytes(change.moved_bytes),
                format_bytes(change.recomputed_bytes),
            ]
        )
    return rows


def side_by_side(steps: Sequence[Step]) -> Section | None:
    """Several steps in one table; None for fewer than two that moved anything."""
    shown = [StepFigures(step) for step in steps if step.has_moves]
    if len(shown) < 2:
        return None
    fastest_s = min(figures.end_s for figures in shown) or 1.0
    times_s: list[float | None] = [figures.end_s for figures in shown]
    cells = bars(times_s, [format_seconds(figures.end_s) for figures in shown])
    rows: list[list[Cell]] = [
        ["step", *cells],
        ["times the fastest", *(f"{figures.end_s / fastest_s:.2f}" for figures in shown)],
    ]
    seconds = partial(_row_of_seconds, shown)
    rows += [
        seconds("waits for copies", [figures.named_s("stall") for figures in shown]),
        seconds("the link out is busy", [figures.busy_s(Lane.D2H) for figures in shown]),
        seconds("the link in is busy", [figures.busy_s(Lane.H2D) for figures in shown]),
        ["evicted", *(format_bytes(figures.moved_bytes(Lane.D2H)) for figures in shown)],
        ["fetched", *(format_bytes(figures.moved_bytes(Lane.H2D)) for figures in shown)],
        ["recomputed", *(format_bytes(figures.recomputed_bytes) for figures in shown)],
    ]
    head = ["", *_told_apart([figures.step for figures in shown])]
    note = "Below, their timelines have one scale and begin together. A tensor that is chosen in one lights up in all."
    return Section("side-by-side", "Side by side", tables=[Table("The steps beside each other", head, rows, note)])


def _told_apart(steps: Sequence[Step]) -> list[str]:
    """The machine of each; steps of one machine, or of unknown ones, by their title."""
    machines = [step.file.about.get("machine") for step in steps]
    if all(machines) and len(set(machines)) == len(machines):
        return [str(machine) for machine in machines]
    return [str(step.file.about.get("title") or step.name) for step in steps]


def _row_of_seconds(shown: Sequence[StepFigures], name: str, values: Sequence[float]) -> list[Cell]:
    return [
        name,
        *(
            f"{format_seconds(seconds)} ({seconds / (figures.end_s or 1.0):.0%})"
            for seconds, figures in zip(values, shown, strict=True)
        ),
    ]
