"""The report: one HTML file that needs no network."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from torch_lms.output import to_plain
from torch_lms.report.bench_section import bench_section
from torch_lms.report.contents import Bench, Contents, Demo, Picture, Plans, Result, Step, Training
from torch_lms.report.results_section import demo_section, pictures_section, plans_section, result_section
from torch_lms.report.sections import PictureSection, Section, StepSection
from torch_lms.report.step_section import side_by_side, step_section
from torch_lms.report.tables import Bar, Tensor
from torch_lms.report.training_section import training_section

_ASSETS = Path(__file__).with_name("assets")
_SCRIPTS = ("uPlot.iife.min.js", "drawing.js", "lines.js", "steps.js", "lanes.js", "view.js", "main.js")
_STYLES = ("uPlot.min.css", "report.css")

_Kind = TypeVar("_Kind")


@dataclass
class _Parts:
    """What the template shows, in its order."""

    title: str
    made_by: str
    complaints: Sequence[str]
    demos: Sequence[Section]
    side_by_side: Section | None
    steps: Sequence[StepSection]
    sections: Sequence[Section]
    pictures: PictureSection

    @property
    def styles(self) -> Markup:
        """Of the whole page."""
        return Markup(_text(_STYLES))

    @property
    def scripts(self) -> Markup:
        """They draw ``data``."""
        return Markup(_text(_SCRIPTS))

    @property
    def data(self) -> Markup:
        """What the scripts draw, as JSON. Within a script, nothing that it holds may begin or end a tag."""
        charts = [chart.plain for section in [*self.demos, *self.sections] for chart in section.charts]
        data = {"steps": [step.data for step in self.steps], "charts": charts}
        text = json.dumps(to_plain(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return Markup(text.replace("<", "\\u003c"))


def page(contents: Contents, title: str, made_by: str) -> str:
    """The HTML of a report on ``contents``. ``made_by`` says what wrote it, and when."""
    steps = _of(contents, Step)
    trainings = _of(contents, Training)
    pictures, left_out = pictures_section(_of(contents, Picture))
    sections = [bench_section(f"bench-{n}", each) for n, each in enumerate(_of(contents, Bench), 1)]
    if trainings:
        sections.append(training_section("training", trainings))
    sections += [plans_section(f"plans-{n}", each) for n, each in enumerate(_of(contents, Plans), 1)]
    sections += [result_section(f"result-{n}", each) for n, each in enumerate(_of(contents, Result), 1)]
    parts = _Parts(
        title,
        made_by,
        [*contents.complaints, *left_out],
        [demo_section(f"demo-{n}", each) for n, each in enumerate(_of(contents, Demo), 1)],
        side_by_side(steps),
        [step_section(f"step-{n}", each) for n, each in enumerate(steps, 1)],
        sections,
        pictures,
    )
    return _environment().get_template("report.html").render(parts=parts)


def _of(contents: Contents, kind: type[_Kind]) -> list[_Kind]:
    return [content for content in contents.found if isinstance(content, kind)]


@cache
def _text(names: tuple[str, ...]) -> str:
    return "\n".join((_ASSETS / name).read_text(encoding="utf-8") for name in names)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["tensor"] = lambda cell: isinstance(cell, Tensor)
    environment.tests["bar"] = lambda cell: isinstance(cell, Bar)
    return environment
