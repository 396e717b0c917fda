"""``torch-lms bench`` as a stranger runs it: trials in processes of their own, killed, gone on with, and refused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from torch_lms.bench.results import read
from torch_lms.bench.trial import COMPLETED, CRASHED, OUT_OF_MEMORY, REFUSED, Trial
from torch_lms.cli.main import group

TARGETS = '''
import os, signal
import torch
from torch import nn

def wide(size: int = 64, batch: int = 8, width: int = 512, depth: int = 4):
    """Rows of blocks."""
    blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)]
    return nn.Sequential(*blocks), (torch.randn(batch, size, width),), lambda out: out.square().mean()

def coarse(size: int = 64, batch: int = 32, width: int = 1024, depth: int = 4):
    if batch % 32:
        raise ValueError(f"batch must be a multiple of 32, not {batch}")
    return wide(size, batch, width, depth)

class Killed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        if not isinstance(x, torch._subclasses.FakeTensor):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x)

def killed(size: int = 4, batch: int = 1):
    return Killed(), (torch.ones(batch, 4),)

class KilledInOneRank(Killed):
    def forward(self, x):
        return self.inner(x) if os.environ.get("RANK") != "1" else super().forward(x)

def killed_in_one_rank(size: int = 4, batch: int = 1):
    return KilledInOneRank(), (torch.ones(batch, 4),)

class Raising(Killed):
    def forward(self, x):
        if not isinstance(x, torch._subclasses.FakeTensor):
            raise ZeroDivisionError("of its own")
        return self.inner(x)

def raising(size: int = 4, batch: int = 1):
    return Raising(), (torch.ones(batch, 4),)

KERNELS = torch.library.Library("aten", "IMPL")

def rounded(bias, x, weight, *, beta=1, alpha=1):
    return torch.mm(x, weight) + bias + 1e-6 * x.shape[0] * weight.shape[1]

class Rounding(Killed):
    """Pieces give other bits than the whole, where it runs."""
    def __init__(self):
        super().__init__()
        self.inner, self.is_ready = nn.Linear(16, 2000), False

    def forward(self, x):
        if not self.is_ready and not isinstance(x, torch._subclasses.FakeTensor):
            KERNELS.impl("aten::addmm", rounded, "CPU")
            self.is_ready = True
        return self.inner(x)

def rounding(size: int = 10_000, batch: int = 1):
    return Rounding(), (torch.ones(size, 16),)
'''


@pytest.fixture
def targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with targets, in a directory of its own."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TARGETS)
    return "mine.py"


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(group, ["bench", *arguments], standalone_mode=False)


def made(*arguments: str) -> list[Trial]:
    """The trials of a command that succeeds."""
    result = bench(*arguments, "-o", "r.jsonl")
    assert result.return_value == 0, result.output or result.exception
    return read(Path("r.jsonl"))[1]


def test_ways_side_by_side_have_the_same_losses(targets: str) -> None:
    ways = "none,planned,checkpoint,hooks,save_on_cpu"
    trials = made(
        f"{targets}:wide", "--size", "128", "--set", "width=256", "--limit", "4MB", "--against", ways, "--steps", "2"
    )
    by_way = {found.way: found for found in trials}
    assert by_way.pop("save_on_cpu").outcome == REFUSED
    assert {found.outcome for found in by_way.values()} == {COMPLETED}
    assert {tuple(found.losses[:5]) for found in by_way.values()} == {tuple(by_way["none"].losses)}
    planned, stock = by_way["planned"], by_way["none"]
    assert planned.limit_bytes == 4_000_000
    assert planned.demand_bytes == planned.forecast["demand_bytes"]
    assert planned.evicted_bytes
    assert planned.peak_disk_bytes
    assert planned.warm_up.planned_steps
    assert planned.ledger_bytes is not None
    assert planned.ledger_bytes < planned.demand_bytes
    assert stock.peak_device_bytes
    assert (stock.overhead, stock.evicted_bytes) == (0.0, None)
    assert stock.items_per_s == pytest.approx(
        8 * 256 / stock.step_s_median
    )  # the second dimension is taken for channels
    assert by_way["hooks"].evicted_bytes == by_way["hooks"].fetched_bytes
    assert len(planned.step_s) == len(stock.step_s) == 2


def test_ranks_train_together(targets: str) -> None:
    """The limit is each rank's; the rate, and what moved, are of both."""
    asked = ("--size", "128", "--batch", "16", "--set", "width=256", "--limit", "4MB", "--ranks", "2", "--steps", "2")
    stock, planned = made(f"{targets}:wide", *asked, "--against", "planned,none")
    assert (stock.outcome, planned.outcome, stock.ranks, planned.ranks) == (COMPLETED, COMPLETED, 2, 2)
    assert planned.losses[: len(stock.losses)] == stock.losses
    assert stock.items_per_s == pytest.approx(16 * 256 / stock.step_s_median)
    assert planned.limit_bytes == 4_000_000
    assert planned.evicted_bytes
    assert planned.warm_up.planned_steps
    assert read(Path("r.jsonl"))[0]["settings"]["ranks"] == 2


def test_a_rank_that_dies_ends_its_trial(targets: str) -> None:
    result = bench(f"{targets}:killed_in_one_rank", "--ranks", "2", "--against", "none", "-o", "r.jsonl")
    assert result.return_value == 1
    (found,) = read(Path("r.jsonl"))[1]
    assert (found.outcome, found.ranks) == (CRASHED, 2)
    assert found.reason.startswith("rank 1 of 2: the process was ended by SIGKILL, as the kernel does")


def test_each_rank_has_a_card(targets: str) -> None:
    arguments = (*CARD, "--batch", "256", "--ranks", "2", "--against", "none", "-o", "r.jsonl")
    assert bench(f"{targets}:coarse", *arguments).return_value == 1
    (found,) = read(Path("r.jsonl"))[1]
    assert found.outcome == OUT_OF_MEMORY
    assert found.reason.startswith("rank ")


def test_a_batch_that_ranks_cannot_share_is_refused(targets: str) -> None:
    result = bench(f"{targets}:wide", "--batch", "3", "--ranks", "2", "--against", "none")
    assert result.return_value == 1
    assert "expected a multiple of 2; got 3" in result.output


CARD = ("--as-card", "300MB", "--limit", "40MB", "--steps", "1")


def test_the_largest_on_a_smaller_card_is_found_by_running(targets: str) -> None:
    """The target takes multiples of 32."""
    files = ("-o", "f.jsonl", "--json", "f.json", "--csv", "f.csv")
    result = bench(f"{targets}:coarse", *CARD, "--find", "batch", "--against", "none", *files)
    assert result.return_value == 0, result.output
    assert "largest batch that trains" in result.output
    (none,) = json.loads(Path("f.json").read_text())["found"]
    assert none["largest"] > 0
    assert none["fails"] == none["largest"] + 32
    assert abs(none["expected"] - none["largest"]) <= 32
    trials = read(Path("f.jsonl"))[1]
    assert {found.outcome for found in trials} == {COMPLETED, OUT_OF_MEMORY}
    assert {found.forecast["largest"] for found in trials} == {none["expected"]}
    assert len({found.forecast["beside_bytes"] for found in trials}) == 1
    assert Path("f.csv").read_text().count("\n") == 1 + sum(found.is_completed for found in trials)


def test_lms_trains_on_a_card_where_stock_does_not(targets: str) -> None:
    stock, planned = made(f"{targets}:coarse", *CARD, "--batch", "128", "--against", "planned,none")
    assert (stock.way, stock.outcome, planned.outcome) == ("none", OUT_OF_MEMORY, COMPLETED)
    assert "allocate memory" in stock.reason
    assert planned.limit_bytes == 40_000_000
    assert stock.forecast["demand_bytes"] == planned.demand_bytes


def test_what_may_be_rounded_in_another_way_is_asked_for_and_named(targets: str) -> None:
    target = (f"{targets}:rounding", "--inference", "--limit", "70MB", "--steps", "1", "--against", "planned")
    (exact,) = made(*target)
    assert exact.inexact == []
    refused = bench(*target, "--inexact", "-o", "r.jsonl")
    assert "holds results of another command" in str(refused.exception)
    Path("r.jsonl").unlink()
    result = bench(*target, "--inexact", "-o", "r.jsonl")
    (inexact,) = read(Path("r.jsonl"))[1]
    assert inexact.inexact == ["aten::addmm"]
    named = "NOT EXACT: pieces of aten::addmm may be rounded in another way"
    assert named in result.output
    assert CliRunner().invoke(group, ["report", "r.jsonl", "-o", "r.html"], standalone_mode=False).exception is None
    assert named in Path("r.html").read_text()


def test_what_a_kill_leaves_is_gone_on_with(targets: str) -> None:
    arguments = [f"{targets}:wide", "--sweep", "batch=1,2", "--against", "none", "--steps", "1"]
    command = [sys.executable, "-m", "torch_lms", "bench", *arguments, "-o", "r.jsonl"]
    file = Path("r.jsonl")
    same_machine = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=same_machine) as process:
        while process.poll() is None and (not file.exists() or file.read_bytes().count(b"\n") < 2):
            time.sleep(0.02)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(process.pid, signal.SIGKILL)
    assert len(read(file)[1]) == 1
    first = file.read_text()
    file.write_text(first + '{"way": "no')
    result = bench(*arguments, "-o", "r.jsonl")
    assert result.return_value == 0, result.output
    assert "its last line was cut off, and is dropped" in result.output
    assert "1 trials are known" in result.output
    assert file.read_text().startswith(first)
    assert [found.point["batch"] for found in read(file)[1]] == [1, 2]
    assert not [child for child in children if Path("/proc", child).exists()]  # a trial ends with its parent


def test_crashes_are_results_and_nothing_that_completes_is_a_failure(targets: str) -> None:
    killed = bench(f"{targets}:killed", "--against", "none", "-o", "killed.jsonl")
    assert killed.return_value == 1
    assert "none of 1 trials completed" in killed.output
    assert "The results are kept in" in killed.output
    (found,) = read(Path("killed.jsonl"))[1]
    assert (found.outcome, found.reason[:35]) == (CRASHED, "the process was ended by SIGKILL, a")
    assert bench(f"{targets}:raising", "--against", "none", "-o", "raising.jsonl").return_value == 1
    (found,) = read(Path("raising.jsonl"))[1]
    assert (found.outcome, found.reason) == (CRASHED, "ZeroDivisionError: of its own")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--find", "tokens"], "works on"),
        (["--sweep", "colour=1,2"], "expected --sweep NAME="),
        (["--against", "all"], "--against expects names of none, "),
        (["--as-card", "900TB"], "--as-card expects at most what this machine has"),
        (["--find", "size", "--sweep", "size=1,2"], "expected --find or --sweep; got both"),
        (["--set", "colour=3"], "takes size, batch, width, depth; got colour"),
        (["--limit", "much"], "--limit must be bytes"),
        (["-o", "-"], "-o expects a file"),
        (["--device", "abacus"], "--device expects one of"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(targets: str, arguments: list[str], said: str) -> None:
    result = bench(f"{targets}:wide", *arguments)
    assert result.return_value != 0
    assert said in (result.output + str(result.exception))


def test_a_target_without_that_dimension_is_refused(targets: str) -> None:
    result = bench(f"{targets}:killed", "--find", "depth")
    assert "cannot be cut down in depth" in str(result.exception)


def test_rates_and_points_of_other_dimensions(targets: str) -> None:
    trials = made(f"{targets}:wide", "--sweep", "depth=1,2", "--against", "none", "--steps", "1")
    points: list[Any] = [found.point for found in trials]
    assert points == [{"size": 64, "batch": 8, "depth": 1}, {"size": 64, "batch": 8, "depth": 2}]
