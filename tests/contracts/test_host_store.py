"""What only page-locked memory has: slabs, and a system that refuses them."""

import threading
from collections.abc import Iterator

import pytest
import torch

from torch_lms.errors import StoreFullError
from torch_lms.stores.host import HostStore

MB = 1 << 20


class PageLock:
    """Stands for the device's allocator; counts, and refuses what is above ``most``, with an error of ``kind``."""

    def __init__(self, kind: type[Exception] = RuntimeError) -> None:
        self.asked: list[int] = []
        self.most = 1 << 40
        self.kind = kind

    def __call__(self, nbytes: int) -> torch.Tensor:
        self.asked.append(nbytes)
        if nbytes > self.most:
            raise self.kind("CUDA error: out of memory")
        return torch.empty(nbytes, dtype=torch.uint8)


@pytest.fixture
def page_lock() -> PageLock:
    return PageLock()


@pytest.fixture
def store(page_lock: PageLock) -> Iterator[HostStore]:
    store = HostStore(16 * MB, page_lock, slab_bytes=4 * MB)
    yield store
    store.validate()
    store.close()
    assert store.locked_bytes == 0


def test_nothing_is_locked_before_it_is_needed(store: HostStore, page_lock: PageLock) -> None:
    assert store.locked_bytes == 0
    store.reserve(1)
    assert page_lock.asked == [4 * MB]


def test_slabs_are_reused_step_after_step(store: HostStore, page_lock: PageLock) -> None:
    for _ in range(5):
        slots = [store.reserve(n) for n in (MB, 2 * MB, 3 * MB, 4097)]
        for slot in slots:
            store.release(slot)
    assert len(page_lock.asked) == 2


def test_a_large_page_gets_a_slab_of_its_own_size(store: HostStore, page_lock: PageLock) -> None:
    store.reserve(10 * MB + 1)
    assert page_lock.asked == [10 * MB + 4096]
    assert store.locked_bytes == 10 * MB + 4096


def test_the_capacity_bounds_the_slabs_not_only_the_slots(store: HostStore, page_lock: PageLock) -> None:
    slots = [store.reserve(3 * MB) for _ in range(5)]
    assert store.locked_bytes == 15 * MB
    with pytest.raises(StoreFullError, match=r"15\.7 MB used of 15\.7 MB page-locked"):
        store.reserve(3 * MB)
    assert sum(page_lock.asked) == 15 * MB
    assert len({slot.offset for slot in slots}) == 5


def test_a_slab_holds_a_whole_number_of_large_pages(page_lock: PageLock) -> None:
    store = HostStore(1 << 40, page_lock, slab_bytes=16 * MB)
    for _ in range(4):
        store.reserve(7 * MB)
    store.reserve(MB)
    assert page_lock.asked == [14 * MB, 14 * MB, 16 * MB]


def test_slabs_grow_with_what_is_locked() -> None:
    asked = []

    def page_lock(nbytes: int) -> torch.Tensor:
        asked.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)

    store = HostStore(1 << 40, page_lock, slab_bytes=4 * MB)
    while store.locked_bytes < 64 * MB:
        store.reserve(MB)
    assert asked[0] == 4 * MB
    assert asked[-1] > 8 * MB
    assert sum(asked) == store.locked_bytes


def test_the_last_slab_takes_what_the_capacity_leaves(store: HostStore, page_lock: PageLock) -> None:
    store.reserve(13 * MB)
    store.reserve(2 * MB)
    assert page_lock.asked == [13 * MB, 3 * MB]


def test_unused_slabs_make_room_for_a_larger_one(store: HostStore) -> None:
    small = [store.reserve(3 * MB) for _ in range(4)]
    for slot in small[1:]:
        store.release(slot)
    large = store.reserve(10 * MB)
    assert store.locked_bytes == 2 * 3 * MB + 10 * MB
    assert store.tensor(large).nbytes == 10 * MB
    store.tensor(small[0]).fill_(1)
    store.tensor(large).fill_(2)
    assert int(store.tensor(small[0]).max()) == 1


def test_no_slab_is_dropped_in_vain(store: HostStore, page_lock: PageLock) -> None:
    small = [store.reserve(4 * MB) for _ in range(4)]
    store.release(small[3])
    with pytest.raises(StoreFullError):
        store.reserve(10 * MB)
    assert store.locked_bytes == 16 * MB
    store.reserve(3 * MB)
    assert len(page_lock.asked) == 4


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError, StoreFullError])
def test_a_refused_slab_is_asked_for_again_in_the_size_needed(
    kind: type[Exception], store: HostStore, page_lock: PageLock
) -> None:
    page_lock.kind = kind
    page_lock.most = 2 * MB
    store.reserve(2 * MB)
    assert page_lock.asked == [4 * MB, 2 * MB]


# -- ahead -----------------------------------------------------------------------------------------------------------


class SlowLock(PageLock):
    """On another thread than the test's own it waits until it may, and says when it is there."""

    def __init__(self, kind: type[Exception] = RuntimeError) -> None:
        super().__init__(kind)
        self.owner = threading.get_ident()
        self.is_asked = threading.Event()
        self.may_go_on = threading.Event()

    def __call__(self, nbytes: int) -> torch.Tensor:
        if threading.get_ident() != self.owner:
            self.is_asked.set()
            assert self.may_go_on.wait(60)
        return super().__call__(nbytes)


def test_the_next_slab_is_locked_while_the_last_one_fills() -> None:
    page_lock = SlowLock()
    store = HostStore(16 * MB, page_lock, slab_bytes=4 * MB, works_ahead=True)
    store.reserve(MB)
    assert not page_lock.is_asked.is_set()
    store.reserve(MB)
    store.reserve(MB)  # less than half a slab is left
    assert page_lock.is_asked.wait(60)
    store.reserve(MB)  # nobody waits for the worker
    assert page_lock.asked == [4 * MB]
    page_lock.may_go_on.set()
    store.reserve(MB)  # now it is needed
    assert page_lock.asked[:2] == [4 * MB, 4 * MB]
    store.validate()
    store.close()
    assert store.locked_bytes == 0


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError, StoreFullError])
def test_a_slab_that_cannot_be_locked_ahead_troubles_nobody_before_it_is_needed(kind: type[Exception]) -> None:
    page_lock = SlowLock(kind)
    page_lock.may_go_on.set()
    store = HostStore(16 * MB, page_lock, slab_bytes=4 * MB, works_ahead=True)
    store.reserve(2 * MB)
    page_lock.most = 0
    store.reserve(2 * MB)
    assert page_lock.is_asked.wait(60)
    with pytest.raises(StoreFullError, match="refused to page-lock"):
        store.reserve(MB)
    page_lock.most = 1 << 40
    store.reserve(MB)
    store.validate()
    store.close()


def test_a_store_is_closed_while_a_slab_is_locked() -> None:
    page_lock = SlowLock()
    store = HostStore(16 * MB, page_lock, slab_bytes=4 * MB, works_ahead=True)
    store.reserve(4 * MB)
    assert page_lock.is_asked.wait(60)
    threading.Timer(0.1, page_lock.may_go_on.set).start()
    store.close()
    assert store.locked_bytes == 0


def test_no_more_is_locked_ahead_than_the_capacity() -> None:
    page_lock = PageLock()
    store = HostStore(10 * MB, page_lock, slab_bytes=4 * MB, works_ahead=True)
    for _ in range(10):
        store.reserve(MB)
    with pytest.raises(StoreFullError):
        store.reserve(MB)
    assert sum(page_lock.asked) == 10 * MB
    store.validate()
    store.close()


def test_what_the_system_refused_is_named_and_nothing_is_lost(store: HostStore, page_lock: PageLock) -> None:
    slot = store.reserve(MB)
    store.tensor(slot).fill_(7)
    page_lock.most = 0
    with pytest.raises(StoreFullError, match=r"refused to page-lock 8\.39 MB more \(CUDA error: out of memory\)"):
        store.reserve(8 * MB)
    assert store.used_bytes == MB
    assert int(store.tensor(slot).min()) == 7


def test_tensor_is_the_slot(store: HostStore) -> None:
    store.reserve(5000)
    slot = store.reserve(5000)
    tensor = store.tensor(slot)
    assert (tensor.dtype, tensor.shape, tensor.is_contiguous()) == (torch.uint8, (5000,), True)
    store.write(slot, memoryview(bytearray(range(250)) * 20)).wait()
    assert tensor[:251].tolist() == [*range(250), 0]
    tensor.fill_(9)
    target = bytearray(5000)
    store.read(slot, memoryview(target)).wait()
    assert target == b"\x09" * 5000
