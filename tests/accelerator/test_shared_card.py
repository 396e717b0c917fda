"""A card that others use, too, and devices of a kind that we do not know: a clear message, and nothing lost."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import torch_lms
from tests import accelerator
from torch_lms.errors import DeviceFullError, UsageError, WorkingSetError

MIB = 1 << 20
UNKNOWN = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1, current_device=lambda: 0)
"""What PyTorch itself asks of the module of a device, and no more."""


def full(count: int, value: float, device: torch.device) -> torch.Tensor:
    return torch.full((count,), float(value), device=device)


def leave(nbytes: int, module: ModuleType) -> None:
    """Others take all but ``nbytes`` of what this process does not have now."""
    module.empty_cache()
    module.set_taken(accelerator.CAPACITY - module.memory_reserved() - nbytes)


@pytest.mark.parametrize("limit", ["auto", "1GB"])
def test_others_take_memory_while_we_run(limit: str, module: ModuleType, device: torch.device) -> None:
    """LMS had promised more than is left: it finds out, makes do with less, and takes more once it is free again."""
    with torch_lms.session(limit=limit) as lms:
        tensors = [full(4 * MIB, n, device) for n in range(8)]  # 128 MiB
        for tensor in tensors:
            tensor.add_(1)
        assert lms.stats().evictions == 0
        leave(0, module)
        more = [full(4 * MIB, 10 * n, device) for n in range(4)]
        for tensor in (*tensors, *more):
            tensor.mul_(2)
        assert lms.stats().evictions > 0
        lms.validate()
        module.set_taken(0)
        assert [float(t[-1]) for t in tensors] == [2 * (n + 1.0) for n in range(8)]
        assert [float(t[-1]) for t in more] == [20.0 * n for n in range(4)]


def test_others_leave_too_little_for_one_operation(module: ModuleType, device: torch.device) -> None:
    with torch_lms.session() as lms:
        a, b = full(8 * MIB, 1, device), full(8 * MIB, 2, device)
        a.add_(0)
        lms.reclaim()
        leave(40 * MIB, module)
        with pytest.raises(WorkingSetError, match=r"aten::add"):
            torch.add(a, b)
        lms.validate()
        a.add_(1)  # alone it fits
        module.set_taken(0)
        assert float(torch.add(a, b)[-1]) == 4


def test_the_end_finds_others_on_the_card(module: ModuleType, device: torch.device) -> None:
    """What is away does not fit any more: the session stays on, and ends once there is room."""
    torch_lms.enable(limit=0)
    tensors = [full(8 * MIB, n, device) for n in range(4)]
    torch_lms.reclaim()
    leave(40 * MIB, module)
    try:
        with pytest.raises(DeviceFullError, match="Nothing is lost"):
            torch_lms.disable()
        assert torch_lms.is_enabled()
        assert float(tensors[1][-1]) == 1
    finally:
        module.set_taken(0)
        torch_lms.disable()
    assert [float(t[-1]) for t in tensors] == [0, 1, 2, 3]


def test_two_processes_at_once(tmp_path: Path) -> None:
    """Two sessions of one user, with one folder to spill to: neither touches what is the other's."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\n"
        "tensors = [torch.full((1 << 18,), float(sys.argv[1]) + n, device='testacc') for n in range(8)]\n"
        "for _ in range(40):\n"
        "    for tensor in tensors: tensor.add_(1)\n"
        "print([float(tensor.mean()) for tensor in tensors])\n"
    )
    options = ("--limit", "0", "--min-size", "1kB", "--host-limit", "0", "--spill-dir", str(tmp_path))
    command = [sys.executable, "-m", "torch_lms", "run", *options, str(script)]
    environment = accelerator.autoloading()
    started = [
        subprocess.Popen([*command, str(base)], env=environment, stdout=subprocess.PIPE, text=True)
        for base in (100, 200)
    ]
    said = [process.communicate(timeout=200)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert said == [f"{[base + 40.0 + n for n in range(8)]}\n" for base in (100, 200)]
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


@pytest.mark.parametrize("settings", [{}, {"limit": "1GB"}, {"limit": "80%"}, {"device": "testacc"}])
def test_an_accelerator_that_we_do_not_know(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch has it, but it has no streams, or does not tell its memory, as a package of a vendor's may be."""
    monkeypatch.setattr(torch, "get_device_module", lambda *_: UNKNOWN)
    why = "(have no streams|do not tell their memory)"
    with pytest.raises(UsageError, match=f'testacc devices {why}, and cannot be paged: choose device="cpu"'):
        torch_lms.enable(**settings)  # type: ignore[arg-type]
    assert not torch_lms.is_enabled()


def test_the_host_is_paged_beside_an_accelerator_that_we_do_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda *_: UNKNOWN)
    with torch_lms.session(limit=0, device="cpu") as lms:
        x = torch.ones(MIB)
        lms.reclaim()
        assert lms.stats().evictions == 1
        assert x.sum() == MIB
