"""How fast bytes move on this machine, measured: over each link that paging uses, the way that paging uses it."""

import mmap
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from torch_lms.errors import StoreError
from torch_lms.stores.base import Pending, Slot
from torch_lms.stores.disk import DiskStore

_DISK_BYTES = 1 << 30
_DISK_PIECE_BYTES = 64 << 20
_DISK_IN_FLIGHT = 3
_DISK_PATIENCE_S = 10.0
_COPY_BYTES = 256 << 20
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Link:
    """One way for bytes to move. ``bytes_per_s`` is None where it could not be measured; ``note`` then says why.

    ``nbytes`` is what was moved to find out.
    """

    name: str
    bytes_per_s: float | None
    nbytes: int
    note: str = ""


def memory_link(room: int) -> Link:
    """Copying within host memory, with as many threads as torch takes; uses at most a quarter of ``room`` bytes."""
    nbytes = min(_COPY_BYTES, room // 8)
    source = torch.ones(nbytes, dtype=torch.uint8)
    target = torch.zeros(nbytes, dtype=torch.uint8)
    return _repeated("memory copy", nbytes, lambda: target.copy_(source), settle=lambda: None)


def device_links(device: torch.device, room: int) -> Iterator[Link]:
    """Between ``device`` and page-locked host memory: each way alone, then both at once, on one stream each (N5)."""
    # two buffers there and two here, of which each side spares a quarter
    nbytes = min(_COPY_BYTES, room // 8, torch.accelerator.get_memory_info(device)[0] // 8)
    try:
        near = [torch.ones(nbytes, dtype=torch.uint8, device=device) for _ in range(2)]
        far = [torch.ones(nbytes, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    except RuntimeError as error:
        yield Link("device and host", None, 0, str(error).splitlines()[0])
        return
    streams = [torch.Stream(device=device) for _ in range(2)]

    def up() -> None:
        with streams[0]:
            near[0].copy_(far[0], non_blocking=True)

    def down() -> None:
        with streams[1]:
            far[1].copy_(near[1], non_blocking=True)

    def both() -> None:
        up()
        down()

    def settle() -> None:
        torch.accelerator.synchronize(device)

    yield _repeated("host to device", nbytes, up, settle)
    yield _repeated("device to host", nbytes, down, settle)
    yield _repeated("both ways at once", 2 * nbytes, both, settle)


def disk_links(directory: Path, free_bytes: int) -> Iterator[Link]:
    """Writing to and reading from a spill file in ``directory``; writes 1 GiB or a quarter of ``free_bytes``."""
    piece = min(_DISK_PIECE_BYTES, free_bytes // 4 // mmap.PAGESIZE * mmap.PAGESIZE)
    if piece == 0:
        yield Link("disk write and read", None, 0, "no free space")
        return
    try:
        with closing(DiskStore(directory)) as store:
            if not store.direct:
                yield Link("disk write and read", None, 0, "no direct I/O: a figure would be the page cache's")
                return
            yield from _disk_both_ways(store, min(_DISK_BYTES, free_bytes // 4) // piece, piece)
    except StoreError as error:
        yield Link("disk write and read", None, 0, str(error))


def _disk_both_ways(store: DiskStore, count: int, piece: int) -> Iterator[Link]:
    # Random bytes: some file systems and drives compress, and would look faster than they are for tensors.
    source = _page_aligned(piece)
    np.frombuffer(source, dtype=np.uint8)[:] = np.frombuffer(np.random.default_rng(0).bytes(piece), dtype=np.uint8)
    targets = [_page_aligned(piece) for _ in range(_DISK_IN_FLIGHT)]
    written: list[Slot] = []

    def write(slot: Slot) -> Pending:
        written.append(slot)
        return store.write(slot, source)

    # Reserved before the clock runs: allocating blocks is the price of the first step only.
    slots = [store.reserve(piece) for _ in range(count)]
    yield _streamed("disk write", piece, (write(slot) for slot in slots))
    reads = (store.read(slot, targets[turn % _DISK_IN_FLIGHT]) for turn, slot in enumerate(written))
    yield _streamed("disk read", piece, reads)


def _page_aligned(nbytes: int) -> memoryview:
    return memoryview(mmap.mmap(-1, nbytes))


def _streamed(name: str, piece: int, copies: Iterable[Pending]) -> Link:
    """Performs ``copies``, a few at a time, until they are done or have taken long enough to tell."""
    under_way: deque[Pending] = deque()
    count, started = 0, time.perf_counter()
    for copy in copies:
        under_way.append(copy)
        count += 1
        # before the next one starts: it may use the buffer of the oldest
        if len(under_way) == _DISK_IN_FLIGHT:
            under_way.popleft().wait()
        if time.perf_counter() - started > _DISK_PATIENCE_S:
            break
    for copy in under_way:
        copy.wait()
    elapsed_s = time.perf_counter() - started
    return Link(name, count * piece / elapsed_s, count * piece)


def _repeated(name: str, nbytes: int, start: Callable[[], object], settle: Callable[[], None]) -> Link:
    """The median of a few; the first one, which also touches the memory, does not count."""
    rates = []
    for _ in range(1 + _REPEATS):
        settle()
        started = time.perf_counter()
        start()
        settle()
        rates.append(nbytes / (time.perf_counter() - started))
    return Link(name, sorted(rates[1:])[_REPEATS // 2], nbytes * _REPEATS)
