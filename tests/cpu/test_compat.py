"""IBM's names on ``torch.cuda``, on a machine without CUDA: they page the CPU."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

import torch_lms
from torch_lms import UsageError, compat

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="here the CPU is paged by IBM's names only without CUDA"
)

MIB = 1 << 20
FLOATS = 4 * MIB // 4
"""A tensor of so many floats has 4 MiB."""

cuda = torch.cuda


@pytest.fixture(autouse=True)
def _as_imported() -> Iterator[None]:
    yield
    cuda.set_enabled_lms(False)
    compat._settings = compat._Settings()
    compat._past.clear()


def tensors(count: int) -> list[torch.Tensor]:
    return [torch.rand(FLOATS) for _ in range(count)]


def resident() -> int:
    return torch_lms.stats().resident_bytes


# ---- settings


def test_every_name_is_on_torch_cuda_and_says_what_differs() -> None:
    for function in compat._NAMES:
        assert getattr(cuda, function.__name__) is function
        assert function.__doc__


def test_defaults_are_those_of_1_1() -> None:
    assert (cuda.get_enabled_lms(), cuda.get_limit_lms(), cuda.get_size_lms()) == (False, 0, MIB)


def test_enabling_and_disabling_twice_is_no_error() -> None:
    for enabled in (True, True, False, False, True):
        cuda.set_enabled_lms(enabled)
        assert cuda.get_enabled_lms() is torch_lms.is_enabled() is enabled


def test_settings_made_before_are_in_force_when_enabled() -> None:
    cuda.set_limit_lms(9 * MIB)
    cuda.set_size_lms(3 * MIB)
    cuda.set_enabled_lms(True)
    assert (cuda.get_limit_lms(), cuda.get_size_lms()) == (9 * MIB, 3 * MIB)
    assert torch_lms.stats().limit_bytes == 9 * MIB
    held = [torch.zeros(2 * MIB, dtype=torch.uint8) for _ in range(8)]
    assert resident() == 0, held  # too small to be managed
    held += tensors(8)
    assert 4 * MIB <= resident() <= 9 * MIB


def test_limit_of_0_moves_everything_not_in_use() -> None:
    cuda.set_enabled_lms(True)
    x = tensors(1)[0]
    assert resident() == 0
    y = x + 1
    assert resident() == 0
    assert torch.equal(y, x + 1)


def test_limit_changed_while_on() -> None:
    cuda.set_limit_lms(1 << 30)
    cuda.set_enabled_lms(True)
    held = tensors(8)
    assert resident() == 32 * MIB
    cuda.set_limit_lms(12 * MIB)
    assert cuda.get_limit_lms() == torch_lms.stats().limit_bytes == 12 * MIB
    held += tensors(1)
    assert resident() <= 12 * MIB
    cuda.set_limit_lms(1 << 30)
    before = cuda.memory_reclaimed()
    assert sum(x.sum() for x in held + tensors(8)) > 0
    assert cuda.memory_reclaimed() == before


def test_size_changed_while_on_counts_for_new_tensors() -> None:
    cuda.set_limit_lms(1 << 30)
    cuda.set_enabled_lms(True)
    held = tensors(2)
    cuda.set_size_lms(5 * MIB)
    held += tensors(2)
    assert resident() == 8 * MIB
    cuda.set_size_lms(0)
    assert cuda.get_size_lms() <= 1
    held.append(torch.zeros(100))
    assert resident() == 8 * MIB + 400


def test_session_of_ours_is_taken_as_it_is() -> None:
    with torch_lms.session(limit=40 * MIB, min_size=2 * MIB) as lms:
        cuda.set_enabled_lms(True)
        assert (cuda.get_limit_lms(), cuda.get_size_lms()) == (40 * MIB, 2 * MIB)
        assert lms.stats().limit_bytes == 40 * MIB
        cuda.set_limit_lms(20 * MIB)
        assert lms.stats().limit_bytes == 20 * MIB
        held = tensors(10)
        assert 0 < cuda.memory_reclaimed() == lms.stats().evicted_bytes
    assert not cuda.get_enabled_lms()
    del held


def test_automatic_limit_is_given_in_bytes() -> None:
    with torch_lms.session():
        assert cuda.get_limit_lms() > 0


def test_new_limit_ends_an_automatic_one() -> None:
    with torch_lms.session() as lms:
        cuda.set_limit_lms(8 * MIB)
        held = tensors(6)
        lms.step()
        assert lms.stats().limit_bytes == 8 * MIB
        assert resident() <= 8 * MIB, held


@pytest.mark.parametrize("value", [1, 0, None, "on", torch.tensor(True)])
def test_enabled_must_be_a_bool(value: object) -> None:
    with pytest.raises(UsageError, match="True or False"):
        cuda.set_enabled_lms(value)
    assert not cuda.get_enabled_lms()


@pytest.mark.parametrize("value", [-1, 1.5, None, True, "12GB", 1 << 61, [1]])
@pytest.mark.parametrize("name", ["limit", "size"])
def test_limit_and_size_must_be_bytes(name: str, value: object) -> None:
    before = getattr(cuda, f"get_{name}_lms")()
    with pytest.raises(UsageError, match=f"set_{name}_lms takes"):
        getattr(cuda, f"set_{name}_lms")(value)
    assert getattr(cuda, f"get_{name}_lms")() == before


def test_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    cuda.set_limit_lms(numpy.int64(5 * MIB))
    assert cuda.get_limit_lms() == 5 * MIB


def test_bad_device() -> None:
    for function in (cuda.memory_active, cuda.memory_reclaimed, cuda.alloc_distribution, cuda.memory_stats):
        with pytest.raises(UsageError, match="device must be"):
            function("nonsense")


# ---- statistics


def test_every_device_is_the_cpu() -> None:
    cuda.set_enabled_lms(True)
    held = tensors(3)
    for device in (None, 0, "cuda", "cuda:0", "cpu", torch.device("cuda", 0)):
        assert cuda.memory_reclaimed(device) == 12 * MIB, held


def test_statistics_of_both_versions_are_those_of_ours() -> None:
    cuda.set_limit_lms(20 * MIB)
    cuda.set_enabled_lms(True)
    held = tensors(12)
    total = sum(x.sum() for x in held)
    assert total > 0
    ours, keys = torch_lms.stats(), cuda.memory_stats()
    assert cuda.memory_reclaimed() == keys["reclaimed_bytes"] == ours.evicted_bytes > 0
    assert keys["reclaimed"] == ours.evictions > 0
    assert cuda.memory_active() == keys["pinned_bytes.all.current"] == 0
    assert cuda.max_memory_active() == keys["pinned_bytes.all.peak"] == ours.peak_resident_bytes
    earlier = cuda.alloc_distribution()
    assert list(earlier) == [
        "freelist",
        "cudamalloc",
        "reclaim_one",
        "reclaim_fragments",
        "cudamalloc_over_limit",
        "reclaim_all",
        "cudamalloc_purge",
    ]
    assert sum(earlier.values()) == sum(ours.allocations.values())
    later = cuda.memory_stats_as_nested_dict()["alloc_distribution"]
    for name in ("freelist", "cudamalloc", "reclaim_one", "reclaim_fragments", "reclaim_all"):
        assert earlier[name] == later[name] == keys[f"alloc_distribution.{name}"]
    assert later["cudamalloc_retry"] == earlier["cudamalloc_purge"] == 0


def test_what_is_pinned_is_active() -> None:
    cuda.set_limit_lms(1 << 30)
    cuda.set_enabled_lms(True)
    held = tensors(3)
    with torch_lms.pinned(held[0]):
        assert cuda.memory_active() == 4 * MIB
        assert cuda.memory_stats()["pinned.all.current"] == 1
    assert cuda.memory_active() == 0


def test_each_reset_is_for_itself() -> None:
    cuda.set_enabled_lms(True)
    held = tensors(3)
    cuda.reset_memory_reclaimed()
    assert cuda.memory_reclaimed() == cuda.memory_stats()["reclaimed"] == 0
    assert sum(cuda.alloc_distribution().values()) == 3
    cuda.reset_alloc_distribution()
    assert sum(cuda.alloc_distribution().values()) == 0
    assert cuda.max_memory_active() == 4 * MIB, held
    cuda.reset_max_memory_active()
    assert cuda.max_memory_active() == 0
    held += tensors(1)
    cuda.reset_accumulated_memory_stats()
    assert (cuda.memory_reclaimed(), sum(cuda.alloc_distribution().values())) == (0, 0)
    cuda.reset_peak_memory_stats()
    assert cuda.memory_stats()["pinned_bytes.all.peak"] == 0


def test_what_accumulated_outlives_disabling() -> None:
    for rounds in (1, 2):
        cuda.set_enabled_lms(True)
        held = tensors(3)
        cuda.set_enabled_lms(False)
        assert cuda.memory_reclaimed() == cuda.memory_stats()["reclaimed_bytes"] == rounds * 12 * MIB, held
    cuda.reset_memory_reclaimed()
    assert cuda.memory_reclaimed() == 0


def test_without_lms_there_is_nothing_to_tell() -> None:
    assert set(cuda.memory_stats().values()) == {0}
    assert cuda.memory_active() == cuda.max_memory_active() == 0
    cuda.reclaim_inactive()


def test_large_model_support() -> None:
    """The six checks of IBM's only unit test (`TestCuda.test_large_model_support`), with RAM for the GPU."""
    cuda.set_limit_lms(1 << 30)
    assert cuda.memory_stats()["pinned_bytes.all.current"] == cuda.memory_allocated()  # 1: off

    cuda.set_enabled_lms(True)
    held = tensors(16)
    assert cuda.memory_stats()["pinned_bytes.all.current"] < resident() == 64 * MIB  # 2: on
    sums = [x.sum() for x in held]

    cuda.set_limit_lms(64 * MIB)
    before = cuda.memory_stats()
    more = tensors(4)
    after = cuda.memory_stats()
    assert resident() == 64 * MIB  # 3: a small limit
    assert after["reclaimed_bytes"] - before["reclaimed_bytes"] == 16 * MIB
    assert after["alloc_distribution.reclaim_one"] > before["alloc_distribution.reclaim_one"]
    assert after["alloc_distribution.cudamalloc"] == before["alloc_distribution.cudamalloc"]

    cuda.set_limit_lms(1 << 30)
    before = cuda.memory_stats()
    more += [x * 2 for x in more]
    after = cuda.memory_stats()
    assert resident() == 80 * MIB  # 4: a large one
    assert after["reclaimed_bytes"] == before["reclaimed_bytes"]
    assert after["alloc_distribution.reclaim_one"] == before["alloc_distribution.reclaim_one"]
    assert after["alloc_distribution.cudamalloc"] > before["alloc_distribution.cudamalloc"]

    pinned = after["pinned_bytes.all.current"]
    cuda.reclaim_inactive()
    assert resident() == 0  # 5: everything inactive
    assert cuda.memory_stats()["pinned_bytes.all.current"] == pinned

    assert [x.sum() for x in held] == sums  # 6: what comes back is what went
    assert resident() == 64 * MIB
    del more


# ---- a script of 2019

SCRIPT = """
import argparse
import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--no-lms", dest="lms", action="store_false")
parser.add_argument("--lms-limit", default=0, type=int, metavar="MB")
parser.add_argument("--steps", default=3, type=int)
args = parser.parse_args()

if args.lms:
    torch.cuda.set_enabled_lms(True)
    if torch.cuda.get_enabled_lms():
        if args.lms_limit > 0:
            torch.cuda.set_limit_lms(args.lms_limit * 1024 * 1024)
        print("[LMS=On limit=" + str(torch.cuda.get_limit_lms()) + "]")

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def block(channels):
    return [nn.Conv2d(channels, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True)]


model = nn.Sequential(*block(3), *block(32), nn.MaxPool2d(2), *block(32), nn.Dropout(0.1), nn.Flatten())
model = nn.Sequential(model, nn.Linear(32 * 48 * 48, 15)).to(device)
criterion = nn.CrossEntropyLoss().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

for step in range(args.steps):
    images = torch.randn(4, 3, 96, 96).to(device)
    target = torch.randint(0, 15, (4,)).to(device)
    loss = criterion(model(images), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, loss.item().hex())

if args.lms:
    stats = torch.cuda.memory_stats()
    print("reclaimed", stats["reclaimed"] > 0, stats["reclaimed_bytes"] == torch.cuda.memory_reclaimed() > 0)
    print("allocations", sum(torch.cuda.alloc_distribution().values()) > 0)
print("sum", sum(p.double().sum() for p in model.parameters()).item().hex())
"""


def run(*command: str) -> list[str]:
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def numbers(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(("step", "sum"))]


@pytest.fixture(scope="module")
def expected() -> list[str]:
    lines = run("-c", SCRIPT, "--no-lms")
    assert len(numbers(lines)) == len(lines) == 4
    return lines


@pytest.mark.parametrize("limit", [0, 6, 20])
def test_script_of_2019_with_one_line_added(expected: list[str], limit: int) -> None:
    lines = run("-c", "import torch_lms.compat\n" + SCRIPT, "--lms-limit", str(limit))
    assert lines[0] == f"[LMS=On limit={limit * MIB}]"
    assert lines[-3:-1] == ["reclaimed True True", "allocations True"]
    assert numbers(lines) == expected


def test_script_of_2019_as_it_is(expected: list[str], tmp_path) -> None:  # type: ignore[no-untyped-def]
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    lines = run("-m", "torch_lms", "run", str(script), "--lms-limit", "6")
    assert lines[0] == f"[LMS=On limit={6 * MIB}]"
    assert lines[-3:-1] == ["reclaimed True True", "allocations True"]
    assert numbers(lines) == expected
    lines = run("-m", "torch_lms", "run", "--limit", "9MB", str(script), "--lms-limit", "6")
    assert lines[0] == "[LMS=On limit=9000000]"
    assert numbers(lines) == expected
