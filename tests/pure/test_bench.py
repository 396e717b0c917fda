"""``torch-lms bench`` without running anything: its file of results, its search, its sheet, what it refuses."""

import io
import json
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from torch_lms.bench.campaign import Bench, Campaign, point_of
from torch_lms.bench.dimension import dimension_of
from torch_lms.bench.process import _unreported
from torch_lms.bench.ranks import joined
from torch_lms.bench.results import Results, read
from torch_lms.bench.search import Found, expected_largest, found_granule, largest
from torch_lms.bench.sheet import sheet
from torch_lms.bench.trial import COMPLETED, CRASHED, OUT_OF_MEMORY, REFUSED, Asked, Trial
from torch_lms.bench.ways import WAYS, checked, refusal
from torch_lms.cli.bench import _values
from torch_lms.cli.bench_report import show_found
from torch_lms.errors import UsageError
from torch_lms.targets import Setting

SAMPLE = Path(__file__).parents[1] / "data_samples" / "bench.jsonl"
HEADER = {
    "format": "torch-lms bench",
    "version": 1,
    **{part: part for part in ("target", "settings", "torch", "torch_lms", "machine")},
}


def trial(way: str = "none", outcome: str = COMPLETED, size: int = 8, **known: Any) -> Trial:
    return Trial(way, {"size": size}, outcome, **known)


# -- the file --------------------------------------------------------------------------------------------------------


def test_the_sample_is_what_the_documents_say() -> None:
    header, trials, whole = read(SAMPLE)
    assert whole == SAMPLE.stat().st_size
    assert header["target"] == "resnet50"
    assert {found.outcome for found in trials} == {COMPLETED, OUT_OF_MEMORY, REFUSED}
    assert all(found.way in WAYS for found in trials)
    page = (SAMPLE.parents[2] / "docs" / "bench.md").read_text()
    assert json.loads(SAMPLE.read_text().splitlines()[1]).keys() == Trial.__dataclass_fields__.keys()
    assert not [name for name in [*header, *header["machine"], *trials[1].samples] if f"`{name}`" not in page]


def test_every_field_of_a_trial_is_in_the_documents() -> None:
    page = (SAMPLE.parents[2] / "docs" / "bench.md").read_text()
    assert not [name for name in Trial.__dataclass_fields__ if f"`{name}`" not in page]


def test_what_is_known_is_kept_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    Results(HEADER, path).add(trial(step_s=(1.0, 2.0), forecast={"fits": True}))
    again = Results(HEADER, path)
    assert (again.resumed, again.dropped) == (1, False)
    known = again.find("none", {"size": 8})
    assert known is not None
    assert known.forecast == {"fits": True}
    assert again.find("none", {"size": 9}) is None
    assert again.find("planned", {"size": 8}) is None


def test_a_line_that_a_kill_has_cut_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    results = Results(HEADER, path)
    results.add(trial(size=8))
    kept = path.stat().st_size
    results.add(trial(size=9))
    path.write_bytes(path.read_bytes()[:-7])
    again = Results(HEADER, path)
    assert (again.resumed, again.dropped) == (1, True)
    assert path.stat().st_size == kept
    again.add(trial(size=9))
    assert len(read(path)[1]) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no file of results"),
        ("{}\n", "no file of results"),
        ('{"format": "torch-lms bench", "version": 7}\n', "version 7 of the format: expected 1"),
        (json.dumps(HEADER) + "\nnonsense\n" + json.dumps({"way": "none"}) + "\n", "line 2, is no JSON"),
        (json.dumps(HEADER) + '\n{"way": "none"}\n', "line 2: expected a trial with way, point and outcome"),
        (json.dumps(HEADER) + "\n[1]\n", "line 2: expected an object; got list"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        read(path)


def test_results_of_another_command_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    Results(HEADER, path).add(trial())
    with pytest.raises(UsageError, match=r"expected settings .*Give another file to -o"):
        Results({**HEADER, "settings": "others"}, path)
    assert len(read(path)[1]) == 1


# -- the search ------------------------------------------------------------------------------------------------------


def hunt(most: int, expected: int, granule: int = 1, takes: Callable[[int], bool] = lambda value: True) -> Found:
    """A search where all up to ``most`` trains."""

    def run(value: int) -> Trial:
        assert takes(value)
        return trial(outcome=COMPLETED if value <= most else OUT_OF_MEMORY, reason="" if value <= most else "full")

    return largest("none", run, takes, granule, expected, start=10 * granule)


def test_a_good_forecast_takes_two_trials() -> None:
    assert hunt(100, expected=100) == Found("none", 100, 100, 104, "full", 2)


@pytest.mark.parametrize("most", [3, 40, 97, 100, 131, 220])
def test_the_largest_is_found_wherever_it_begins(most: int) -> None:
    found = hunt(most, expected=100)
    assert most * 0.95 <= found.largest <= most
    assert found.fails is not None
    assert found.fails > most
    assert found.trials <= 12


def test_only_what_the_target_takes_is_run() -> None:
    found = hunt(100, expected=0, granule=16, takes=lambda value: value >= 48 and value % 16 == 0)
    assert found.largest == 96


@pytest.mark.parametrize(("multiple", "start"), [(1, 64), (32, 64), (64, 64), (16, 48)])
def test_a_target_that_takes_multiples_alone_is_found_out(multiple: int, start: int) -> None:
    assert found_granule(lambda value: value % multiple == 0, 1, start) == multiple


def test_nothing_trains() -> None:
    found = hunt(0, expected=0, takes=lambda value: value >= 4)
    assert (found.largest, found.reason) == (0, "full")


def test_a_refusal_ends_the_search() -> None:
    found = largest("hooks", lambda value: trial(outcome=REFUSED, reason="no"), lambda value: True, 1, 50, 10)
    assert (found.largest, found.trials, found.reason) == (0, 1, "no")


def test_the_forecast_is_asked_of_what_the_target_takes() -> None:
    found = expected_largest(lambda value: value <= 300, lambda value: 64 <= value <= 4096, 1, 128)
    assert 298 <= found <= 300


def test_a_long_reason_is_shortened_and_says_so() -> None:
    console = Console(file=io.StringIO(), width=500)
    show_found(console, "size", [Found("none", 64, 48, 64, "no memory for it, " * 20, 2)])
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().rstrip().endswith("no memory for it, no ...")


def test_the_largest_and_the_forecast_are_shown_with_the_reason_as_it_is() -> None:
    console = Console(file=io.StringIO(), width=200)
    show_found(console, "size", [Found("none", 64, 48, 64, "RuntimeError: [enforce fail] no memory", 2)])
    assert isinstance(console.file, io.StringIO)
    head, row = console.file.getvalue().splitlines()[1:]
    assert re.split(r"  +", head.strip())[:3] == ["way", "forecast", "by running"]
    assert re.split(r"  +", row.strip()) == [
        "none",
        "64",
        "48",
        "1.00",
        "64",
        "2",
        "RuntimeError: [enforce fail] no memory",
    ]


# -- the sheet -------------------------------------------------------------------------------------------------------


def test_the_sheet_has_ibms_columns() -> None:
    lines = sheet(read(SAMPLE)[1]).splitlines()
    assert lines[0] == (
        "image_size,megapixels/sec,median megapixels/sec,duration,reclaimed_blocks,reclaimed_bytes,alloc_freelist,"
        "alloc_cudamalloc,alloc_reclaim_one,alloc_reclaim_fragments,alloc_reclaim_all,alloc_cudamalloc_retry,"
        "num_steps,way"
    )
    assert len(lines) == 1 + 9
    assert lines[2].startswith("128,")
    assert lines[2].endswith("50,0,7.5,2,0,0,4,reactive")


def test_a_sheet_of_nothing_has_a_head() -> None:
    assert sheet([trial(outcome=CRASHED)]).startswith("image_size,megapixels/sec")


# -- what is refused -------------------------------------------------------------------------------------------------


def target(size: int = 32, batch: int = 2, depth: int = 3) -> Any: ...


def test_dimensions_are_found_by_their_names() -> None:
    found = dimension_of("depth", "mine", target, Setting())
    assert (found.keyword, found.own, found.granule) == ("depth", 3, 1)
    assert found.at(Setting(size=8), 5).options == {"depth": 5}
    assert dimension_of("batch", "mine", target, Setting()).at(Setting(), 7).batch == 7


def test_a_target_without_that_dimension_says_what_it_takes() -> None:
    with pytest.raises(UsageError, match=r"mine cannot be cut down in width: .*it takes size, batch, depth"):
        dimension_of("width", "mine", target, Setting())


@pytest.mark.parametrize("given", ["", "none,other", "none,none"])
def test_unknown_ways_are_refused(given: str) -> None:
    with pytest.raises(UsageError, match="--against expects"):
        checked(given)


def test_what_a_device_cannot_do_has_a_reason() -> None:
    assert "take hooks" in refusal("save_on_cpu", "cpu")
    assert not refusal("save_on_cpu", "cuda")
    assert "simulated only" in refusal("demand", "cuda")
    assert not refusal("planned", "cpu")


@pytest.mark.parametrize(
    ("given", "values"),
    [("size=128:512:64", (128, 192, 256, 320, 384, 448, 512)), ("batch=1,2,4", (1, 2, 4)), ("depth=2:4", (2, 3, 4))],
)
def test_sweeps_are_read(given: str, values: tuple[int, ...]) -> None:
    assert _values(given) == (given.partition("=")[0], values)


@pytest.mark.parametrize(
    "given", ["size", "colour=1,2", "size=5:1", "size=a", "size=0,1", "size=1:9999999", "size=1:9:0"]
)
def test_sweeps_that_make_no_sense_are_refused(given: str) -> None:
    with pytest.raises(UsageError, match="expected --sweep NAME="):
        _values(given)


def test_a_process_that_says_nothing_is_told_by_its_end() -> None:
    assert _unreported(-signal.SIGABRT, "terminate: std::bad_alloc")["outcome"] == OUT_OF_MEMORY
    killed = _unreported(-signal.SIGKILL, "")
    assert (killed["outcome"], "SIGKILL, as the kernel does" in killed["reason"]) == (CRASHED, True)
    assert "exit code 3: words" in _unreported(3, "words")["reason"]


# -- ranks -----------------------------------------------------------------------------------------------------------


def told(step_s: list[float], evicted_bytes: int, peak_bytes: int, planned_steps: int) -> dict[str, Any]:
    return {
        "outcome": COMPLETED,
        "step_s": step_s,
        "losses": [f"{peak_bytes}"],
        "evicted_bytes": evicted_bytes,
        "peak_device_bytes": peak_bytes,
        "allocations": {"free": 1, "one": 2},
        "warm_up": {"steps": 2, "step_s": step_s, "planning_s": 0.5, "planned_steps": planned_steps},
    }


def test_ranks_take_as_long_as_the_slowest_and_move_what_all_move() -> None:
    assert joined([told([1.0, 3.0], 10, 70, 2), told([2.0, 2.0], 20, 80, 1)]) == {
        "outcome": COMPLETED,
        "step_s": [2.0, 3.0],
        "losses": ["70"],
        "evicted_bytes": 30,
        "peak_device_bytes": 80,
        "allocations": {"free": 2, "one": 4},
        "warm_up": {"steps": 2, "step_s": [2.0, 3.0], "planning_s": 1.0, "planned_steps": 1},
    }


def test_one_rank_is_what_it_tells() -> None:
    alone = told([1.0, 3.0], 10, 70, 2)
    assert joined([alone]) == alone


def test_the_batch_is_of_all_ranks() -> None:
    found = dimension_of("batch", "mine", target, Setting(gpus=4))
    assert (found.own, found.granule) == (8, 4)
    assert point_of(target, Setting(gpus=4), None) == {"size": 32, "batch": 8}


# -- all of it, with processes that are made up ----------------------------------------------------------------------


class Forecasts:
    """Everything fits, and nothing is known of it."""

    beside_bytes = 0

    def learn(self, setting: Setting, peak_bytes: int) -> None:
        self.beside_bytes = peak_bytes - 100

    def traced(self, setting: Setting, way: str) -> Any:
        return type("Step", (), {"item": "pixels", "items": 100})()

    def takes(self, setting: Setting) -> bool:
        return True

    def fits(self, setting: Setting, way: str) -> bool:
        return (setting.size or 0) <= 64

    def fit_together(self, setting: Setting, ways: Sequence[str]) -> bool:
        return True

    def forecast(self, setting: Setting, way: str) -> dict[str, Any]:
        return {"fits": True, "beside_bytes": self.beside_bytes}


class Watcher:
    def __init__(self) -> None:
        self.made: list[str] = []

    def begins(self, way: str, point: Any) -> None: ...

    def stepped(self) -> None: ...

    def ended(self, trial: Trial, seconds: float, is_known: bool) -> None:
        if not is_known:
            self.made.append(f"{trial.way} {trial.point['size']}")


def campaign(results: Results, ways: tuple[str, ...], outcome: str = COMPLETED) -> tuple[Campaign, Watcher]:
    def run(asked: Sequence[Asked], on_step: object, gpu: object) -> list[dict[str, Any]]:
        seconds = {"none": 1.0, "planned": 1.5}
        told = {"outcome": outcome, "reason": "" if outcome == COMPLETED else "full"}
        return [{**told, "step_s": [seconds[one.way]] * 3, "steps": 3} for one in asked]

    watcher = Watcher()
    bench = Bench("mine", target, Setting(batch=1), ways, None, None, "cpu", 3)
    return Campaign(bench, results, Forecasts(), watcher, run=run), watcher  # type: ignore[arg-type]


def test_a_sweep_compares_with_stock_whatever_the_order(tmp_path: Path) -> None:
    results = Results(HEADER, tmp_path / "r.jsonl")
    made, _ = campaign(results, ("planned", "none", "save_on_cpu"))
    trials = made.sweep(dimension_of("size", "mine", target, Setting()), (32, 64))
    assert [(found.way, found.overhead) for found in trials[:3]] == [
        ("none", 0.0),
        ("planned", 0.5),
        ("save_on_cpu", None),
    ]
    assert trials[1].items_per_s == pytest.approx(100 / 1.5)
    assert [found.point for found in trials[::3]] == [{"size": 32, "batch": 1}, {"size": 64, "batch": 1}]


def test_what_is_in_the_file_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    size = dimension_of("size", "mine", target, Setting())
    campaign(Results(HEADER, path), ("none", "planned"))[0].sweep(size, (32,))
    made, watcher = campaign(Results(HEADER, path), ("none", "planned"))
    assert len(made.sweep(size, (32, 64))) == 4
    assert watcher.made == ["none 64", "planned 64"]


def test_a_search_finds_what_stands_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    size = dimension_of("size", "mine", target, Setting())
    first = campaign(Results(HEADER, path), ("planned",), OUT_OF_MEMORY)[0].find(size)
    made, watcher = campaign(Results(HEADER, path), ("planned",))
    assert made.find(size) == first
    assert watcher.made == []
    assert first[0].expected == 64


def test_what_a_process_needs_beside_its_step_is_measured_once(tmp_path: Path) -> None:
    """On a card of the CPU, and not when the search is gone on with."""
    size = dimension_of("size", "mine", target, Setting())
    path = tmp_path / "r.jsonl"
    asked_cards = []
    for _ in range(2):
        made, _ = campaign(Results(HEADER, path), ("none",))
        made.bench = replace(made.bench, card_bytes=600)
        run = made.run

        def seen(asked: Sequence[Asked], *more: Any, run: Any = run) -> list[dict[str, Any]]:
            asked_cards.extend(one.card_bytes for one in asked)
            return [{**told, "peak_device_bytes": 140} for told in run(asked, *more)]

        made.run = seen
        made.find(size)
        assert made.expected.beside_bytes == 40
    memory, *cards = asked_cards
    assert memory > 600
    assert set(cards) == {600}
    assert {found.forecast["beside_bytes"] for found in read(path)[1]} == {40}
    assert {found.forecast["largest"] for found in read(path)[1]} == {64}
