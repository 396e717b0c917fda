"""What the C library keeps of freed memory (N19)."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from torch_lms.machine.memory import read_host_memory
from torch_lms.runtime import limits, malloc

pytestmark = pytest.mark.skipif(malloc._glibc is None, reason="not glibc")

MIB = 1 << 20

HOLES = f"""
import torch
from torch_lms.runtime.malloc import Heap, _resident_bytes

def holes(count):
    blocks = [torch.zeros({MIB}, dtype=torch.uint8) for _ in range(2 * count)]
    return blocks[::2]

limit = {200 * MIB}
torch.zeros({30 * MIB}, dtype=torch.uint8)  # freed: from now on smaller blocks come from the heap
blocks = holes(150)
before = _resident_bytes()
heap = Heap()
heap.grows(limit, {150 * MIB}, limit)
first = _resident_bytes()
more = holes(20)  # 190 MiB, and a few free: within the bounds
heap.grows(limit, {170 * MIB}, limit)
within = _resident_bytes()
more += holes(140)
beyond = _resident_bytes()
heap.grows(1, 0, limit)  # too little was made to look
unseen = _resident_bytes()
heap.grows(limit, {310 * MIB}, limit)
print(before - first, within - first, beyond - unseen, beyond - _resident_bytes())
"""


def test_free_memory_stays_within_a_share_of_the_limit() -> None:
    ended = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    first, within, unseen, beyond = (int(word) / MIB for word in ended.stdout.split())
    assert first > 120, "what was free at first is given back"
    assert within > 10, "the few free blocks of 20 MiB and 20 MiB in use stay"
    assert unseen < 5
    assert beyond > 100


AGAIN = """
import resource
import torch_lms
import torch

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

first = torch.rand(800_000)  # 3.2 MB, as all that follow

def step():
    made = first
    for _ in range(20):
        made = made.sin() * made.cos()
    return float(made[0])

for _ in range(3):
    step()
before = faults()
for _ in range(3):
    step()
print(faults() - before)
"""


@pytest.mark.parametrize("told", [{}, {"THP_MEM_ALLOC_ENABLE": "0"}])
def test_what_is_freed_is_allocated_again_without_faults(told: dict[str, str]) -> None:
    """With huge pages as without: 70,000 pages of the system are written."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "THP_MEM"))}
    ended = subprocess.run(
        [sys.executable, "-c", AGAIN], env={**others, **told}, capture_output=True, text=True, check=True
    )
    assert int(ended.stdout) < 7000


SCARCE = f"""
import sys
import torch
from torch_lms.runtime import malloc
from torch_lms.runtime.limits import AutoLimit

malloc.auto_limit = lambda _: AutoLimit(int(sys.argv[1]), "a container", {1 << 40})
torch.zeros({30 * MIB}, dtype=torch.uint8)
heap = malloc.Heap()
limit = int(sys.argv[3])
heap.grows(limit, 0, limit)
blocks = [torch.zeros({MIB}, dtype=torch.uint8) for _ in range(int(sys.argv[2]))]
del blocks[::4]
before = malloc._resident_bytes()
heap.grows(limit, 0, limit)
print(before - malloc._resident_bytes())
"""


def given_back_under(limit: int, free: int, made: int) -> int:
    """Bytes that the heap gives back where the system has ``free`` to spare, of a quarter of ``made`` MiB."""
    command = [sys.executable, "-c", SCARCE, str(free), str(made), str(limit)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(ended.stdout)


@pytest.mark.parametrize(
    ("free", "made", "given_back"),
    [(1 << 40, 120, 0), (5 * MIB, 120, 29 * MIB), (5 * MIB, 90, 0), (1 << 40, 150, 37 * MIB)],
)
def test_where_memory_is_scarce_nothing_free_stays_beyond_the_limit(free: int, made: int, given_back: int) -> None:
    assert given_back_under(100 * MIB, free, made) == pytest.approx(given_back, abs=4 * MIB)


@pytest.mark.parametrize(("made", "given_back"), [(36, 0), (60, 15 * MIB)])
def test_under_a_small_limit_some_stays_in_any_case(made: int, given_back: int) -> None:
    assert given_back_under(10 * MIB, 1 << 40, made) == pytest.approx(given_back, abs=4 * MIB)


LIMITED = """
import resource
import sys

import torch_lms
from torch_lms.runtime import malloc

told = []
class Library:
    def mallopt(self, what, value):
        told.append(value)
malloc._glibc = Library()
if sys.argv[1] == "limited":
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, resource.RLIM_INFINITY))
with torch_lms.session():
    print(told)
"""


@pytest.mark.parametrize(("case", "told"), [("limited", "[1048576, 1048576]"), ("unlimited", "[]")])
def test_blocks_are_given_back_at_once_where_the_address_space_is_limited(case: str, told: str) -> None:
    ended = subprocess.run([sys.executable, "-c", LIMITED, case], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == told


@pytest.mark.parametrize(("free", "kept"), [(300 * MIB, 150 * MIB), (4096 * MIB, 256 * MIB), (10240 * MIB, 512 * MIB)])
def test_what_is_kept_free_is_never_most_of_it(free: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = replace(read_host_memory(), available=free, cgroup_limit=None, rlimit_data=None, rlimit_as=None)
    monkeypatch.setattr(limits, "read_host_memory", lambda: memory)
    assert memory.binding()[1] == free
    assert limits.auto_limit(torch.device("cpu")).nbytes == free - kept
