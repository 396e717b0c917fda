"""A timeline as the page's script takes it: arrays of numbers, names by their place in a list."""

from collections.abc import Sequence
from typing import Any

from torch_lms.report.step_figures import NOT_OPERATIONS, StepFigures, key_of
from torch_lms.timeline import Life, Span

_MAX_OPS = 20_000
"""Operations that a report draws; where there are more, neighbours are drawn as one."""

_MAX_LIVES = 4_000
"""Pages whose life can be looked at: the largest, if there are more."""


class _Names:
    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        return self.places.setdefault(name, len(self.places))


def step_data(id: str, title: str, figures: StepFigures) -> dict[str, Any]:
    """The data of one timeline; moments are seconds."""
    names = _Names()
    lives = _kept(figures.lives)
    at_demand_s, demand = figures.demand
    levels = figures.step.file.timeline.levels
    ops = _merged(figures.operations)
    moves = [span for span in figures.spans if span.name in NOT_OPERATIONS]
    data: dict[str, Any] = {
        "id": id,
        "title": title,
        "end": _seconds(figures.end_s),
        "limit": figures.step.file.about.get("limit_bytes"),
        "ops": [[names[op.name], _seconds(op.start_s), _seconds(op.end_s)] for op in ops],
        "moves": [
            [span.lane.value, span.name, _seconds(span.start_s), _seconds(span.end_s), span.nbytes, span.page]
            for span in moves
        ],
        "levels": {
            "at": [_seconds(level.at_s) for level in levels],
            "device": [level.resident for level in levels],
            "host": [level.host for level in levels],
            "disk": [level.disk for level in levels],
        },
        "demand": {"at": [_seconds(moment) for moment in at_demand_s], "bytes": list(demand)},
        "lives": [_life(life, names) for life in lives],
    }
    data["names"] = list(names.places)
    return data


def _life(life: Life, names: _Names) -> list[Any]:
    born = None if life.born_s is None else _seconds(life.born_s)
    dead = None if life.dead_s is None else _seconds(life.dead_s)
    made_by = names[life.made_by or "the step before"]
    return [life.page, key_of(life), life.nbytes, made_by, born, dead, [_seconds(use_s) for use_s in life.uses_s]]


def _kept(lives: Sequence[Life]) -> Sequence[Life]:
    if len(lives) <= _MAX_LIVES:
        return lives
    return sorted(lives, key=lambda life: life.nbytes, reverse=True)[:_MAX_LIVES]


def _merged(ops: Sequence[Span]) -> Sequence[Span]:
    """``ops``; of too many, those that follow each other as one, so many that ``_MAX_OPS`` are left."""
    at_once = -(-len(ops) // _MAX_OPS)
    if at_once <= 1:
        return ops
    groups = [ops[first : first + at_once] for first in range(0, len(ops), at_once)]
    return [group[0]._replace(name=f"{len(group)} operations", end_s=group[-1].end_s) for group in groups]


def _seconds(seconds: float) -> float:
    return round(seconds, 7)
