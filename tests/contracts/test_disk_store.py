"""What only a disk can do wrong."""

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from contracts.pages import get, noise, put
from injection import CannotMount, damage, failing, short, small_disk

from torch_lms.errors import PageLostError, StoreError, StoreFullError
from torch_lms.stores.copies import CHUNK_BYTES, Copy, checksum
from torch_lms.stores.disk import DiskStore
from torch_lms.stores.io_pool import IoThread
from torch_lms.stores.spill_dir import filesystem_of

MB = 1 << 20
Patch = pytest.MonkeyPatch


@pytest.fixture(params=[True, False], ids=["direct", "buffered"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DiskStore]:
    store = DiskStore(tmp_path, 64 * MB, direct=request.param)
    yield store
    store.validate()
    store.close()


def test_whoever_moved_a_part_holds_nothing_of_the_page_once_it_is_there(store: DiskStore, monkeypatch: Patch) -> None:
    """The thread that comes last ends the copy; the others may not have gone on yet."""
    others_go_on, end_chunk = threading.Event(), Copy._end_chunk

    def slowly(copy: Copy) -> bool:
        is_last = end_chunk(copy)
        if not copy.done():
            others_go_on.wait(10)
        return is_last

    monkeypatch.setattr(Copy, "_end_chunk", slowly)
    data = noise(2 * CHUNK_BYTES)
    view, slot = memoryview(data), store.reserve(len(data))
    store.write(slot, view).wait()
    view.release()
    data.clear()  # raises BufferError if anything still exports it
    others_go_on.set()


def test_it_tells_how_fast_pages_were_written_and_read(store: DiskStore) -> None:
    assert store.bytes_per_s == (0.0, 0.0)
    slot = put(store, noise(3 * MB))
    get(store, slot)
    deadline = time.monotonic() + 10
    while not all(store.bytes_per_s) and time.monotonic() < deadline:  # counted when a copy has ended, or just after
        time.sleep(0.01)
    assert all(1e6 < speed < 1e12 for speed in store.bytes_per_s)


# --- damage -----------------------------------------------------------------------------------------------------------


def flip_a_bit(content: bytearray) -> None:
    content[2 * MB + 12345] ^= 0x10


def zero_a_block(content: bytearray) -> None:
    content[MB : MB + 4096] = bytes(4096)


def swap_two_blocks(content: bytearray) -> None:
    content[:4096], content[8192:12288] = content[8192:12288], content[:4096]


def swap_two_chunks(content: bytearray) -> None:
    content[:CHUNK_BYTES], content[CHUNK_BYTES : 2 * CHUNK_BYTES] = (
        content[CHUNK_BYTES : 2 * CHUNK_BYTES],
        content[:CHUNK_BYTES],
    )


@pytest.mark.parametrize("change", [flip_a_bit, zero_a_block, swap_two_blocks, swap_two_chunks])
def test_damage_is_found_and_named(store: DiskStore, change: Callable[[bytearray], None]) -> None:
    slot, other = put(store, noise(3 * MB + 5)), put(store, noise(5000, seed=1))
    damage(store, change)
    with pytest.raises(
        PageLostError, match=rf"page of 3\.15 MB at offset {slot.offset} .* damaged: \d+ bytes at offset"
    ):
        get(store, slot)
    assert get(store, other) == noise(5000, seed=1)


def test_the_checksum_sees_what_a_plain_sum_does_not() -> None:
    # constants whose 64-bit sums over a block are 0: doubles of 2.0, and of -0.0
    for constant in (2.0, -0.0):
        block = np.full(512, constant).view(np.uint8)
        assert checksum(block) != checksum(np.zeros_like(block))
    sectors = np.arange(4096 // 4, dtype=np.uint32).view(np.uint8)
    assert checksum(sectors) != checksum(np.roll(sectors, 512))


# --- a disk that misbehaves -------------------------------------------------------------------------------------------


def test_short_writes_and_reads_are_completed(store: DiskStore, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "pwrite", short(os.pwrite))
    monkeypatch.setattr(os, "preadv", short(os.preadv))
    data = noise(2 * MB + 4097)
    assert get(store, put(store, data)) == data


def test_a_write_error_is_told_by_wait_each_time_and_the_store_goes_on(store: DiskStore, monkeypatch: Patch) -> None:
    slot = store.reserve(3 * MB)
    data = noise(3 * MB)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", failing(errno.EIO))
        pending = store.write(slot, memoryview(data))
        for _ in range(2):
            with pytest.raises(StoreError, match=r"could not write a page of 3\.15 MB .* Input/output error"):
                pending.wait()
    with pytest.raises(PageLostError, match="never written"):
        get(store, slot)
    store.write(slot, memoryview(data)).wait()
    assert get(store, slot) == data


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_that_fills_up_during_a_write(store: DiskStore, monkeypatch: Patch, code: int) -> None:
    slot = store.reserve(MB)
    monkeypatch.setattr(os, "pwrite", failing(code))
    with pytest.raises(StoreFullError, match=r"no room for 1\.05 MB .* free some space"):
        store.write(slot, memoryview(noise(MB))).wait()


def test_a_read_error_loses_the_page_but_not_the_copy_on_disk(store: DiskStore, monkeypatch: Patch) -> None:
    slot = put(store, noise(2 * MB))
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", failing(errno.EIO))
        with pytest.raises(PageLostError, match=r"could not read back .* Input/output error"):
            get(store, slot)
    assert get(store, slot) == noise(2 * MB)


def test_a_file_that_was_cut_short_loses_the_page(store: DiskStore) -> None:
    slot = put(store, noise(2 * MB))
    os.ftruncate(store.file.fd, MB)
    with pytest.raises(PageLostError, match="the file ends"):
        get(store, slot)


def test_an_error_keeps_nothing_of_the_page(store: DiskStore, monkeypatch: Patch) -> None:
    data = noise(MB)
    view = memoryview(data)
    monkeypatch.setattr(os, "pwrite", failing(errno.EIO))
    with pytest.raises(StoreError):
        store.write(store.reserve(MB), view).wait()
    view.release()


def test_a_full_disk_is_found_by_reserve(store: DiskStore, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
    with pytest.raises(StoreFullError, match=rf"no room for 1\.05 MB in .*{store.directory}.* has .* free"):
        store.reserve(MB)
    assert store.used_bytes == 0
    monkeypatch.undo()
    assert get(store, put(store, noise(MB))) == noise(MB)


def test_where_nothing_can_be_allocated_ahead_the_file_grows_all_the_same(store: DiskStore, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.EOPNOTSUPP))
    assert get(store, put(store, noise(MB))) == noise(MB)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 8 MiB. Needs the right to mount: skipped for ordinary users."""
    try:
        with small_disk(tmp_path, 8 * MB):
            yield tmp_path
    except CannotMount as error:
        pytest.skip(str(error))


def test_a_disk_that_is_really_full(tiny_disk: Path) -> None:
    assert filesystem_of(tiny_disk) == "tmpfs"
    store = DiskStore(tiny_disk, capacity=1 << 30)
    slots = [put(store, noise(MB, seed)) for seed in range(6)]
    with pytest.raises(StoreFullError, match=r"no room for 4\.19 MB .*hole 2\.\d+ MB.* has 0 B free"):
        store.reserve(4 * MB)
    assert all(get(store, slot) == noise(MB, seed) for seed, slot in enumerate(slots))
    store.release(slots[0])
    assert get(store, put(store, noise(MB, seed=9))) == noise(MB, seed=9)
    store.close()
    after = DiskStore(tiny_disk)
    assert after.capacity > 7 * MB
    after.close()


# --- copies under way -------------------------------------------------------------------------------------------------


def test_release_waits_while_a_write_is_held_up(store: DiskStore, monkeypatch: Patch) -> None:
    gate, pwrite = threading.Event(), os.pwrite

    def held_up(fd: int, buffer: memoryview, offset: int) -> int:
        gate.wait()
        return pwrite(fd, buffer, offset)

    monkeypatch.setattr(os, "pwrite", held_up)
    slot = store.reserve(4 * MB)
    pending = store.write(slot, memoryview(noise(4 * MB)))
    releasing = threading.Thread(target=store.release, args=(slot,))
    releasing.start()
    releasing.join(0.1)
    assert releasing.is_alive()
    assert not pending.done()
    assert store.used_bytes == slot.length
    gate.set()
    releasing.join()
    assert pending.done()
    assert store.used_bytes == 0


def test_the_threads_are_marked_as_ours_and_let_the_interpreter_exit(store: DiskStore) -> None:
    threads = [thread for thread in threading.enumerate() if isinstance(thread, IoThread)]
    assert len(threads) >= 2
    assert all(thread.daemon for thread in threads)
    script = f"from torch_lms.stores.disk import DiskStore; DiskStore({str(store.directory)!r}, 1 << 20).reserve(10)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_forked_child_forgets_the_store_and_its_parent_keeps_it(store: DiskStore) -> None:
    slot = put(store, noise(MB))
    with store._lock:  # as if another thread of the parent held it
        child = os.fork()
        if child == 0:
            store.abandon()
            store.release(slot)
            store.close()
            os._exit(0 if store.used_bytes == 0 else 1)
        _, status = os.waitpid(child, 0)
    assert status == 0
    assert get(store, slot) == noise(MB)
