"""A sample of the sweep over roads to bytes (the whole: ``python -m tests.roads``)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.roads.judge import Case, all_cases, judge
from tests.roads.report import failure
from tests.roads.roads import Road, all_roads
from tests.roads.states import STATES
from torch_lms.capture import raw

ROOT = Path(__file__).parents[2]


def test_the_roads_are_found() -> None:
    roads = set(map(str, all_roads()))
    assert len(roads) > 2000
    assert {"Tensor.__array__", "Tensor.grad", "UntypedStorage.tolist", "torch.asarray", "protocol.np.save"} <= roads
    assert len(all_cases()) == len(roads) * len(STATES)


@pytest.mark.timeout(600)
def test_a_sample_equals_stock(tmp_path: Path) -> None:
    """In processes of their own: a road that is not patched may crash."""
    output = tmp_path / "calls.json"
    command = [sys.executable, "-m", "tests.roads", "--every", "150", "--json", str(output)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    calls = [json.loads(line) for line in output.read_text().splitlines()]
    assert {call["state"] for call in calls} == set(STATES)
    assert sum(call["verdict"] == "equal" for call in calls) > 2000
    assert run.returncode == 0, run.stdout[-20_000:]


@pytest.mark.filterwarnings("ignore")
def test_a_road_that_is_not_patched_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(Road("Tensor", "tolist"), STATES["away"])
    assert judge(case)[0].verdict == "equal"
    monkeypatch.setitem(raw._READ, torch.Tensor, ("__repr__",))
    call = judge(case)[0]
    assert call.verdict == "differs"
    assert "unallocated storage" in failure(case, call)


@pytest.mark.filterwarnings("ignore")
def test_a_write_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is taken for clean though it was written: nothing crashes, and the content is an old one."""
    case = Case(Road("protocol", "_set_from_file"), STATES["fetched"])
    assert [call.verdict for call in judge(case)] == ["equal"]
    monkeypatch.setitem(raw._WRITTEN_AS_BYTES, torch.UntypedStorage, ())
    call = judge(case)[0]
    assert call.verdict == "differs"
    assert "the tensor" in failure(case, call)
