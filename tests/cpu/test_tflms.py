"""The policy "tflms2" as it runs: the settings of TFLMS's users give stock's bits, and move what `plan` says."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import same_bits
from click.testing import CliRunner
from nets import UNet3d
from torch import Tensor, nn
from traffic import fixed_speeds, one_thread

import torch_lms
from torch_lms.cli import run
from torch_lms.cli.main import group
from torch_lms.machine import Disk, load, text_of
from torch_lms.planner import tflms
from torch_lms.runtime import api, options
from torch_lms.runtime.stats import Stats

LIMIT = 9_600_000
"""0.57 of the demand in pages of 1 MiB and more. The largest operation needs 5 MB."""

WARM_UP, STEPS = 3, 2

MOST = {"swapout_threshold": 1, "swapin_ahead": 1}
SETTINGS: dict[str, dict[str, int]] = {
    "auto": {},
    "most": MOST,
    "few": {"swapout_threshold": 60, "swapin_ahead": 3},
    "version 1, all": {"n_tensors": -1, "lb": 1},
    "version 1, eight": {"n_tensors": 8, "lb": 5},
}
"""Those of a study of how TFLMS was used; the sixth of it is "planned"."""

SYNC = {f"sync_mode {mode}": {**MOST, "sync_mode": mode} for mode in (1, 2, 3)}


def network(size: int = 32) -> tuple[nn.Module, tuple[Tensor], Callable[[Tensor], Tensor]]:
    """As a target of ``torch-lms plan``."""
    return UNet3d(8), (torch.ones(1, 1, size, size, size),), lambda outputs: outputs.square().mean()


def training() -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(0)
    model, (x,), loss = network()
    update = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> Tensor:
        found = loss(model(x))
        found.backward()
        update.step()
        update.zero_grad()
        return found.detach()

    return model, step


@cache
def stock() -> list[Tensor]:
    model, step = training()
    with one_thread():
        return [*(step() for _ in range(WARM_UP + STEPS)), *model.state_dict().values()]


def ran(tune: Mapping[str, Any] | None, policy: str = "tflms2") -> Stats:
    """Figures of ``STEPS`` steps; they and those before give stock's bits."""
    model, step = training()
    with one_thread(), fixed_speeds(), torch_lms.session(LIMIT, policy=policy, tune=tune) as lms:
        results = [step() for _ in range(WARM_UP)]
        lms.reset_stats()
        results += [step() for _ in range(STEPS)]
        stats = lms.stats()
        lms.validate()
    assert same_bits([*results, *model.state_dict().values()], stock())
    assert stats.planned_steps == stats.steps == STEPS
    assert stats.policy == policy
    assert stats.recomputes == 0 or policy == "planned"
    assert stats.peak_resident_bytes <= LIMIT
    return stats


@cache
def ran_with(name: str) -> Stats:
    """The same, of a setting by its name."""
    return ran(None, "planned") if name == "ours" else ran({**SETTINGS, **SYNC}[name])


def told(folder: Path, tune: Mapping[str, int]) -> dict[str, Any]:
    """What ``torch-lms plan`` says of a machine whose disk takes no time."""
    fast = replace(load("ac922-v100-16gb"), gpus=1, sockets=1, link=None, switch=None, disk=Disk(1e15, 1e15, 1 << 40))
    (folder / "fast.toml").write_text(text_of(fast))
    arguments = ["plan", f"{__file__}:network", "--machine", str(folder / "fast.toml"), "--limit", str(LIMIT)]
    arguments += ["--policy", "tflms2", *(f"--tune={name}={value}" for name, value in tune.items())]
    result = CliRunner().invoke(group, [*arguments, "--json", str(folder / "plan.json")])
    assert result.exit_code == 0, result.output or result.exception
    (found,) = json.loads((folder / "plan.json").read_text())
    return dict(found)


@pytest.mark.parametrize("name", [*SETTINGS, *SYNC])
def test_steps_equal_stock_and_move_to_the_byte_what_the_plan_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What leaves is the same always. What comes back is, if the program waits for copies out, or Python sees every
    operation: the native interposer frees a page whose copy has ended only at the plan's next move, and one that is
    needed before is not fetched.
    """
    tune = {**SETTINGS, **SYNC}[name]
    expected = told(tmp_path, tune)
    stats = ran_with(name)
    assert stats.evicted_bytes == STEPS * expected["d2h_bytes"] > 0
    if tune.get("sync_mode") not in (1, 3):
        assert stats.fetched_bytes <= STEPS * expected["h2d_bytes"]
        monkeypatch.setenv("TORCH_LMS_INTERPOSER", "python")
        stats = ran(tune)
    assert stats.evicted_bytes == STEPS * expected["d2h_bytes"]
    assert stats.fetched_bytes == STEPS * expected["h2d_bytes"] > 0


def test_threshold_1_and_ahead_1_move_most() -> None:
    moved = {name: ran_with(name).evicted_bytes for name in ("ours", *SETTINGS)}
    assert max(moved, key=moved.__getitem__) == "most"
    assert min(moved, key=moved.__getitem__) == "ours"
    assert moved["most"] > 1.5 * moved["auto"]


def test_the_process_beside_the_program_makes_such_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_LMS_PLANNING", raising=False)
    monkeypatch.setattr("torch_lms.engine.PlanCache._pays", lambda *_: True)
    _, step = training()
    with one_thread(), torch_lms.session(LIMIT, policy="tflms2", tune={**MOST, "sync_mode": 1}) as lms:
        for _ in range(3):
            step()
        (backend,) = lms._session._table.backends
        assert backend.plans is not None
        backend.plans.wait()
        step()
        plan = lms.plan()
        assert lms.stats().planned_steps == 1
    assert plan.waits_for_evictions
    assert sum(map(len, plan.evicts)) > 10
    assert not plan.recomputations


def test_where_all_fits_nothing_moves() -> None:
    _, step = training()
    with one_thread(), torch_lms.session("17MB", policy="tflms2", tune=MOST) as lms:
        for _ in range(4):
            step()
        assert lms.stats().evicted_bytes == 0


def test_what_was_chosen_is_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "chosen.json"
    ran({"autotune_plan": file})
    (chosen,) = json.loads(file.read_text())["steps"].values()
    assert chosen.keys() == {"limit", *tflms.Chosen._fields}
    monkeypatch.setattr(tflms, "_search", None)  # nothing is chosen anew
    assert ran({"autotune_plan": str(file)}).evicted_bytes == ran_with("auto").evicted_bytes
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"swapout": 1}, "tune takes swapout_threshold, .*; got 'swapout'"),
        ({"ssg_n_tensors": 1}, "got 'ssg_n_tensors'"),
        ({"swapout_threshold": 0}, "swapout_threshold must be at least 1, or -1 to have it chosen; got 0"),
        ({"swapin_groupby": -2}, "swapin_groupby must be at least 0"),
        ({"swapin_ahead": 1.5}, "swapin_ahead must be a whole number; got 1.5"),
        ({"swapin_ahead": True}, "swapin_ahead must be a whole number; got True"),
        ({"sync_mode": 4}, "sync_mode must be from 0 to 3; got 4"),
        ({"n_tensors": -2}, "n_tensors must be at least -1"),
        ({"lb": 5, "ub": 4}, "ub must be at least lb"),
        ({"n_tensors": 3, "swapin_ahead": 1}, "n_tensors is of TFLMS 1, swapin_ahead of TFLMS 2"),
        ({"autotune_plan": 3}, "autotune_plan must be the path of a file; got 3"),
        ({"autotune_plan": "/no/such/folder/file"}, "a directory that can be written"),
        ({"autotune_plan": __file__}, "expected a 'torch-lms autotuned plan'"),
        ([("lb", 1)], "tune takes values by name"),
    ],
)
def test_what_makes_no_sense_is_refused(tune: Any, message: str) -> None:
    with pytest.raises(torch_lms.UsageError, match=message):
        torch_lms.enable(policy="tflms2", tune=tune)
    assert not torch_lms.is_enabled()


def test_other_policies_have_no_tunables() -> None:
    with pytest.raises(torch_lms.UsageError, match='tune is for the policy "tflms2"'):
        torch_lms.enable(tune={"lb": 1})


def test_serialization_has_no_meaning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "torch_lms"):
        torch_lms.enable(policy="tflms2", tune={"serialization": ["3:5"], "swapout_threshold": -1})
        torch_lms.disable()
    assert caplog.text.count("serialization has no meaning here") == 1


def test_a_script_runs_with_tunables(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, torch_lms.runtime.api as api\n"
        "options = api.current_session().options\n"
        "print(options.policy, options.make_plan.keywords['tunables'].lb)\n"
    )
    command = [sys.executable, "-m", "torch_lms", "run", "--policy", "tflms2", "--tune", "lb=3", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.stdout == "tflms2 3\n", ended.stderr
    refused = CliRunner().invoke(group, ["run", "--policy", "tflms2", "--tune", "lb=0", str(script)])
    assert "lb must be at least 1" in str(refused.exception)
    assert set(run.POLICIES) == set(options.POLICIES)


def test_a_script_that_adopts_a_session_is_told_that_its_policy_stays(caplog: pytest.LogCaptureFixture) -> None:
    api.enable_for_script(limit="1GB")
    with caplog.at_level(logging.WARNING, "torch_lms"):
        torch_lms.enable(policy="tflms2", tune=MOST)
    torch_lms.disable()
    assert "give torch-lms run --policy and --tune" in caplog.text
