"""`torch-lms plan`: answers, and what it says where there is none."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests import plan_starts
from torch_lms.cli import plan_validate
from torch_lms.cli.main import group
from torch_lms.cli.plan_cases import Case
from torch_lms.machine import Disk, calibration_for, load, text_of
from torch_lms.planner import POLICIES
from torch_lms.targets import Setting, find, trace

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "own_model.py") + ":segmenter"
KEYS = {
    *("machine", "gpus", "demand_bytes", "limit_bytes", "largest_op_bytes", "fits_without", "fits_with", "host_bytes"),
    *("step_s", "step_s_unlimited", "overhead", "data_rate", "gpu_use", "link_use", "d2h_bytes", "h2d_bytes"),
    *("d2h_bytes_per_s", "h2d_bytes_per_s", "recomputed_bytes", "ideal_step_s", "efficiency", "step_s_low"),
    *("step_s_high", "binding_op", "policy", "interposer", "host_work_s", "host_wait", "host_wait_unlimited"),
    *("is_host_bound", "is_host_bound_unlimited"),
}
V100 = "ac922-v100-16gb"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(group, ["plan", *arguments])


def asked(tmp_path: Path, *arguments: str) -> list[dict[str, Any]]:
    target = tmp_path / "plan.json"
    result = run(*arguments, "--json", str(target))
    assert result.exit_code == 0, result.output or result.exception
    found: list[dict[str, Any]] = json.loads(target.read_text())
    return found


def test_what_fits_needs_nothing(tmp_path: Path) -> None:
    (found,) = asked(tmp_path, EXAMPLE, "--machine", V100)
    assert found.keys() >= KEYS
    assert found["fits_without"] is found["fits_with"] is True
    assert found["overhead"] == found["host_bytes"] == found["d2h_bytes"] == 0
    assert found["step_s"] == pytest.approx(found["step_s_unlimited"])
    assert found["step_s"] > found["ideal_step_s"] > 0
    assert found["step_s_low"] < found["step_s"] < found["step_s_high"]
    assert found["data_rate"] == pytest.approx(2 * 512**2 / found["step_s"])


def test_a_step_in_which_nothing_is_large_enough_to_move(tmp_path: Path) -> None:
    """It is refused in words. The largest batch is found from there."""
    body = "return torch.nn.Linear(4, 4), (torch.ones(batch, 4),)"
    (tmp_path / "tiny.py").write_text(f"import torch\ndef tiny(batch=1): {body}")
    target = f"{tmp_path / 'tiny.py'}:tiny"
    assert "none of this one is, so it fits as it is" in str(run(target, "--machine", V100).exception)
    (found,) = asked(tmp_path, target, "--machine", V100, "--max", "batch")
    assert found["max_without"] > 1_000_000


def test_a_step_takes_as_long_as_its_samples_take_the_host(tmp_path: Path) -> None:
    """Two samples of 10 s each, by two cores."""
    (found,) = asked(tmp_path, EXAMPLE, "--machine", V100, "--loading", "10", "--workers", "2", "--on-host", "1")
    assert found["step_s"] == found["step_s_unlimited"] == pytest.approx(10)
    assert 1 < found["host_part_s"] < 10


def test_what_does_not_fit_moves_and_a_faster_link_moves_it_faster(tmp_path: Path) -> None:
    machines = f"{V100},dgx-station-v100-16gb"
    nvlink, pcie = asked(tmp_path, EXAMPLE, "--size", "2048", "--batch", "4", "--machine", machines)
    for found in (nvlink, pcie):
        assert (found["fits_without"], found["fits_with"]) == (False, True)
        assert found["d2h_bytes"] + found["recomputed_bytes"] > 0
        assert found["demand_bytes"] > found["limit_bytes"] > found["largest_op_bytes"]
    assert 0 <= nvlink["overhead"] < pcie["overhead"]


def test_where_the_program_makes_the_copies_they_take_its_time(tmp_path: Path) -> None:
    """As on a CPU, whose memory is the device's: one link, the disk's."""
    machine = tmp_path / "cpu.toml"
    alone = replace(load(V100), gpus=1, sockets=1, link=None, switch=None, disk=Disk(1e9, 1e9, 1 << 40))
    machine.write_text(text_of(alone))
    (found,) = asked(tmp_path, EXAMPLE, "--machine", str(machine), "--limit", "100MB", "--policy", "planned-moves")
    copied_s = (found["d2h_bytes"] + found["h2d_bytes"]) / 1e9
    assert copied_s > 0
    assert found["step_s"] >= found["step_s_unlimited"] + copied_s * 0.999


def test_a_timeline_of_what_is_simulated(tmp_path: Path) -> None:
    target = tmp_path / "t.json"
    (found,) = asked(tmp_path, EXAMPLE, "--machine", V100, "--limit", "100MB", "--timeline", str(target))
    events = json.loads(target.read_text())["traceEvents"]
    (out,) = [event["tid"] for event in events if event["name"] == "thread_name" and event["args"]["name"] == "out"]
    copied = [event["args"]["bytes"] for event in events if event["ph"] == "X" and event["tid"] == out]
    assert sum(copied) == found["d2h_bytes"] > 0


def test_small_operations_are_bound_by_a_host_that_is_interposed_in_python(tmp_path: Path) -> None:
    arguments = (EXAMPLE, "--size", "256", "--machine", "h200-141gb-pcie5")
    (auto,) = asked(tmp_path, *arguments)
    native, python = asked(tmp_path, *arguments, "--interposer", "both")
    assert auto == native
    assert (native["interposer"], python["interposer"]) == ("native", "python")
    assert native["step_s_unlimited"] == python["step_s_unlimited"] <= native["step_s"] < python["step_s"]
    assert native["host_wait"] < python["host_wait"]
    assert python["is_host_bound"]
    assert "Bound by the host" in python["advice"]

    (tight,) = asked(tmp_path, *arguments, "--interposer", "python", "--limit", "20MB")
    assert tight["host_work_s"] > python["host_work_s"]  # room is short, and pages move

    shown = run(*arguments, "--interposer", "both")
    for told in ("interposer", "native", "python", "bound by the host", "host's work"):
        assert told in shown.output
    refused = run(*arguments, "--interposer", "both", "--timeline", str(tmp_path / "t.json"))
    assert "--timeline expects one interposer" in refused.output


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_answers(policy: str, tmp_path: Path) -> None:
    (found,) = asked(tmp_path, EXAMPLE, "--size", "2048", "--batch", "4", "--machine", V100, "--policy", policy)
    assert found["policy"] == policy
    assert found["fits_with"] is (policy != "none")
    assert found["overhead"] is None if policy == "none" else found["overhead"] > -1e-9


def test_blocks_recomputed_need_less() -> None:
    setting = Setting(size=64, batch=2)
    target = find("resnet50")
    stock = trace("resnet50", target, setting).trace
    again = trace("resnet50", target, Setting(size=64, batch=2, checkpoints=True)).trace
    assert len(again.ops) > len(stock.ops)


def test_the_timeline_shows_the_exchange_between_ranks(tmp_path: Path) -> None:
    target = tmp_path / "t.json"
    ranks = ("--gpus", "2", "--batch", "4", "--machine", V100, "--limit", "100MB", "--timeline", str(target))
    (found,) = asked(tmp_path, EXAMPLE, *ranks)
    done = [event for event in json.loads(target.read_text())["traceEvents"] if event["ph"] == "X"]
    (exchange,) = [event for event in done if event["name"] == "all-reduce"]
    step_s = (max(e["ts"] + e["dur"] for e in done) - min(e["ts"] for e in done)) / 1e6
    assert exchange["ts"] + exchange["dur"] == pytest.approx(step_s * 1e6)
    assert step_s == pytest.approx(found["step_s"], rel=0.01)


def test_ranks_share_batch_and_links_and_exchange_gradients(tmp_path: Path) -> None:
    size = ("--size", "2048", "--machine", V100)
    (alone,) = asked(tmp_path, EXAMPLE, *size, "--batch", "2")
    (four,) = asked(tmp_path, EXAMPLE, *size, "--batch", "8", "--gpus", "4")
    assert four["gpus"] == 4
    assert four["demand_bytes"] == alone["demand_bytes"]
    assert alone["step_s"] < four["step_s"]
    assert alone["data_rate"] < four["data_rate"] < 4 * alone["data_rate"]


@pytest.mark.parametrize("what", ["size", "batch"])
def test_the_largest(what: str, tmp_path: Path) -> None:
    arguments = (EXAMPLE, "--size", "1024", "--batch", "2", "--machine", V100)
    (found,) = asked(tmp_path, *arguments, "--max", what)
    assert found["max_with"] > found["max_without"] > 0
    assert found["factor"] == pytest.approx(found["max_with"] / found["max_without"])
    assert found["fits_with"]
    values = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    (without,) = asked(tmp_path, EXAMPLE, *_flat(values | {f"--{what}": str(found["max_without"])}))
    (beyond,) = asked(tmp_path, EXAMPLE, *_flat(values | {f"--{what}": str(int(found["max_without"] * 1.02) + 1)}))
    assert (without["fits_without"], beyond["fits_without"]) == (True, False)


SEARCHED = """
import torch
from torch import nn

MIB = 1 << 18  # numbers

class Made(nn.Module):  # a few operations, whatever they need
    def __init__(self, kept, largest):
        super().__init__()
        self.kept, self.largest = int(kept * MIB) // 4, int(largest * MIB)

    def forward(self, x):
        kept = [x.expand(self.kept) * n for n in range(4)]
        wide = x.expand(self.largest).clone()
        return sum(page.mean() for page in kept) + wide.mean()

def made(kept, largest):  # MiB: of pages that wait, and of one beside them
    return Made(kept, largest), (torch.ones(1),)

def root(size=50):  # grows slowly
    return made(8 * size ** 0.5, 1 + 2 * size ** 0.5)

def steep(size):
    return made(size ** 2 / 1000, 1 + size ** 3 / 1e6)

def constant(size):  # beside much that is always there
    return made(30 + size / 100, 20 + size / 50)

def bump(size=100):
    return made(size / 50, size / 60 + (40 if 1000 <= size < 1400 else 0))

def between(size=500):
    if not 300 <= size <= 1100:
        raise ValueError(f"no size of {size}")
    return made(size / 30, size / 40)

def table(size):  # of so many positions
    if size > 777:
        raise ValueError("too long")
    return made(4, 1)

def granule(size=480):
    if size % 48:
        raise ValueError("no multiple of 48")
    return made(size / 30, size / 60)

def by_four(batch=4):
    if batch % 4 or batch < 8:
        raise ValueError("four micro-batches of two at least")
    return made(batch, batch / 3)

def same(size):
    return made(4, 3)

def never(size):
    return made(4000, 1000)
"""
SMALL = 40 * 1024**2
"""What the device of ``small_machine`` has for tensors."""


@pytest.fixture
def small_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of one, beside the targets above: they need MiB, so that tracing them takes no time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SEARCHED)
    there = load(V100)
    accelerator = replace(there.accelerator, memory_bytes=SMALL, reserved_bytes=0)
    (tmp_path / "small.toml").write_text(text_of(replace(there, accelerator=accelerator)))
    return "small.toml"


@pytest.mark.parametrize(
    ("target", "what", "without", "with_lms", "starts"),
    [
        ("root", "size", 14, 350, (1, 13, 50, 333, 5000)),
        ("steep", "size", 178, 334, (3, 100, 190, 700, 9999)),
        ("constant", "size", 0, 922, (1, 50, 800, 900, 33_333)),
        ("bump", "size", 998, 2304, (1, 64, 1000, 1200, 1399, 20_000)),
        ("between", "size", 658, 1100, (1, 300, 500, 1100, 4000)),
        ("table", "size", 776, 776, (1, 500, 777, 5000)),
        ("granule", "size", 768, 2304, (48, 100, 480, 96 * 48)),
        ("by_four", "batch", 28, 112, (1, 8, 12, 44, 1000)),
    ],
)
def test_one_answer_from_any_start(
    target: str, what: str, without: int, with_lms: int, starts: tuple[int, ...], tmp_path: Path, small_machine: str
) -> None:
    search = (f"mine.py:{target}", "--inference", "--max", what, "--machine", small_machine)
    found = [asked(tmp_path, *search, f"--{what}", str(start))[0] for start in starts]
    assert {(one["max_without"], one["max_with"]) for one in found} == {(without, with_lms)}
    assert all(one["fits_with"] for one in found)


@pytest.mark.parametrize(("workload", "machine"), [("gpt", "rtx4090-24gb"), ("resnet50", "ac922-v100-32gb")])
def test_one_answer_of_workloads(workload: str, machine: str) -> None:
    """A sample of `python -m tests.plan_starts`."""
    (row,) = plan_starts.rows("size", [workload], [machine], starts=3)
    assert row.is_one, row


def test_a_search_without_a_start_begins_at_the_targets_own(tmp_path: Path, small_machine: str) -> None:
    (found,) = asked(tmp_path, "mine.py:root", "--inference", "--max", "size", "--machine", small_machine)
    assert found["max_with"] == 350
    result = run("mine.py:steep", "--inference", "--max", "size", "--machine", small_machine)
    assert "--max size needs a --size to begin with" in str(result.exception)


def test_what_has_no_largest_size(small_machine: str) -> None:
    search = ("--inference", "--max", "size", "--size", "10", "--machine", small_machine)
    assert "fits with" in str(run("mine.py:same", *search).exception)
    assert "does not fit on small at any size: even 1 needs more" in str(run("mine.py:never", *search).exception)


def test_where_the_host_is_small_the_answer_fits_it(tmp_path: Path, small_machine: str) -> None:
    """Of what is copied down there is more at once than must leave, which only the simulation knows."""
    there = load(small_machine)
    (tmp_path / "little.toml").write_text(text_of(replace(there, host_bytes=20 << 20)))
    search = ("mine.py:between", "--inference", "--max", "size")
    found = [asked(tmp_path, *search, "--size", str(n), "--machine", "little.toml")[0] for n in (300, 700, 1100)]
    assert all(one["fits_with"] for one in found)
    assert len({one["max_with"] for one in found}) == 1
    assert found[0]["max_without"] <= found[0]["max_with"] < 1100


@pytest.mark.parametrize("policy", ["none", "checkpoint"])
def test_where_nothing_moves_the_largest_is_what_fits_as_it_is(policy: str, tmp_path: Path, small_machine: str) -> None:
    (found,) = asked(
        tmp_path, "mine.py:root", "--inference", "--max", "size", "--machine", small_machine, "--policy", policy
    )
    assert found["max_with"] == found["max_without"] == 14
    assert found["fits_with"]


def test_limit_0_is_what_it_is_at_run_time(tmp_path: Path) -> None:
    arguments = (EXAMPLE, "--machine", V100, "--policy", "planned-moves")
    (none,) = asked(tmp_path, *arguments, "--limit", "0")
    (little,) = asked(tmp_path, *arguments, "--limit", "400MB")
    assert (none["fits_with"], none["limit_bytes"]) == (True, 0)
    assert none["d2h_bytes"] > little["d2h_bytes"] > 0
    assert none["link_use"] > 0
    assert none["d2h_bytes_per_s"] > 0


def test_what_was_not_simulated_is_null_for_programs_and_a_dash_for_people(tmp_path: Path) -> None:
    arguments = (EXAMPLE, "--size", "2048", "--batch", "4", "--machine", V100, "--policy", "none")
    lasting = ("--epochs", "10", "--samples", "1000")
    (found,) = asked(tmp_path, *arguments, *lasting)
    known = {key for key, value in found.items() if value is not None}
    assert known == {
        *("machine", "gpus", "policy", "demand_bytes", "limit_bytes", "largest_op_bytes", "binding_op"),
        *("fits_without", "fits_with", "step_s_unlimited", "ideal_step_s", "advice"),
        *("host_wait_unlimited", "is_host_bound_unlimited"),
    }
    assert found.keys() >= KEYS | {"epoch_s", "total_h"}
    rows = [line for line in run(*arguments, *lasting).output.splitlines() if line.endswith(" -")]
    assert len(rows) == 18
    (fits,) = asked(tmp_path, EXAMPLE, "--machine", V100)
    assert fits["d2h_bytes"] == fits["link_use"] == 0
    assert fits["d2h_bytes_per_s"] is fits["h2d_bytes_per_s"] is None


def test_what_does_not_fit_comes_last_and_has_no_timeline(tmp_path: Path) -> None:
    step = (EXAMPLE, "--size", "2048", "--batch", "4", "--policy", "none")
    both = asked(tmp_path, *step, "--compare", "--machine", f"{V100},h200-141gb-pcie5")
    assert [found["fits_with"] for found in both] == [True, False]
    result = run(*step, "--machine", V100, "--timeline", str(tmp_path / "t.json"))
    assert "no timeline: Does not fit without LMS" in result.output


def _flat(values: dict[str, str]) -> list[str]:
    return [part for pair in values.items() for part in pair]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_kinds_of_numbers(dtype: str, tmp_path: Path) -> None:
    (single,) = asked(tmp_path, "googlenet", "--size", "224", "--batch", "8", "--machine", V100)
    (other,) = asked(tmp_path, "googlenet", "--size", "224", "--batch", "8", "--machine", V100, "--dtype", dtype)
    factor = 2 if dtype == "float64" else 0.5
    assert other["demand_bytes"] == pytest.approx(factor * single["demand_bytes"], rel=0.15)


def test_hours_in_all(tmp_path: Path) -> None:
    (found,) = asked(tmp_path, EXAMPLE, "--machine", V100, "--epochs", "10", "--samples", "1000")
    assert found["epoch_s"] == pytest.approx(500 * found["step_s"])
    assert found["total_h"] == pytest.approx(10 * found["epoch_s"] / 3600)


def test_for_people() -> None:
    result = run(EXAMPLE, "--size", "2048", "--batch", "4", "--machine", V100, "--compare")
    assert result.exit_code == 0
    for told in ("fits without LMS", "limit / W", "overhead", "alive at the peak", "Fits with LMS"):
        assert told in result.output
    for label in ("working set (W)", "evicted, a step", "fetched, a step", "recomputed, a step"):
        assert label in result.output


MODULE = """
from collections import UserDict

import torch
from torch import nn

class Branches(nn.Linear):
    def forward(self, x):
        x = super().forward(x)
        return x if bool(x.sum() > 0) else -x

def raises(size=4):
    raise ValueError("no such net")

def branches():
    return Branches(3, 3), (torch.ones(2, 3),)

def nothing():
    return 3

def mismatch():
    return nn.Linear(3, 3), (torch.ones(2, 4),)

def keywords(kind):
    data = {"input": torch.ones(2, 3, 64, 64)}
    kinds = {"dict": data, "mapping": UserDict(data), "tuple": tuple(data.values())}
    return nn.Conv2d(3, 64, 3), kinds[kind]

number = 3
"""


@pytest.mark.parametrize(
    ("target", "arguments", "message"),
    [
        ("deeplab", (), "there is no workload 'deeplab' (did you mean deeplabv3plus?)"),
        ("nowhere.at_all:f", (), "cannot import 'nowhere.at_all': no module 'nowhere'"),
        ("nowhere.py:f", (), "there is no file nowhere.py"),
        ("mine.py:raise", (), "mine.py has no 'raise'; did you mean raises?"),
        ("mine.py:number", (), "mine.py:number is int: expected a function"),
        ("mine.py:raises", (), "mine.py:raises raised ValueError: no such net (at"),
        ("mine.py:raises", ("--batch", "2"), "mine.py:raises takes size; got batch"),
        ("mine.py:branches", (), "the step depends on values"),
        ("mine.py:nothing", (), "mine.py:nothing returned int: expected a function"),
        ("mine.py:mismatch", (), "mine.py:mismatch raised RuntimeError"),
        ("broken.py:f", (), "importing 'broken.py' failed: SyntaxError"),
        ("resnet50", ("--size", "3"), "resnet50 needs a size of at least"),
        ("resnet50", ("--set", "colour=red"), "resnet50 takes size, batch"),
        ("resnet50", ("--set", "colour"), "--set takes NAME=VALUE; got 'colour'"),
        ("resnet50", ("--optimizer", "sdg"), "optimizer must be one of torch.optim"),
        ("resnet50", ("--machine", "ac922"), "ac922"),
        ("resnet50", ("--gpus", "5", "--batch", "5"), "has 4 GPU(s)"),
        ("resnet50", ("--gpus", "4", "--batch", "6"), "batch is over all GPUs: expected a multiple of 4; got 6"),
        ("resnet50", ("--limit", "lots"), "--limit must be"),
        ("resnet50", ("--epochs", "3"), "--epochs and --samples belong together"),
        ("resnet50", ("--machine", "a,b", "--timeline", "t.json"), "--timeline expects one machine; got a,b"),
        (EXAMPLE, ("--timeline", "t.json"), "no timeline: nothing was moved; give a smaller --limit"),
    ],
)
def test_bad_questions(
    target: str, arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    machine = () if "--machine" in arguments else ("--machine", V100)
    result = run(target, *arguments, *machine)
    assert result.exit_code != 0
    told = f"{result.output} {result.exception}"
    assert message in " ".join(told.split())
    assert "Traceback" not in result.output


def test_inputs_by_keyword(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    by_dict, by_mapping, by_place = (
        asked(tmp_path, "mine.py:keywords", "--set", f"kind={kind}", "--machine", V100)
        for kind in ("dict", "mapping", "tuple")
    )
    assert by_dict == by_mapping == by_place
    assert by_dict[0]["demand_bytes"] > 0


def test_no_step_is_told_of_what_does_not_fit() -> None:
    result = run(EXAMPLE, "--size", "2048", "--batch", "4", "--machine", V100, "--policy", "none")
    rows = dict(
        line.rsplit(maxsplit=1) for line in result.output.splitlines() if line.startswith(("step ", "overhead "))
    )
    assert rows == {"step": "-", "overhead": "-"}
    assert "Does not fit without LMS" in result.output


def test_this_machine_has_to_be_measured_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    result = run("resnet50")
    assert "run `torch-lms doctor --calibrate`" in str(result.exception)


SMALL_STEP = Case("resnet50", Setting(size=64, batch=2, options={"model": "resnet18"}, optimizer="sgd", device="cpu"))


def test_validation_measures_memory_even_where_time_was_never_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(plan_validate, "MEMORY", (SMALL_STEP,))
    target = tmp_path / "v.json"
    result = run("--validate", "--json", str(target))
    assert result.exit_code == 0, result.output or result.exception
    assert "| resnet50, resnet18, 64, batch 2, sgd | " in result.output
    assert "error: median 0.0 %, worst 0.0 %, 1 cases" in result.output
    assert "Time: omitted" in result.output
    found = json.loads(target.read_text())
    (compared,) = found["demand_bytes"]
    assert compared["predicted"] == compared["measured"] > 0
    assert found["stock_s"] == found["planned_s"] == []


def test_validation_compares_times_with_and_without_lms(monkeypatch: pytest.MonkeyPatch) -> None:
    there = replace(load(V100), gpus=1, sockets=1, link=None, switch=None, disk=Disk(1e9, 1e9, 1 << 40))
    here = there, calibration_for(there.accelerator)
    monkeypatch.setattr("torch_lms.runtime.calibrate.this_machine", lambda: here)
    monkeypatch.setattr(plan_validate, "MEMORY", ())
    monkeypatch.setattr(plan_validate, "TIME", (SMALL_STEP,))
    monkeypatch.setattr(plan_validate, "_WARM_UP", 0)
    monkeypatch.setattr(plan_validate, "_STEPS", 1)
    shown = " ".join(run("--validate").output.split())
    assert "Time: a step here, stock" in shown
    assert "Time: a step here, planned, demand/2" in shown
    assert shown.count("| resnet50, resnet18, 64, batch 2, sgd | ") == 2


def test_pieces_that_may_be_rounded_in_another_way_are_forecast_if_asked_for(tmp_path: Path) -> None:
    body = "return torch.nn.Linear(40_000, 40_000, bias=False), (torch.empty(40_000, 40_000),)"
    (tmp_path / "large.py").write_text(f"import torch\ndef large(): {body}")
    given = (f"{tmp_path}/large.py:large", "--machine", "rtx3060-12gb", "--inference", "--limit", "9GB")
    (exact,) = asked(tmp_path, *given)
    (inexact,) = asked(tmp_path, *given, "--inexact")
    assert "aten::mm alone needs" in exact["advice"]
    assert inexact["fits_with"]
    assert "MAY BE ROUNDED" in inexact["advice"]
