"""What a recorder notes, and that it survives a file."""

from dataclasses import replace
from pathlib import Path

import pytest

from torch_lms.errors import UsageError
from torch_lms.trace import Living, Recorder, Trace, TracedOp, TracedPage, demand_curve, load, save


def two_steps() -> tuple[Trace, Trace]:
    """A weight (id 1), an activation, a gradient that lives until the next step clears it; the same twice."""
    traces, recorder, gradient = [], Recorder([Living(1, 100)]), None
    for step in range(2):
        first = 10 * (step + 1)
        recorder.begins("forward", [1], 50, now=step)
        recorder.created(Living(first, 50))
        if gradient is not None:
            recorder.died(gradient)
        recorder.begins("backward", [1, first], 100, now=step + 0.25)
        recorder.created(Living(first + 1, 100))
        recorder.begins("update", [1, first + 1], 0, now=step + 0.5)
        recorder.died(first)
        recorder.wrote([1])
        gradient = first + 1
        recorder.finish(now=step + 1)
        traces.append(recorder.trace())
        recorder = Recorder([Living(1, 100), Living(gradient, 100)], before=recorder)
    return traces[0], traces[1]


def test_the_structure_does_not_depend_on_sizes() -> None:
    first, second = two_steps()
    assert first.structure == second.structure
    assert first.sizes == second.sizes == (100, 50, 100)
    other = Recorder([Living(9, 30), Living(1, 100)])
    other.begins("forward", [1], 50, now=0.0)
    other.created(Living(2, 7))
    assert other.structure != first.structure
    other.begins("backward", [1, 2], 100, now=1.0)
    other.created(Living(3, 8))
    other.begins("update", [1, 3], 0, now=2.0)
    other.finish(now=3.0)
    assert other.structure == first.structure
    assert (other.sizes, other.trace().sizes) == ((100, 7, 8), (100, 7, 8))


def test_a_step_on_pages_of_other_sizes() -> None:
    """A cache that each step makes anew, and one element larger: the next step's is that of this."""
    recorder = Recorder([Living(1, 10), Living(2, 40)])
    recorder.begins("join", [2, 1], 49, now=0.0)
    recorder.created(Living(3, 44))
    recorder.died(2)
    recorder.finish(now=1.0)
    recorder = Recorder([Living(1, 10), Living(3, 44)], before=recorder)
    recorder.begins("join", [3, 1], 53, now=1.0)
    recorder.created(Living(4, 48))
    recorder.died(3)
    recorder.finish(now=2.0)
    assert [page.successor for page in recorder.trace().pages] == [0, -1, -1], "it has another size"
    trace = recorder.trace(sizes=(55, 10, 60))
    assert [(page.nbytes, page.successor) for page in trace.pages] == [(10, 0), (60, -1), (60, 1)]
    assert trace.recorded_nbytes == (10, 44, 48)
    (op,) = trace.ops
    assert op.new_bytes == 60 + 5
    assert op.seconds == (60 + 10 + 60) / (44 + 10 + 48), "it has so much more to do"
    assert [page.successor for page in recorder.trace(sizes=(25, 10, 60)).pages] == [0, -1, -1], "more than twice"


def test_what_followed_a_plan_is_known_better() -> None:
    first, _ = two_steps()
    times = (0.5, 0.125, 0.5)
    slower = replace(
        first,
        pages=tuple(page._replace(nbytes=2 * page.nbytes) for page in first.pages),
        ops=tuple(op._replace(seconds=s, new_bytes=107) for op, s in zip(first.ops, times, strict=True)),
    )
    found = first.refined_by(slower)
    assert [op.seconds for op in found.ops] == [0.25, 0.125, 0.5]
    assert [op.new_bytes for op in found.ops] == [50 + 7, 100, 107], "what exceeds the pages that they create"


def test_what_is_recorded() -> None:
    first, _ = two_steps()
    assert first.pages == (
        TracedPage(100, born=-1, dead=3, successor=0),
        TracedPage(50, born=0, dead=2),
        TracedPage(100, born=1, dead=3),
    )
    assert first.ops == (
        TracedOp("forward", (0,), (), (1,), 50, 0.25),
        TracedOp("backward", (0, 1), (), (2,), 100, 0.25),
        TracedOp("update", (0, 2), (0,), (), 0, 0.5),
    )
    assert first.uses == ((0, 1, 2), (0, 1), (1, 2))
    assert first.seconds == 1.0
    assert first.working_set_bytes == 250


def test_a_gradient_becomes_that_of_the_next_step() -> None:
    _, second = two_steps()
    assert [(page.born, page.dead, page.successor) for page in second.pages] == [
        (-1, 3, 0),
        (-1, 0, -1),
        (0, 2, -1),
        (1, 3, 1),
    ]


def test_demand_is_what_lives_at_once() -> None:
    first, second = two_steps()
    assert demand_curve(first).nbytes == (150, 250, 250)
    assert demand_curve(second).nbytes == (250, 250, 250)
    assert demand_curve(first).demand_bytes == 250
    assert demand_curve(Trace((), ())).demand_bytes == 0


def test_a_file_gives_back_the_same_trace(tmp_path: Path) -> None:
    _, trace = two_steps()
    save(trace, tmp_path / "step.jsonl")
    assert load(tmp_path / "step.jsonl") == trace


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("", "expected a trace"),
        ("no json", "expected a trace"),
        ('{"format": "another", "version": 1}', "of version 1; got"),
        ('{"format": "torch-lms trace", "version": 1, "pages": 2, "ops": 0}', "not whole: expected 2 pages"),
        (
            '{"format": "torch-lms trace", "version": 1, "pages": 0, "ops": 1}\n'
            '{"name": "x", "pages": [7], "writes": [], "creates": [], "new_bytes": 0, "seconds": 0}',
            "expected a trace",
        ),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "step.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=words):
        load(path)
