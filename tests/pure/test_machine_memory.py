"""``machine/memory.py`` on made-up /proc and /sys trees: which limit is read, and which binds."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from torch_lms.errors import UnsupportedError
from torch_lms.machine import HostMemory, read_host_memory

GIB = 1 << 30
V1_UNLIMITED = 0x7FFFFFFFFFFFF000
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:5 - cgroup cgroup rw,memory"


class Tree:
    """A fake root directory; 16 GiB in all, 12 GiB available, no limits, until told otherwise."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.meminfo()
        self.put("proc/self/status", "Name:\tpython\nVmSize:\t 2097152 kB\nVmData:\t 1048576 kB\nThreads:\t1\n")
        self.rlimits()

    def put(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def meminfo(self, available: int | None = 12 * GIB, commit: int = 8 * GIB, committed: int = 3 * GIB) -> None:
        figures = {"MemTotal": 16 * GIB, "MemFree": 9 * GIB, "MemAvailable": available}
        figures |= {"CommitLimit": commit, "Committed_AS": committed}
        lines = [f"{name}:   {size // 1024} kB" for name, size in figures.items() if size is not None]
        self.put("proc/meminfo", "\n".join([*lines, "HugePages_Total:       0", ""]))

    def rlimits(self, data: int | str = "unlimited", address_space: int | str = "unlimited") -> None:
        self.put(
            "proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units     \n"
            f"Max data size             {data:<20} unlimited            bytes     \n"
            f"Max address space         {address_space:<20} unlimited            bytes     \n",
        )

    def groups(self, group: str, *mounts: str) -> None:
        self.put("proc/self/cgroup", group + "\n")
        self.put("proc/self/mountinfo", "\n".join(["22 27 0:21 / /proc rw - proc proc rw", *mounts, ""]))

    def v2(self, group: str, *, current: int = 0, stat: str = "", **limits: int | str) -> None:
        directory = f"sys/fs/cgroup/{group}"
        for name, limit in limits.items():
            self.put(f"{directory}/memory.{name}", f"{limit}\n")
        self.put(f"{directory}/memory.current", f"{current}\n")
        self.put(f"{directory}/memory.stat", stat)

    def v1(self, group: str, *, limit: int, usage: int, stat: str = "") -> None:
        directory = f"sys/fs/cgroup/memory/{group}"
        self.put(f"{directory}/memory.limit_in_bytes", f"{limit}\n")
        self.put(f"{directory}/memory.usage_in_bytes", f"{usage}\n")
        self.put(f"{directory}/memory.stat", stat)

    def read(self) -> HostMemory:
        return read_host_memory(self.root)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_without_limits_available_ram_binds(tree: Tree) -> None:
    memory = tree.read()
    assert memory.total == 16 * GIB
    assert (memory.cgroup_limit, memory.rlimit_data, memory.rlimit_as, memory.commit_limit) == (None,) * 4
    assert memory.binding() == ("available RAM", 12 * GIB)


def test_old_kernel_without_memavailable(tree: Tree) -> None:
    tree.meminfo(available=None)
    assert tree.read().available == 9 * GIB


def test_rlimits_bind_against_what_the_process_holds(tree: Tree) -> None:
    tree.rlimits(data=4 * GIB, address_space=64 * GIB)
    memory = tree.read()
    assert memory.free_under_each() == {"available RAM": 12 * GIB, "RLIMIT_DATA": 3 * GIB, "RLIMIT_AS": 62 * GIB}
    assert memory.binding() == ("RLIMIT_DATA", 3 * GIB)


def test_overdrawn_limit_leaves_nothing_rather_than_less(tree: Tree) -> None:
    tree.rlimits(data=GIB // 2)
    assert tree.read().binding() == ("RLIMIT_DATA", 0)


def test_commit_limit_counts_only_when_the_kernel_is_strict(tree: Tree) -> None:
    tree.put("proc/sys/vm/overcommit_memory", "0\n")
    assert tree.read().commit_limit is None
    tree.put("proc/sys/vm/overcommit_memory", "2\n")
    assert tree.read().binding() == ("commit limit", 5 * GIB)


def test_v2_parent_binds_when_it_has_less_left(tree: Tree) -> None:
    tree.groups("0::/user.slice/job", V2_MOUNT)
    tree.v2("user.slice/job", max=8 * GIB, current=GIB)
    tree.v2("user.slice", max=10 * GIB, current=7 * GIB)
    tree.v2("", current=9 * GIB)
    memory = tree.read()
    assert (memory.cgroup_limit, memory.cgroup_used) == (10 * GIB, 7 * GIB)
    assert memory.binding() == ("cgroup limit", 3 * GIB)


def test_v2_reclaimable_memory_counts_as_free(tree: Tree) -> None:
    tree.groups("0::/job", V2_MOUNT)
    stat = f"anon {GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}\nslab_reclaimable {GIB // 2}\n"
    tree.v2("job", max=5 * GIB, current=9 * GIB // 2, stat=stat)
    assert tree.read().cgroup_used == GIB


def test_v2_max_means_unlimited_and_high_is_a_limit(tree: Tree) -> None:
    tree.groups("0::/job", V2_MOUNT)
    tree.v2("job", max="max", high="max", current=GIB)
    assert tree.read().cgroup_limit is None
    tree.v2("job", max="max", high=6 * GIB, current=GIB)
    assert tree.read().cgroup_limit == 6 * GIB


def test_v1_walks_up_and_knows_its_unlimited(tree: Tree) -> None:
    tree.groups("4:cpu,memory:/jobs/7\n1:name=systemd:/other\n0::/", V1_MOUNT)
    tree.v1("jobs/7", limit=V1_UNLIMITED, usage=GIB)
    tree.v1("jobs", limit=4 * GIB, usage=3 * GIB, stat=f"inactive_file 1\ntotal_inactive_file {GIB}\n")
    tree.v1("", limit=V1_UNLIMITED, usage=9 * GIB)
    memory = tree.read()
    assert (memory.cgroup_limit, memory.cgroup_used) == (4 * GIB, 2 * GIB)


@pytest.mark.parametrize("own", ["/docker/abc", "/../../elsewhere", "/not/below"])
def test_container_that_sees_its_group_as_the_mount(tree: Tree, own: str) -> None:
    tree.groups(f"0::{own}", V2_MOUNT.replace("0:26 / ", "0:26 /docker/abc "))
    tree.v2("", max=2 * GIB, current=GIB)
    assert tree.read().binding() == ("cgroup limit", GIB)


def test_both_hierarchies_mounted(tree: Tree) -> None:
    unified = V2_MOUNT.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    tree.groups("4:memory:/jobs\n0::/", unified, V1_MOUNT)
    tree.v1("jobs", limit=4 * GIB, usage=GIB)
    assert tree.read().cgroup_limit == 4 * GIB


def test_mount_point_with_a_blank(tree: Tree) -> None:
    tree.groups("0::/", V2_MOUNT.replace("/sys/fs/cgroup", r"/sys/my\040groups"))
    tree.put("sys/my groups/memory.max", f"{3 * GIB}\n")
    assert tree.read().cgroup_limit == 3 * GIB


def test_other_mounts_and_short_lines_are_passed_over(tree: Tree) -> None:
    tree.groups("0::/", "35 31 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu", "broken", "1 2 - cgroup2")
    assert tree.read().cgroup_limit is None


def test_no_proc_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"expected Linux's memory figures in .*meminfo"):
        read_host_memory(tmp_path)


def test_on_this_machine() -> None:
    memory = read_host_memory()
    assert 0 < memory.available <= memory.total
    assert memory.data_used > 0
    assert memory.binding()[1] <= memory.available


def test_real_rlimit_is_seen() -> None:
    program = "from torch_lms.machine import read_host_memory as r; m = r(); print(m.rlimit_data, m.binding()[0])"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (GIB // 4, GIB // 4))

    run = [sys.executable, "-c", program]
    shown = subprocess.run(run, preexec_fn=limit, capture_output=True, text=True, check=True).stdout
    assert shown.split() == [str(GIB // 4), "RLIMIT_DATA"]
