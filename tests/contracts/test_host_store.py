"""What only page-locked memory has: slabs, and a system that refuses them."""

from collections.abc import Iterator

import pytest
import torch

from torch_lms.errors import StoreFullError
from torch_lms.stores.host import HostStore

MB = 1 << 20


class PageLock:
    """Stands for the device's allocator; counts, and refuses what is above ``most``."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.most = 1 << 40

    def __call__(self, nbytes: int) -> torch.Tensor:
        self.asked.append(nbytes)
        if nbytes > self.most:
            raise RuntimeError("CUDA error: out of memory")
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
    slots = [store.reserve(3 * MB) for _ in range(4)]
    assert store.locked_bytes == 16 * MB
    with pytest.raises(StoreFullError, match=r"12\.6 MB used of 16\.8 MB page-locked"):
        store.reserve(3 * MB)
    assert sum(page_lock.asked) == 16 * MB
    assert len({slot.offset for slot in slots}) == 4


def test_the_last_slab_takes_what_the_capacity_leaves(store: HostStore, page_lock: PageLock) -> None:
    store.reserve(13 * MB)
    store.reserve(2 * MB)
    assert page_lock.asked == [13 * MB, 3 * MB]


def test_unused_slabs_make_room_for_a_larger_one(store: HostStore) -> None:
    small = [store.reserve(3 * MB) for _ in range(4)]
    for slot in small[1:]:
        store.release(slot)
    large = store.reserve(10 * MB)
    assert store.locked_bytes == 4 * MB + 10 * MB
    assert store.tensor(large).nbytes == 10 * MB
    store.tensor(small[0]).fill_(1)
    store.tensor(large).fill_(2)
    assert int(store.tensor(small[0]).max()) == 1


def test_no_slab_is_dropped_in_vain(store: HostStore, page_lock: PageLock) -> None:
    small = [store.reserve(3 * MB) for _ in range(4)]
    store.release(small[3])
    with pytest.raises(StoreFullError):
        store.reserve(10 * MB)
    assert store.locked_bytes == 16 * MB
    store.reserve(3 * MB)
    assert len(page_lock.asked) == 4


def test_a_refused_slab_is_asked_for_again_in_the_size_needed(store: HostStore, page_lock: PageLock) -> None:
    page_lock.most = 2 * MB
    store.reserve(2 * MB)
    assert page_lock.asked == [4 * MB, 2 * MB]


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
