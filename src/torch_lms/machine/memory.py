"""How much memory this process may still take, and which of the kernel's limits says so. Linux; reads files only."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from torch_lms.errors import UnsupportedError

# cgroup v1 has no word for "unlimited": it writes the largest whole number of memory pages instead.
_V1_UNLIMITED = 1 << 62
_STRICT_OVERCOMMIT = 2


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The machine's memory and this process's limits, all in bytes; a limit that is not set is None.

    ``cgroup_limit`` and ``cgroup_used`` are those of the one group, from the process's own up to the root, that has
    least left; ``cgroup_used`` leaves out what the kernel would drop to make room (file cache, reclaimable slab).
    ``data_used`` is what the kernel holds against RLIMIT_DATA, ``address_space_used`` against RLIMIT_AS.
    ``commit_limit`` is set where the kernel never promises more than it has (``vm.overcommit_memory = 2``).
    """

    total: int
    available: int
    cgroup_limit: int | None
    cgroup_used: int | None
    rlimit_data: int | None
    data_used: int
    rlimit_as: int | None
    address_space_used: int
    commit_limit: int | None
    committed: int

    def free_under_each(self) -> dict[str, int]:
        """Bytes that may still be taken under each limit in force; what is overdrawn counts as 0."""
        limits = {
            "available RAM": (self.available, 0),
            "cgroup limit": (self.cgroup_limit, self.cgroup_used or 0),
            "RLIMIT_DATA": (self.rlimit_data, self.data_used),
            "RLIMIT_AS": (self.rlimit_as, self.address_space_used),
            "commit limit": (self.commit_limit, self.committed),
        }
        return {name: max(0, limit - used) for name, (limit, used) in limits.items() if limit is not None}

    def binding(self) -> tuple[str, int]:
        """The limit that will be met first, and the bytes free under it."""
        return min(self.free_under_each().items(), key=lambda item: item[1])


def read_host_memory(root: str | Path = "/") -> HostMemory:
    """Read what the kernel says now; ``root`` is where ``proc`` and ``sys`` are found.

    Raises:
        UnsupportedError: there is no Linux ``/proc`` there.
    """
    root = Path(root)
    proc = str(root / "proc")
    info = _kilobyte_lines(f"{proc}/meminfo")
    if "MemTotal" not in info:
        raise UnsupportedError(f"expected Linux's memory figures in {proc}/meminfo; found none")
    process = _kilobyte_lines(f"{proc}/self/status")
    rlimits = _text(f"{proc}/self/limits")
    cgroup_limit, cgroup_used = _tightest_group(root, _text(f"{proc}/self/cgroup"))
    strict = _number(f"{proc}/sys/vm/overcommit_memory") == _STRICT_OVERCOMMIT
    return HostMemory(
        total=info["MemTotal"],
        # Kernels before 3.14 have no MemAvailable; MemFree errs on the safe side.
        available=info.get("MemAvailable", info.get("MemFree", 0)),
        cgroup_limit=cgroup_limit,
        cgroup_used=cgroup_used,
        rlimit_data=_rlimit(rlimits, "Max data size"),
        data_used=process.get("VmData", 0),
        rlimit_as=_rlimit(rlimits, "Max address space"),
        address_space_used=process.get("VmSize", 0),
        commit_limit=info.get("CommitLimit") if strict else None,
        committed=info.get("Committed_AS", 0),
    )


def _text(path: str) -> str:
    """The file's text; "" where it cannot be read: which files exist depends on kernel, container and rights."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: str) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _kilobyte_lines(path: str) -> dict[str, int]:
    """The figures of lines such as ``Name:   123 kB``, in bytes."""
    return {name: int(kb) * 1024 for name, kb in re.findall(r"^(\w+):\s+(\d+) kB$", _text(path), re.MULTILINE)}


def _rlimit(limits: str, label: str) -> int | None:
    """The soft limit, as /proc tells it: unlike ``resource``, a test can put that elsewhere."""
    match = re.search(rf"^{label}\s+(\d+)\s", limits, re.MULTILINE)
    return int(match[1]) if match else None


def _tightest_group(root: Path, own: str) -> tuple[int | None, int | None]:
    """Limit and use of the control group that has least left; (None, None) without a limit anywhere.

    Args:
        root: as ``read_host_memory`` has it.
        own: what the kernel says of the process's groups.
    """
    groups = [
        found
        for directory, is_v2 in _group_directories(root, own)
        if (found := _v2_limit(directory) if is_v2 else _v1_limit(directory)) is not None
    ]
    return min(groups, key=lambda group: group[0] - group[1], default=(None, None))


@lru_cache(maxsize=8)
def _group_directories(root: Path, own: str) -> list[tuple[str, bool]]:
    """Directories of this process's memory groups, from its own up to the root of what is mounted; and whether v2.
    They are looked up once, as long as the groups are the same.

    A machine may have both hierarchies mounted; the memory controller is in one of them, the other's files are missing.
    """
    paths, found = _own_groups(own), []
    for line in _text(str(root / "proc/self/mountinfo")).splitlines():
        before, _, after = line.partition(" - ")
        fields, filesystem = before.split(), after.split()
        if len(fields) < 5 or len(filesystem) < 3 or filesystem[0] not in ("cgroup", "cgroup2"):
            continue
        is_v2 = filesystem[0] == "cgroup2"
        if not is_v2 and "memory" not in filesystem[2].split(","):
            continue
        group = _below(paths.get("" if is_v2 else "memory", "/"), mounted=fields[3])
        mount = root / _unescaped(fields[4]).lstrip("/")
        found += [(str(mount / part), is_v2) for part in (group, *group.parents)]
    return found


def _own_groups(told: str) -> dict[str, str]:
    """This process's group in each hierarchy, by controller; v2's is under ""."""
    groups: dict[str, str] = {}
    for line in told.splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _below(path: str, *, mounted: str) -> PurePosixPath:
    """``path`` relative to the group that is mounted; a container that sees neither sees its own group as the mount."""
    group = PurePosixPath(path)
    if ".." in group.parts or not group.is_relative_to(mounted):
        return PurePosixPath(".")
    return group.relative_to(mounted)


def _unescaped(path: str) -> str:
    """A path of mountinfo, which writes blanks and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _v2_limit(group: str) -> tuple[int, int] | None:
    # Above memory.high the kernel slows a process to a crawl long before memory.max kills it: both are limits.
    limits = [limit for name in ("memory.max", "memory.high") if (limit := _number(f"{group}/{name}")) is not None]
    if not limits:
        return None
    reclaimable = _reclaimable(group, ("inactive_file", "active_file", "slab_reclaimable"))
    return min(limits), max(0, (_number(f"{group}/memory.current") or 0) - reclaimable)


def _v1_limit(group: str) -> tuple[int, int] | None:
    limit = _number(f"{group}/memory.limit_in_bytes")
    if limit is None or limit >= _V1_UNLIMITED:
        return None
    reclaimable = _reclaimable(group, ("total_inactive_file", "total_active_file"))
    return limit, max(0, (_number(f"{group}/memory.usage_in_bytes") or 0) - reclaimable)


def _reclaimable(group: str, names: tuple[str, ...]) -> int:
    stat = dict(re.findall(r"^(\w+) (\d+)$", _text(f"{group}/memory.stat"), re.MULTILINE))
    return sum(int(stat.get(name, 0)) for name in names)
