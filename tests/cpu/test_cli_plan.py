"""`torch-lms plan`: answers, and what it says where there is none."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from torch_lms.cli.main import group
from torch_lms.cli.plan_target import Setting, find, trace
from torch_lms.machine import Disk, load, text_of
from torch_lms.planner import POLICIES

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "own_model.py") + ":segmenter"
KEYS = {
    *("machine", "gpus", "demand_bytes", "limit_bytes", "largest_op_bytes", "fits_without", "fits_with", "host_bytes"),
    *("step_s", "step_s_unlimited", "overhead", "data_rate", "gpu_use", "link_use", "d2h_bytes", "h2d_bytes"),
    *("d2h_bytes_per_s", "h2d_bytes_per_s", "recomputed_bytes", "ideal_step_s", "efficiency", "step_s_low"),
    *("step_s_high", "binding_op", "policy"),
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
    assert found["step_s"] == found["step_s_unlimited"] > found["ideal_step_s"] > 0
    assert found["step_s_low"] < found["step_s"] < found["step_s_high"]
    assert found["data_rate"] == pytest.approx(2 * 512**2 / found["step_s"])


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


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_answers(policy: str, tmp_path: Path) -> None:
    (found,) = asked(tmp_path, EXAMPLE, "--size", "2048", "--batch", "4", "--machine", V100, "--policy", policy)
    assert found["policy"] == policy
    assert found["fits_with"] is (policy != "none")
    assert found["overhead"] > -1e-9


def test_blocks_made_again_need_less() -> None:
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
    for told in ("fits without LMS", "limit / W", "overhead", "alive at the peak", "Fits with LMS, at"):
        assert told in result.output


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
