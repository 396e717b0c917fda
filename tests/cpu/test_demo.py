"""``torch-lms demo``: its options, its network, its children, its report, and the whole of it once."""

import dataclasses
import importlib.util
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner, Result
from PIL import Image
from rich.console import Console

from torch_lms.cli import demo
from torch_lms.demo import child as demo_child
from torch_lms.demo import runs as demo_runs
from torch_lms.demo import train as demo_train
from torch_lms.demo.child import Ready, train
from torch_lms.demo.data import Brain, read_brain, write_volume
from torch_lms.demo.page import demo_page
from torch_lms.demo.picture import Captions, write_picture
from torch_lms.demo.report import Demo, Outcome, Run, as_json, shortcomings, table, verdict

MB = 10**6
LOSSES = ((0.75).hex(), (0.5).hex(), (0.375).hex())


# -- options ---------------------------------------------------------------------------------------------------------


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(demo.command, list(arguments))


def obeyed(*arguments: str) -> Result:
    """As ``torch-lms`` invokes it: ``return_value`` is the exit code."""
    return CliRunner().invoke(demo.command, list(arguments), standalone_mode=False)


@pytest.fixture
def _no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(settings: demo_runs.Settings) -> Demo:
        raise AssertionError(f"work began: {settings}")

    monkeypatch.setattr(demo_runs, "perform", refuse)


@pytest.mark.usefixtures("_no_work")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--steps", "0"], "1<=x<=1000"),
        (["--size", "4"], "1<=x<=3"),
        (["--full", "--size", "2"], "--full is --size 1"),
        (["--device", "tpu"], "'tpu'"),
        (["--picture", "brain.jpg"], "expected the name of a .png file"),
        (["--picture", "/missing/brain.png"], "there is no directory '/missing'"),
        (["--spill-dir", "/missing"], "does not exist"),
        (["--report", "/missing/demo.html"], "there is no directory '/missing'"),
        (["--report", "demo.txt"], "expected the name of an .html file"),
        (["--json", "/missing/out.json"], "there is no directory '/missing'"),
    ],
)
def test_bad_options_are_refused_before_the_work(arguments: list[str], expected: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert expected in result.output
    assert "Traceback" not in result.output


@pytest.mark.usefixtures("_no_work")
def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "nilearn" else found(name))
    result = invoke()
    assert result.exit_code == 1
    assert 'the demo also needs nilearn: pip install "torch-lms[demo]"' in result.output


@pytest.mark.usefixtures("_no_work")
def test_cuda_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = invoke("--device", "cuda")
    assert result.exit_code == 1
    assert "PyTorch sees no CUDA device here" in result.output


def test_the_command_itself_is_imported_without_torch() -> None:
    code = "import sys, torch_lms.cli.demo; print(sorted({'torch', 'nilearn', 'numpy', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


# -- the network -----------------------------------------------------------------------------------------------------


def test_network_gives_every_voxel_a_class() -> None:
    logits = demo_train.UNet(3, channels=(4, 8, 16))(torch.randn(1, 1, 8, 12, 16))
    assert logits.shape == (1, 3, 8, 12, 16)


def test_skip_is_joined_as_by_a_convolution_over_both() -> None:
    up = demo_train.UpBlock(8, 4).double()
    below, skip = torch.randn(1, 8, 3, 3, 3).double(), torch.randn(1, 4, 6, 6, 6).double()
    weight = torch.cat([up.from_below.weight, up.from_skip.weight], 1)
    joined = up.block(F.conv3d(torch.cat([up.up(below), skip], 1), weight, padding=1))
    torch.testing.assert_close(up(below, skip), joined)


def test_loss_falls_to_zero_with_the_right_answer() -> None:
    truth = F.one_hot(torch.randint(0, 3, (1, 4, 4, 4)), 3).movedim(-1, 1).float()
    assert demo_train.segmentation_loss(30 * truth, truth).item() == pytest.approx(0, abs=1e-5)
    assert demo_train.segmentation_loss(torch.zeros_like(truth), truth).item() > 1


def test_dice_of_half_an_overlap() -> None:
    labels, prediction = torch.tensor([0, 1, 1, 0]), torch.tensor([0, 0, 1, 1])
    assert demo_train.dice_scores(prediction, labels) == {"grey": 0.5, "white": 1.0}  # white: none in either


# -- the children ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up head: a ball of white matter in a shell of grey."""
    radius = np.linalg.norm(np.indices((30, 34, 29)) - np.array([15, 17, 14])[:, None, None, None], axis=0)
    labels = np.select([radius < 7, radius < 11], [2, 1], 0).astype(np.uint8)
    scan = np.array([0, 0.6, 0.9], np.float32)[labels] + np.where(radius < 13, np.float32(0.1), 0)
    path = tmp_path_factory.mktemp("demo") / "volume.npz"
    np.savez(path, scan=scan.astype(np.float32), labels=labels)
    return path


@pytest.fixture
def arguments(volume: Path) -> list[str]:
    return [str(volume), "--steps=2", "--learning-rate=0.05", "--threads=1"]


def test_volume_is_padded_to_what_the_network_takes(volume: Path) -> None:
    scan, labels = demo_train.load_volume(volume, torch.device("cpu"))
    assert scan.shape == (1, 1, 32, 36, 32)
    assert scan.is_contiguous(memory_format=torch.channels_last_3d)
    assert labels.shape == (1, 32, 36, 32)
    assert scan[labels[None] > 0].mean() > 0 > scan[0, 0, -1].max()


def test_child_tells_of_every_step(arguments: list[str], tmp_path: Path) -> None:
    steps: list[None] = []
    prediction = tmp_path / "prediction.npy"
    ready, run = train([*arguments, f"--prediction-to={prediction}"], lambda: steps.append(None))
    assert run.outcome is Outcome.COMPLETED
    assert len(run.losses) == len(run.steps_s) == len(steps) == 2
    assert run.losses[1] < run.losses[0]
    assert ready is not None
    assert (ready.threads, ready.torch) == (1, torch.__version__)
    assert run.peak_rss_bytes is not None
    assert run.peak_rss_bytes > ready.idle_rss_bytes > 50 * MB
    assert set(run.dice or {}) == {"grey", "white"}
    assert np.load(prediction).shape == (32, 36, 32)
    assert train(arguments)[1].losses_hex == run.losses_hex


def test_child_with_lms_loses_no_bit(arguments: list[str], tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    assert train([*arguments, f"--weights-to={weights}"])[1].outcome is Outcome.COMPLETED
    arguments.append(f"--weights={weights}")
    _, without = train(arguments)
    _, run = train([*arguments, "--lms", f"--spill-dir={tmp_path}"])
    assert run.outcome is Outcome.COMPLETED, run.message
    assert run.losses_hex == without.losses_hex
    assert run.stats is not None
    assert run.stats["steps"] == 2


def test_child_tells_of_each_step_what_lms_did(arguments: list[str], tmp_path: Path) -> None:
    timeline = tmp_path / "lms.json"
    _, run = train([*arguments, "--lms", "--no-recompute", f"--spill-dir={tmp_path}", f"--timeline-to={timeline}"])
    assert [set(moved) for moved in run.moved] == [set(demo_train.COUNTED)] * 2
    assert run.stats is not None
    assert sum(moved["evicted_bytes"] for moved in run.moved) == run.stats["evicted_bytes"]
    assert timeline.is_file() == (run.stats["evicted_bytes"] > 0)


def test_child_under_a_limit_runs_out_of_memory(arguments: list[str]) -> None:
    ready, _ = train([*arguments, "--steps=1"])
    assert ready is not None
    _, run = train([*arguments, f"--rlimit-data={ready.vm_data_bytes + 20 * MB}"])
    assert run.outcome is Outcome.OUT_OF_MEMORY, run.message
    assert run.message
    assert run.losses == []


def test_child_that_fails_hands_on_what_it_wrote(arguments: list[str]) -> None:
    _, run = train(["/missing.npz", *arguments[1:]])
    assert run.outcome is Outcome.FAILED
    assert run.message is not None
    assert "No such file or directory: '/missing.npz'" in run.message


@pytest.mark.parametrize(
    ("code", "outcome", "message"),
    [
        (
            "import sys, os; sys.stderr.write('std::bad_alloc'); sys.stderr.flush(); os.abort()",
            "out_of_memory",
            "bad_alloc",
        ),
        ("import os; os.kill(os.getpid(), 11)", "failed", "ended by signal 11"),
        ("import sys; sys.exit(3)", "failed", "exit code 3"),
        ("print('{\"event\": \"completed\"}'); raise SystemExit('late')", "failed", "late"),
        ("print('unasked'); print('{\"event\": \"completed\"}')", "completed", None),
    ],
)
def test_ends_that_the_child_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, outcome: str, message: str | None
) -> None:
    script = tmp_path / "script.py"
    script.write_text(code)
    monkeypatch.setattr(demo_child, "SCRIPT", script)
    ready, run = train([])
    assert ready is None
    assert run.outcome == outcome
    assert (message or "") in (run.message or "")


def test_no_child_outlives_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        'import time; print(\'{"event": "step", "loss": "0x1p0", "seconds": 1}\', flush=True); time.sleep(60)'
    )
    monkeypatch.setattr(demo_child, "SCRIPT", script)
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def noted(*arguments: Any, **options: Any) -> "subprocess.Popen[str]":
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train([], interrupt)
    assert started[0].returncode == -9


# -- the limit -------------------------------------------------------------------------------------------------------

READY = Ready(150 * MB, 200 * MB, 230 * MB, None, 2, None, "2.13.0")


def test_limit_is_half_of_what_the_reference_took() -> None:
    limit = demo_runs._limit_from(READY, Run(Outcome.COMPLETED, peak_rss_bytes=1400 * MB))
    assert limit.budget_bytes == 600 * MB
    assert limit.arguments == [f"--rlimit-data={830 * MB}"]


def test_limit_of_a_gpu_is_a_share_of_its_memory() -> None:
    ready = dataclasses.replace(READY, total_device_bytes=8000 * MB)
    limit = demo_runs._limit_from(ready, Run(Outcome.COMPLETED, peak_rss_bytes=1, peak_device_bytes=2000 * MB))
    assert limit == demo_runs._Limit(1000 * MB, memory_fraction=0.125)
    assert limit.arguments == ["--memory-fraction=0.125"]


@pytest.mark.parametrize(("warm_up_s", "voxel_mm"), [(0.1, 2), (0.4, 3)])
def test_where_steps_are_slow_voxels_are_larger(warm_up_s: float, voxel_mm: int) -> None:
    assert demo_runs._voxel_mm_in_time(Run(Outcome.COMPLETED, steps_s=(1.0, warm_up_s, warm_up_s)), 6) == voxel_mm


@pytest.mark.parametrize(
    ("outcome", "expected"), [(Outcome.OUT_OF_MEMORY, "take larger voxels"), (Outcome.FAILED, "it wrote:\nNameError")]
)
def test_reference_that_does_not_complete_ends_the_demo(outcome: Outcome, expected: str) -> None:
    with pytest.raises(click.ClickException, match=expected):
        demo_runs._completed("reference", READY, Run(outcome, message="NameError"))


# -- the report ------------------------------------------------------------------------------------------------------


@pytest.fixture
def shown() -> Demo:
    """As it should be."""
    stats = {"limit_bytes": 300 * MB, "evicted_bytes": 2000 * MB, "fetched_bytes": 0, "recomputed_bytes": 120 * MB}
    stats["link_bytes_per_s"] = {"out": 600 * MB, "in": 800 * MB}
    moved = [{"planned_steps": step == 2, "evicted_bytes": 500 * MB, "recomputed_bytes": 120 * MB} for step in range(3)]
    moved_only = [{**each, "evicted_bytes": 700 * MB, "recomputed_bytes": 0} for each in moved]
    dice = {"grey": 0.87, "white": 0.85}
    return Demo(
        reference=Run(Outcome.COMPLETED, LOSSES, (3.0, 2.0, 2.0), dice=dice, peak_rss_bytes=1400 * MB),
        stock=Run(Outcome.OUT_OF_MEMORY, peak_rss_bytes=800 * MB, message="can't allocate memory"),
        lms=Run(Outcome.COMPLETED, LOSSES, (6.0, 5.0, 4.0), tuple(moved), dice, 680 * MB, stats=stats),
        moves=Run(Outcome.COMPLETED, LOSSES, (6.0, 5.0, 4.5), tuple(moved_only), dice, 680 * MB, stats=stats),
        idle_rss_bytes=200 * MB,
        budget_bytes=600 * MB,
        rlimit_data_bytes=830 * MB,
        surroundings={"device": "cpu"},
    )


def rendered(shown: Demo) -> str:
    text = io.StringIO()
    Console(file=text, width=80).print(table(shown))
    return text.getvalue()


def test_success(shown: Demo) -> None:
    assert list(shortcomings(shown)) == []
    assert shown.identical
    assert shown.peak_ratio == pytest.approx(0.4)
    fits, costs, recomputes = verdict(shown)
    for expected in ("600 MB", "in step 1", "identical to the bit", "40%"):
        assert expected in fits
    assert costs.startswith("The first step took 6 s, and from step 3 on steps follow a plan and take 4 s, 2.0 times")
    assert "600 MB/s out and 800 MB/s in plans recompute 120 MB a step and evict 500 MB" in recomputes
    assert "moving alone evicts 700 MB (4.5 s a step)" in recomputes


def test_a_demo_in_which_no_step_followed_a_plan_says_so(shown: Demo) -> None:
    _, costs, recomputes = verdict(changed("lms", moved=())(shown))
    assert costs.startswith("No step followed a plan to its end: they took 5 s, 2.5 times as long")
    assert "too few steps followed a plan" in recomputes


def test_the_report_has_the_table_the_sentences_and_the_picture(shown: Demo, tmp_path: Path) -> None:
    picture = tmp_path / "brain.png"
    Image.new("RGB", (8, 8)).save(picture)
    written = demo_page(shown, tmp_path, picture, "made by a test")
    for expected in ("The first step took 6 s", "Seconds of each step", "1.4 GB", "data:image/png;base64", "brain.png"):
        assert expected in written


def test_table_shows_every_figure(shown: Demo) -> None:
    text = rendered(shown)
    for expected in (
        "out of memory",
        "1.4 GB",
        "480 MB",
        "2 s",
        "planned 4 s",
        "120 MB",
        "2 GB",
        "0 B",
        "0.375",
        "moves",
        "white 0.850",
        "830 MB",
    ):
        assert expected in text
    assert "…" not in text


def test_json_has_the_promised_keys(shown: Demo) -> None:
    result = as_json(shown)
    assert result["identical"] is True
    assert (result["limit_bytes"], result["rlimit_data_bytes"]) == (300 * MB, 830 * MB)
    assert list(result["runs"]) == ["reference", "stock", "lms", "moves"]
    assert result["runs"]["lms"]["losses"] == [0.75, 0.5, 0.375]
    assert result["runs"]["lms"]["stats"]["evicted_bytes"] == 2000 * MB
    assert result["runs"]["stock"]["step_s"] is None
    assert result["device"] == "cpu"


def changed(run: str, **values: Any) -> Callable[[Demo], Demo]:
    return lambda shown: dataclasses.replace(shown, **{run: dataclasses.replace(getattr(shown, run), **values)})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            changed("stock", outcome=Outcome.COMPLETED, losses_hex=LOSSES),
            "was to run out of memory under the limit, and completed",
        ),
        (
            changed("stock", outcome=Outcome.FAILED, message="Traceback"),
            "was to run out of memory under the limit, and failed",
        ),
        (
            changed("lms", outcome=Outcome.FAILED, message="Traceback", stats=None),
            "was to complete under the limit, and failed",
        ),
        (changed("lms", outcome=Outcome.OUT_OF_MEMORY, message="too large", stats=None), "after 3 steps: too large"),
        (
            changed("lms", losses_hex=(*LOSSES[:2], (0.25).hex())),
            "differ from step 3 on: 0x1.8000000000000p-2 without LMS, 0x1.0",
        ),
    ],
)
def test_shortcoming_is_said_and_exits_with_one(
    shown: Demo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: Callable[[Demo], Demo], expected: str
) -> None:
    monkeypatch.setattr(demo_runs, "perform", lambda _: change(shown))
    result = obeyed("--json", "-", "--report", str(tmp_path / "demo.html"))
    assert result.return_value == 1
    assert expected in result.stderr
    assert ("Traceback" in result.stderr) == (Outcome.FAILED in {run.outcome for run in change(shown).runs.values()})
    assert len(json.loads(result.stdout)["shortcomings"]) == 1
    assert rendered(change(shown))


def test_one_loss_bit_is_a_difference(shown: Demo) -> None:
    nearly = float.fromhex(LOSSES[0]) * (1 + 2**-52)
    assert not changed("lms", losses_hex=(nearly.hex(), *LOSSES[1:]))(shown).identical


def test_success_prints_table_verdict_and_picture(shown: Demo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo_runs, "perform", lambda _: shown)
    report = tmp_path / "demo.html"
    result = obeyed(
        *("--json", str(tmp_path / "demo.json"), "--picture", str(tmp_path / "brain.png"), "--report", str(report))
    )
    assert result.return_value == 0
    assert "identical to the bit" in result.stdout
    assert str(tmp_path / "brain.png") in result.stdout
    assert "The first step took 6 s" in report.read_text()
    assert json.loads((tmp_path / "demo.json").read_text())["identical"] is True


# -- scan and picture ------------------------------------------------------------------------------------------------


def test_scan_is_a_brain(tmp_path: Path) -> None:
    path = tmp_path / "volume.npz"
    assert write_volume(read_brain(), path, 8) == (25, 30, 24)
    with np.load(path) as arrays:
        scan, labels = arrays["scan"], arrays["labels"]
    assert (scan.dtype, labels.dtype, labels.shape) == (np.float32, np.uint8, scan.shape)
    # About 1.1 litres of grey matter and 0.6 of white, which is the brighter in a T1 scan.
    grey, white = ((labels == label).sum() * 8**3 / 1e6 for label in (1, 2))
    assert 0.9 < grey < 1.3
    assert 0.4 < white < 0.8
    assert scan[labels == 2].mean() > scan[labels == 1].mean() > scan[labels == 0].mean()


def test_coarse_voxels_have_the_tissue_that_fills_more_than_half(tmp_path: Path) -> None:
    column = np.ones((3, 1, 1), np.float32)
    grey, white = (np.array(shares, np.float32)[:, None, None] for shares in ([1, 0, 1], [0, 1, 0]))
    write_volume(Brain(column, grey, white), tmp_path / "fine.npz", 1)
    write_volume(Brain(*(each.repeat(6, 1).repeat(5, 2) for each in (column, grey, white))), tmp_path / "coarse.npz", 3)
    with np.load(tmp_path / "fine.npz") as fine, np.load(tmp_path / "coarse.npz") as coarse:
        assert fine["labels"].ravel().tolist() == [1, 2, 1]
        assert coarse["labels"].shape == (1, 2, 2)
        assert coarse["scan"][0, 0] == pytest.approx([1, 2 / 3])  # the last voxel is empty by a third
        assert coarse["labels"].ravel().tolist() == [1, 0, 1, 0]


def test_picture_has_three_panels_with_both_colors(volume: Path, tmp_path: Path) -> None:
    with np.load(volume) as arrays:
        labels = arrays["labels"]
    prediction, picture = tmp_path / "prediction.npy", tmp_path / "brain.png"
    np.save(prediction, np.pad(labels, 4)[4:, 4:, 4:])
    write_picture(picture, volume, prediction, Captions("title", "subtitle", {"grey": 0.5, "white": 1.0}))
    with Image.open(picture) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    panels = np.array_split(pixels, 3, axis=1)
    bluish, orange = ([int(((p[..., a] - p[..., b]) > 60).sum()) for p in panels] for a, b in ((2, 0), (0, 2)))
    assert bluish[0] < 400 < bluish[1]  # the legend stands below the first panel
    assert orange[0] < 400 < orange[1]
    assert bluish[1] == pytest.approx(bluish[2], rel=0.1)


# -- all of it -------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(900)
def test_stock_fails_and_lms_trains_to_the_same_bits(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch_lms", "demo", "--size", "3", "--steps", "2", "--json", "-"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    runs = result["runs"]
    assert runs["stock"]["outcome"] == "out_of_memory"
    assert runs["lms"]["outcome"] == runs["reference"]["outcome"] == "completed"
    assert result["identical"] is True
    assert runs["moves"]["outcome"] == "completed"
    assert runs["lms"]["losses"] == runs["moves"]["losses"] == runs["reference"]["losses"]
    assert runs["moves"]["stats"]["recomputed_bytes"] == 0
    assert len(result["seen"]) == 3
    assert "What would make it faster" in (tmp_path / "torch-lms-demo.html").read_text()
    # The limit is half of what the reference took after its start. Beside it come LMS's code and its libraries.
    spared = runs["reference"]["peak_rss_bytes"] - runs["lms"]["peak_rss_bytes"]
    assert spared > 0.9 * result["budget_bytes"]
    assert runs["lms"]["stats"]["evicted_bytes"] > 0
    assert "\x1b" not in done.stderr
    with Image.open(tmp_path / "torch-lms-demo.png") as image:
        assert image.width > 900
    assert result["volume_shape"] == [66, 78, 63]
