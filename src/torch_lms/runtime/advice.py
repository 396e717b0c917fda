"""What a user should know about a machine before paging on it. Pure: judges what ``probe`` found."""

from collections.abc import Iterator

from torch_lms.runtime.probe import Machine
from torch_lms.units import format_bytes

_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_SLOW_DISK_BYTES_PER_S = 200e6
_LITTLE_DISK_BYTES = 10e9
_ANOTHER = "give a directory on a local disk with --spill-dir or TORCH_LMS_SPILL_DIR"


def warnings_about(machine: Machine) -> tuple[str, ...]:
    """One line each: what is the matter, and what to do."""
    return (*_about_spill(machine), *_about_memory(machine), *_about_devices(machine))


def _about_spill(machine: Machine) -> Iterator[str]:
    spill = machine.spill
    if spill.filesystem in _IN_MEMORY:
        yield f"{spill.path} is on {spill.filesystem}, which is memory: moving pages there frees nothing; {_ANOTHER}"
    elif not spill.direct:
        yield f"{spill.path} ({spill.filesystem}) has no direct I/O: the page cache will hold a second copy; {_ANOTHER}"
    if spill.free_bytes < _LITTLE_DISK_BYTES:
        yield f"{spill.path} has only {format_bytes(spill.free_bytes)} free: make room there, or {_ANOTHER}"
    for link in machine.links:
        if link.name.startswith("disk") and link.bytes_per_s and link.bytes_per_s < _SLOW_DISK_BYTES_PER_S:
            speed = format_bytes(link.bytes_per_s)
            yield f"{link.name} runs at {speed}/s: steps that page will wait for it; {_ANOTHER}"


def _about_memory(machine: Machine) -> Iterator[str]:
    name, free = machine.memory.binding()
    if free < machine.memory.available / 2:
        remedies = {
            "RLIMIT_DATA": "raise it with ulimit -d",
            "RLIMIT_AS": "raise it with ulimit -v",
            "cgroup limit": "give the container or job more memory",
            "commit limit": "set vm.overcommit_memory to 0",
        }
        available = format_bytes(machine.memory.available)
        yield f"{name} leaves {format_bytes(free)} of {available} of available RAM: {remedies[name]} if it is not meant"


def _about_devices(machine: Machine) -> Iterator[str]:
    locking = machine.page_locking
    if locking.locked_bytes == 0:
        yield f"page-locked memory was refused ({locking.refusal}): raise ulimit -l, or free memory"
    if not machine.accelerators and machine.versions.nvidia_driver is not None and machine.versions.cuda is None:
        yield "there is an NVIDIA driver, but this PyTorch is built without CUDA: install a CUDA build to use the GPU"
    for accelerator in machine.accelerators:
        if accelerator.has_gaps:
            yield (
                f"{accelerator.device}: PyTorch's allocator keeps freed memory in pieces that it cannot join, as the "
                "environment asks, and moving tensors makes many: set PYTORCH_ALLOC_CONF=expandable_segments:True"
            )
    largest = max((accelerator.total_bytes for accelerator in machine.accelerators), default=0)
    if (free := machine.memory.binding()[1]) < largest:
        held = f"the host has {format_bytes(free)} for pages, the device {format_bytes(largest)}"
        yield f"{held}: much of what leaves the device will go on to disk, which is slower"
