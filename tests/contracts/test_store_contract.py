"""What every store promises, held against every store."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from contracts.pages import get, noise, put

from torch_lms.errors import StoreError, StoreFullError
from torch_lms.stores.base import Slot, Store
from torch_lms.stores.disk import DiskStore
from torch_lms.stores.host import HostStore

MB = 1 << 20
ODD_SIZES = [1, 4095, 4096, 4097, 10 * 10**6 + 3]
MakeStore = Callable[[int], Store]


def page_lock(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8)


@pytest.fixture(params=["disk-direct", "disk-buffered", "host"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeStore]:
    """Make a store of a capacity; at the end its books are checked and it is closed."""
    made: list[Store] = []

    def make(capacity: int) -> Store:
        if request.param == "host":
            store: Store = HostStore(capacity, page_lock, slab_bytes=16 * MB)
        else:
            store = DiskStore(tmp_path, capacity, direct=request.param == "disk-direct")
            if store.direct != (request.param == "disk-direct"):
                store.close()
                pytest.skip("no direct I/O on the file system of the temporary directory")
        made.append(store)
        return store

    yield make
    for store in made:
        store.validate()
        store.close()


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    return make_store(256 * MB)


@pytest.mark.parametrize("nbytes", ODD_SIZES)
def test_bytes_come_back_and_those_behind_them_are_left_alone(store: Store, nbytes: int) -> None:
    data = noise(nbytes)
    slot = put(store, data)
    assert slot.nbytes == nbytes <= slot.length
    target = bytearray(b"\xaa" * (nbytes + 64))
    store.read(slot, memoryview(target)[:nbytes]).wait()
    assert target == data + b"\xaa" * 64


def test_a_page_can_be_read_often_and_written_again(store: Store) -> None:
    slot = put(store, noise(3 * MB + 1, seed=1))
    assert get(store, slot) == get(store, slot) == noise(3 * MB + 1, seed=1)
    store.write(slot, memoryview(noise(3 * MB + 1, seed=2))).wait()
    assert get(store, slot) == noise(3 * MB + 1, seed=2)


def test_copies_of_one_slot_keep_the_order_of_the_calls(store: Store) -> None:
    first, second = noise(9 * MB, seed=1), noise(9 * MB, seed=2)
    early, late = bytearray(9 * MB), bytearray(9 * MB)
    slot = store.reserve(9 * MB)
    copies = [
        store.write(slot, memoryview(first)),
        store.read(slot, memoryview(early)),
        store.write(slot, memoryview(second)),
        store.read(slot, memoryview(late)),
    ]
    for copy in reversed(copies):
        copy.wait()
    assert all(copy.done() for copy in copies)
    assert (early, late) == (first, second)


def test_a_buffer_is_let_go_of_when_its_copy_has_ended(store: Store) -> None:
    data = noise(5 * MB)
    view = memoryview(data)
    slot = store.reserve(len(data))
    store.write(slot, view).wait()
    view.release()  # raises BufferError if anything still exports it
    data.clear()


def test_a_buffer_shorter_than_the_page_is_refused(store: Store) -> None:
    slot = put(store, noise(100))
    with pytest.raises(ValueError, match="buffer"):
        store.write(slot, memoryview(bytearray(99)))
    with pytest.raises(ValueError, match="buffer"):
        store.read(slot, memoryview(bytearray(99)))
    assert get(store, slot) == noise(100)


def test_eight_threads_never_get_each_others_bytes(store: Store) -> None:
    def work(thread: int) -> None:
        random = np.random.default_rng(thread)
        kept: list[tuple[Slot, bytearray]] = []
        for _ in range(25):
            data = bytearray(random.bytes(int(random.integers(1, 3 * MB))))
            kept.append((put(store, data), data))
            for slot, expected in kept:
                assert get(store, slot) == expected
            if len(kept) > 3:
                store.release(kept.pop(int(random.integers(len(kept))))[0])
        for slot, _ in kept:
            store.release(slot)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert store.used_bytes == 0


def test_slots_do_not_overlap_and_used_bytes_are_their_lengths(store: Store) -> None:
    slots = [store.reserve(n) for n in (1, 5000, 1 << 20, 4096, 7)]
    ordered = sorted(slots, key=lambda slot: slot.offset)
    assert all(a.offset + a.length <= b.offset for a, b in pairwise(ordered))
    assert store.used_bytes == sum(slot.length for slot in slots)
    for slot in slots:
        store.release(slot)
    assert store.used_bytes == 0


def test_released_room_is_used_again(make_store: MakeStore) -> None:
    store = make_store(4 * MB)
    for seed in range(10):
        slots = [put(store, noise(2 * MB, seed)), put(store, noise(2 * MB, seed + 100))]
        assert get(store, slots[0]) == noise(2 * MB, seed)
        for slot in slots:
            store.release(slot)


def test_a_full_store_says_so_and_loses_nothing(make_store: MakeStore) -> None:
    store = make_store(8 * MB)
    slots = [put(store, noise(MB, seed)) for seed in range(8)]
    with pytest.raises(StoreFullError, match=r"no room for 1\.05 MB .* 8\.39 MB"):
        store.reserve(MB)
    assert store.used_bytes == 8 * MB
    assert all(get(store, slot) == noise(MB, seed) for seed, slot in enumerate(slots))
    store.release(slots[3])
    assert get(store, put(store, noise(MB, seed=77))) == noise(MB, seed=77)


@pytest.mark.parametrize("capacity", [0, 4095])
def test_a_store_without_room_for_anything(make_store: MakeStore, capacity: int) -> None:
    store = make_store(capacity)
    assert store.capacity == capacity
    with pytest.raises(StoreFullError):
        store.reserve(1)


def test_more_than_the_capacity_never_fits(make_store: MakeStore) -> None:
    store = make_store(8 * MB)
    with pytest.raises(StoreFullError):
        store.reserve(8 * MB + 1)
    store.release(store.reserve(8 * MB))


def test_release_waits_for_a_copy_under_way(store: Store) -> None:
    for seed in range(20):
        slot = store.reserve(4 * MB)
        pending = store.write(slot, memoryview(noise(4 * MB, seed)))
        store.release(slot)
        assert pending.done()
    assert store.used_bytes == 0


def test_a_slot_that_is_not_reserved_is_refused(store: Store) -> None:
    slot = put(store, noise(10))
    store.release(slot)
    for misuse in (
        lambda: store.release(slot),
        lambda: store.read(slot, memoryview(bytearray(10))),
        lambda: store.write(slot, memoryview(bytearray(10))),
    ):
        with pytest.raises(StoreError, match="not reserved"):
            misuse()


def test_close_ends_copies_and_may_be_called_twice(store: Store) -> None:
    slot = store.reserve(8 * MB)
    pending = store.write(slot, memoryview(noise(8 * MB)))
    store.close()
    assert pending.done()
    pending.wait()
    store.close()
    assert store.used_bytes == 0
    store.release(slot)  # its page may die after the session
    with pytest.raises(StoreError, match="closed"):
        store.reserve(1)
    with pytest.raises(StoreError, match="closed"):
        store.read(slot, memoryview(bytearray(8 * MB)))


def test_no_thread_of_a_closed_store_lives_on(make_store: MakeStore) -> None:
    before = threading.active_count()
    make_store(MB).close()
    assert threading.active_count() == before
