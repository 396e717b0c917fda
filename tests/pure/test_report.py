"""Reports: what is read of which file, what is said of bad ones, and what the page has in figures."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from made_traces import Op, traced
from report_files import BENCH_HEADER, LIMIT, TRIALS, a_step, timeline, trial, write_all

from torch_lms.cli import report as cli
from torch_lms.report.bench_section import bench_section
from torch_lms.report.contents import Bench, Contents, Picture, Step, Training
from torch_lms.report.faster import changes, with_half_the_batch
from torch_lms.report.fused import with_fused_optimizer
from torch_lms.report.page import page
from torch_lms.report.read import read_all
from torch_lms.report.step_figures import StepFigures
from torch_lms.report.step_section import side_by_side
from torch_lms.report.timeline_file import read_timeline
from torch_lms.residency import Tier
from torch_lms.sim import LinkSpeeds
from torch_lms.timeline import Lane
from torch_lms.trace import Trace, TracedOp, TracedPage, save


def read(folder: Path, **files: str | bytes) -> Contents:
    """What is read of files with such contents; ``a_b`` is the file a.b."""
    paths = []
    for name, content in files.items():
        path = folder / name.replace("_", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        paths.append(path)
    return read_all(paths)


def jsonl(*lines: Any) -> str:
    return "".join(f"{json.dumps(line)}\n" for line in lines)


# -- files -----------------------------------------------------------------------------------------------------------


def test_every_kind_of_file_is_known(tmp_path: Path) -> None:
    contents = read_all(write_all(tmp_path))
    kinds = sorted(type(content).__name__ for content in contents.found)
    assert kinds == ["Bench", "Picture", "Plans", "Result", "Step", "Step", "Step", "Step", "Training"]
    assert contents.complaints == []


def test_a_folder_gives_its_log_and_its_pictures(tmp_path: Path) -> None:
    write_all(tmp_path)
    kinds = {type(content) for content in read_all([tmp_path]).found}
    assert kinds == {Training, Picture}
    (tmp_path / "empty").mkdir()
    assert "found none" in read_all([tmp_path / "empty"]).complaints[0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a_json", "", "it is empty"),
        ("a_json", "[1, 2]", "got a list of something else"),
        ("a_json", '{"hello": 1}', "got an object with hello"),
        ("a_txt", "hello\nworld", "got text that is no JSON"),
        ("a_bin", b"\xff\xfe\x00", "something that is no text"),
        ("a_jsonl", jsonl({**BENCH_HEADER, "version": 7}), "of version 1; got version 7"),
        ("a_jsonl", jsonl({"format": "other program"}), "got a 'other program'"),
        ("a_jsonl", jsonl({"step": 1}, {"x": 1})[:10], "no JSON"),
        ("a_json", json.dumps({"traceEvents": [], "otherData": {"format": "perf"}}), "of another program"),
        ("a_json", json.dumps(timeline(version=9)), "of version 1; got version 9"),
        ("a_json", json.dumps({"traceEvents": [{"ph": "X"}]}), "not as torch-lms writes it"),
        ("a_json", '{"traceEvents": [{"ph": "X", "na', "no JSON"),
    ],
)
def test_what_is_none_of_ours_is_said_in_a_sentence(tmp_path: Path, name: str, content: str, said: str) -> None:
    contents = read(tmp_path, **{name: content})
    assert contents.found == []
    assert contents.has_unread
    (complaint,) = contents.complaints
    assert said in complaint
    assert "\n" not in complaint


def test_a_file_that_is_missing_is_said(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in read_all([tmp_path / "missing.json"]).complaints[0]


def test_of_lines_that_were_cut_short_the_others_are_kept(tmp_path: Path) -> None:
    text = jsonl(BENCH_HEADER, *TRIALS)
    contents = read(tmp_path, bench_jsonl=text[:-20])
    (bench,) = contents.found
    assert isinstance(bench, Bench)
    assert len(bench.trials) == len(TRIALS) - 1
    assert "line 9 was cut short" in contents.complaints[0]
    assert not contents.has_unread
    broken = text.replace('{"way": "none", "point": {"size": 192}', "{oops", 1)
    assert "line 3 is no JSON object" in read(tmp_path, bench_jsonl=broken).complaints[0]


def test_a_trace_that_is_not_whole_is_said(tmp_path: Path) -> None:
    save(a_step(), tmp_path / "whole.jsonl")
    lines = (tmp_path / "whole.jsonl").read_text().splitlines()
    assert "is not whole" in read(tmp_path, t_jsonl="\n".join(lines[:-3])).complaints[0]


def test_a_timeline_survives_its_file() -> None:
    written = timeline("pcie")
    file = read_timeline(json.loads(json.dumps(written)))
    assert file.trace == a_step()
    assert file.link == LinkSpeeds(5e7, 5e7, 1e8, 1e8)
    assert file.tiers == {Tier.HOST: 10**12}
    names = {span.name for span in file.timeline.spans}
    assert {"evict", "fetch", "stall", "forward", "backward"} <= names
    assert len(file.timeline.lives) == len(a_step().pages)
    assert all(span.page >= 0 for span in file.timeline.spans if span.name == "stall" and span.end_s > span.start_s)


def test_a_timeline_of_before_there_were_lives_is_read() -> None:
    old = {name: value for name, value in timeline().items() if name != "otherData"}
    file = read_timeline(old)
    assert file.timeline.spans
    assert (file.timeline.lives, file.trace, file.link) == ((), None, None)


# -- figures ---------------------------------------------------------------------------------------------------------


def test_the_demand_is_that_of_the_trace() -> None:
    figures = StepFigures(Step("x", read_timeline(timeline())))
    assert figures.demand_bytes == pytest.approx(4_000_000 * 6 + 16_000_000 * 7 + 20_000_000, rel=0.15)
    assert figures.end_s >= a_step().seconds
    assert figures.moved_bytes(Lane.D2H) > 0


def test_faster_links_and_more_memory_make_a_step_faster() -> None:
    file = read_timeline(timeline("slow"))
    assert file.trace is not None
    assert file.link is not None
    found = {change.what: change.step_s for change in changes(file.trace, LIMIT, file.link, file.tiers)}
    as_it_is_s = found["as it is"]
    assert as_it_is_s is not None
    least_s = found["memory enough for all"]
    for what in ("a link four times as fast", "a limit half as high again"):
        step_s = found[what]
        assert step_s is not None
        assert least_s is not None
        assert least_s <= step_s < as_it_is_s


def test_half_the_batch_halves_what_is_no_weight() -> None:
    whole = a_step()
    half = with_half_the_batch(whole)
    assert half.seconds == pytest.approx(whole.seconds / 2)
    assert {page.nbytes for page in half.pages} == {4_000_000, 8_000_000}


def adam(lists: bool) -> Trace:
    """Two weights with a gradient and a state each; one operation for each, or one on lists of both."""
    pages = [TracedPage(10, -1, 99, successor=n) for n in range(4)] + [TracedPage(10, 0, 99) for _ in range(2)]
    ops = [TracedOp("backward", (0, 1), (), (4, 5), 20, 1.0)]
    if lists:
        pages += [TracedPage(10, 2, 99), TracedPage(10, 2, 99)]
        ops.append(TracedOp("aten::_foreach_mul_.Scalar", (2, 3), (2, 3), (), 0, 2.0))
        ops.append(TracedOp("aten::_foreach_sqrt", (2, 3), (), (6, 7), 20, 4.0))
        ops.append(TracedOp("aten::_foreach_addcdiv_", (0, 1, 4, 5, 6, 7), (0, 1), (), 0, 6.0))
    else:
        for weight in range(2):
            ops.append(TracedOp("aten::mul_.Tensor", (2 + weight,), (2 + weight,), (), 0, 2.0))
            ops.append(TracedOp("aten::addcdiv_", (weight, 4 + weight, 2 + weight), (weight,), (), 0, 6.0))
    ended = [page._replace(dead=len(ops) if page.dead == 99 else page.dead) for page in pages]
    return Trace(tuple(ended), tuple(ops))


@pytest.mark.parametrize("lists", [False, True])
def test_a_fused_optimizer_is_one_operation_for_each_run(lists: bool) -> None:
    fused = with_fused_optimizer(adam(lists), limit=8 * 30)
    assert fused is not None
    assert [op.name for op in fused.ops] == ["backward", "aten::_fused_optimizer", "aten::_fused_optimizer"]
    assert [set(op.pages) for op in fused.ops[1:]] == [{0, 2, 4}, {1, 3, 5}]
    assert len(fused.pages) == 6  # what was made in between is gone
    assert all(page.dead <= 3 for page in fused.pages)
    assert 0 < fused.seconds < adam(lists).seconds
    whole = with_fused_optimizer(adam(lists), limit=8 * 60)
    assert whole is not None
    assert len(whole.ops) == 2


def test_what_has_no_optimizer_cannot_be_fused() -> None:
    assert with_fused_optimizer(a_step(), LIMIT) is None
    assert with_fused_optimizer(traced([Op([0], [1])]), 100) is None


# -- the page --------------------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """What a page refers to, and whether its tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.pictures_without_text = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if given.get("id"):
            self.ids.append(given["id"] or "")
        self.pictures_without_text += tag == "img" and not given.get("alt")
        if tag not in ("meta", "link", "img", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page(read_all(write_all(tmp_path_factory.mktemp("files"))), "All <b>kinds</b>", "made by a test")


def test_the_page_needs_nothing_else(whole: str) -> None:
    reader = Reader()
    reader.feed(whole)
    assert reader.open == []
    assert all(address.startswith(("#", "data:")) for address in reader.addresses)
    assert not re.search(r"(src|href|url\(|import|fetch)[=( ]*[\"']?https?:", whole)
    assert len(reader.ids) == len(set(reader.ids))
    assert reader.pictures_without_text == 0
    assert {address[1:] for address in reader.addresses if address.startswith("#")} <= set(reader.ids)
    assert len(whole.encode()) < 1_500_000
    assert "<b>kinds" not in whole


def test_the_page_says_in_tables_what_its_charts_show(whole: str) -> None:
    for said in (
        "Where the time goes",
        "What the program waited for",
        "The largest tensors, and who made them",
        "Traffic, against the least possible",
        "a link twice as fast",
        "times the fastest",
        "The largest size of each way",
        "out of memory",
        "mIoU 0.4",
        "result.png",
    ):
        assert said in whole, said


@pytest.mark.parametrize(
    ("machines", "titles", "told"),
    [
        (("pcie", "nvlink"), ("six layers", "six layers"), ["pcie", "nvlink"]),
        (("pcie", "pcie"), ("LMS", "LMS that moves only"), ["LMS", "LMS that moves only"]),
        ((None, None), ("LMS", None), ["LMS", "file 1"]),
    ],
)
def test_steps_side_by_side_can_be_told_apart(machines: Any, titles: Any, told: list[str]) -> None:
    steps = [Step(f"file {index}", read_timeline(timeline(title=title))) for index, title in enumerate(titles)]
    for step, machine in zip(steps, machines, strict=True):
        step.file.about["machine"] = machine
    section = side_by_side(steps)
    assert section is not None
    assert section.tables[0].head == ["", *told]


def test_a_sweep_of_which_nothing_completed_is_shown(tmp_path: Path) -> None:
    trials = [trial("planned", size, None, reason="the largest operation needs 2 GB") for size in (1, 2)]
    shown = page(read(tmp_path, bench_jsonl=jsonl(BENCH_HEADER, *trials)), "x", "y")
    assert "No trial completed: the table says why." in shown
    assert "the largest operation needs 2 GB" in shown


def test_a_search_has_the_forecast_beside_what_was_found(tmp_path: Path) -> None:
    """The axis is what was searched for, though it is not the first of a point."""
    header = {**BENCH_HEADER, "settings": {"find": "batch"}}
    told = {"fits": True, "largest": 6, "step_s": 0.25}
    made = trial("none", 64, 0.5, point={"size": 64, "batch": 4}, ranks=2, forecast=told)
    failed = trial("none", 64, None, point={"size": 64, "batch": 6}, ranks=2, forecast=told)
    bench = Bench("a search", header, [made, failed])
    largest, trials = bench_section("b", bench).tables
    assert largest.head == ["way", "forecast", "largest batch that completed", "least batch that did not"]
    assert largest.rows == [["none", "6", "4", "6"]]
    first = dict(zip(trials.head, trials.rows[0], strict=True))
    assert (first["ranks"], first["forecast"], first["forecast step"]) == ("2", "fits", "250 ms")


def test_what_is_in_a_file_ends_no_script(tmp_path: Path) -> None:
    log = jsonl({"step": 1, "</script><script>alert(1)": 1.0, "loss": 2.0})
    shown = page(read(tmp_path, log_jsonl=log), "x", "y")
    assert "<script>alert" not in shown


def test_too_large_a_picture_is_left_out_and_said(tmp_path: Path) -> None:
    contents = read(tmp_path, big_png=b"\x89PNG\r\n\x1a\n" + bytes(4_000_000))
    shown = page(contents, "x", "y")
    assert "big.png is left out: it has 4 MB" in shown
    assert len(shown) < 200_000


# -- the command -----------------------------------------------------------------------------------------------------


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.command, list(map(str, arguments)), standalone_mode=False)


def test_the_command_keeps_what_it_can_read(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(jsonl({"step": 1, "loss": 2.0}))
    (tmp_path / "bad.json").write_text("{")
    done = invoke(tmp_path / "log.jsonl", tmp_path / "bad.json", "-o", tmp_path / "r.html")
    assert done.return_value == 1
    assert "bad.json: expected a timeline" in done.stderr
    shown = (tmp_path / "r.html").read_text()
    assert "What is missing here" in shown
    assert "Loss" in shown


def test_the_command_writes_nothing_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    done = invoke(tmp_path / "bad.json", "-o", tmp_path / "r.html")
    assert "none of the files could be read" in str(done.exception)
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    ("output", "said"), [("r.txt", "expected the name of an .html file"), ("/missing/r.html", "there is no directory")]
)
def test_a_bad_name_is_refused_before_the_work(output: str, said: str) -> None:
    assert said in str(invoke("x.json", "-o", output).exception)
