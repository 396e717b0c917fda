"""What this machine has: devices, memory and the limits that bind, versions, links, the place to spill."""

import platform
import re
import resource
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from os import cpu_count, sched_getaffinity
from pathlib import Path

import torch

from torch_lms.machine import HostMemory, read_host_memory
from torch_lms.native import load
from torch_lms.runtime.allocator import chosen_settings
from torch_lms.runtime.bandwidth import Link, device_links, disk_links, memory_link
from torch_lms.runtime.limits import auto_limit
from torch_lms.stores.disk import DiskStore
from torch_lms.stores.spill_dir import default_spill_dir, filesystem_of

_PAGE_LOCK_TRIAL_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Versions:
    """None: not there."""

    torch_lms: str | None
    torch: str
    python: str
    system: str
    cuda: str | None
    cudnn: int | None
    nvidia_driver: str | None


@dataclass(frozen=True, slots=True)
class Processor:
    """``usable_cores`` are those that this process may run on; ``torch_threads`` is what torch makes of them."""

    model: str
    cores: int
    usable_cores: int
    torch_threads: int


@dataclass(frozen=True, slots=True)
class Accelerator:
    """``free_bytes`` is what no process holds now. ``has_gaps``: whether freed pieces of memory that lie in different
    segments of PyTorch's allocator cannot serve one tensor in sessions; None where that is not known.
    """

    device: str
    model: str
    total_bytes: int
    free_bytes: int
    has_gaps: bool | None = None


@dataclass(frozen=True, slots=True)
class PageLocking:
    """``ulimit_bytes`` is RLIMIT_MEMLOCK (None: unlimited), which drivers may pass by; so ``locked_bytes`` were tried.

    ``locked_bytes`` is None without an accelerator, and 0 where it was refused, ``refusal`` saying how.
    """

    ulimit_bytes: int | None
    locked_bytes: int | None
    seconds: float
    refusal: str


@dataclass(frozen=True, slots=True)
class SpillDirectory:
    """Where pages go last. ``direct``: whether direct I/O works there."""

    path: Path
    filesystem: str
    total_bytes: int
    free_bytes: int
    direct: bool


@dataclass(frozen=True, slots=True)
class ChosenLimit:
    """What ``limit="auto"`` would be if a session began now."""

    device: str
    nbytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Interposer:
    """What sees the operations of a session: "native" or "python"; and why it is that one."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Machine:
    """All that was found. ``links`` is empty if measuring was not wanted."""

    versions: Versions
    processor: Processor
    accelerators: tuple[Accelerator, ...]
    memory: HostMemory
    page_locking: PageLocking
    spill: SpillDirectory
    auto_limit: ChosenLimit
    links: tuple[Link, ...]
    interposer: Interposer


def probe(spill_dir: Path | None = None, *, measure: bool = True) -> Machine:
    """Look at this machine; ``measure`` the links too, which takes seconds and writes up to 1 GiB to ``spill_dir``.

    Raises:
        UsageError: ``spill_dir`` is missing or cannot be written.
    """
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    spill = _spill_directory(spill_dir or default_spill_dir())
    memory = read_host_memory()
    limit = auto_limit(device)
    found = load.find(builds=False)
    return Machine(
        versions=_versions(),
        processor=processor(),
        accelerators=tuple(_accelerators()),
        memory=memory,
        page_locking=_page_locking(device, memory.binding()[1]),
        spill=spill,
        auto_limit=ChosenLimit(str(device), limit.nbytes, limit.reason),
        links=tuple(_links(device, spill, memory.binding()[1])) if measure else (),
        interposer=Interposer(found.name, found.reason),
    )


def _links(device: torch.device, spill: SpillDirectory, room: int) -> Iterator[Link]:
    if device.type != "cpu":
        yield from device_links(device, room)
    yield memory_link(room)
    yield from disk_links(spill.path, spill.free_bytes)


def _versions() -> Versions:
    return Versions(
        torch_lms=_installed_version("torch-lms"),
        torch=torch.__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cuda=torch.version.cuda,
        cudnn=torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        nvidia_driver=_nvidia_driver(),
    )


def _installed_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _nvidia_driver() -> str | None:
    """From the driver's library where Python can ask it, else from the kernel's module."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # absent, or there is no driver: pynvml's own kinds of error
        found = re.search(r"Kernel Module\s.*?(\d+\.[\d.]+)", _text("/proc/driver/nvidia/version"))
        return found[1] if found else None


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _has_gaps(kind: str) -> bool | None:
    if kind != "cuda":
        return None
    return re.search(r"expandable_segments\s*:\s*False", chosen_settings()) is not None


def processor() -> Processor:
    """The processor, and what this process has of it."""
    model = re.search(r"^model name\s*:\s*(.+)$", _text("/proc/cpuinfo"), re.MULTILINE)
    return Processor(
        model=model[1] if model else platform.processor() or platform.machine(),
        cores=cpu_count() or 1,
        usable_cores=len(sched_getaffinity(0)),
        torch_threads=torch.get_num_threads(),
    )


def _accelerators() -> Iterator[Accelerator]:
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return
    for index in range(torch.accelerator.device_count()):
        device = torch.device(kind.type, index)
        free, total = torch.accelerator.get_memory_info(device)
        properties = torch.get_device_module(device).get_device_properties(device)
        yield Accelerator(str(device), str(getattr(properties, "name", kind.type)), total, free, _has_gaps(kind.type))


def _page_locking(device: torch.device, room: int) -> PageLocking:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    ulimit = None if soft == resource.RLIM_INFINITY else soft
    if device.type == "cpu":
        return PageLocking(ulimit, None, 0.0, "")
    nbytes = min(_PAGE_LOCK_TRIAL_BYTES, room // 4)
    started = time.perf_counter()
    try:
        torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        return PageLocking(ulimit, 0, 0.0, str(error).splitlines()[0])
    elapsed_s = time.perf_counter() - started
    if hasattr(torch.accelerator, "empty_host_cache"):  # from PyTorch 2.12 on: else its cache keeps the trial's memory
        torch.accelerator.empty_host_cache()
    return PageLocking(ulimit, nbytes, elapsed_s, "")


def _spill_directory(path: Path) -> SpillDirectory:
    with closing(DiskStore(path)) as store:  # raises for a path that cannot be used, and knows about direct I/O
        usage = shutil.disk_usage(path)
        return SpillDirectory(path.absolute(), filesystem_of(path), usage.total, usage.free, store.direct)
