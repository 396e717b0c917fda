"""Results with LMS on equal those without, to the bit, at every limit."""

import weakref

import pytest
import torch
from bits import same_bits
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from workloads import WORKLOADS, Workload

import torch_lms

CPU = torch.device("cpu")
MIN_SIZE = 512
_storage_nbytes = torch._C.StorageBase.nbytes


class Census(TorchDispatchMode):
    """Counts living storages by itself: what is resident after each operation, and the largest one's working set."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.peak_bytes = 0
        self.peak_live_bytes = 0
        self.largest_op_bytes = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def, override]
        result = func(*args, **(kwargs or {}))
        used = {}
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                nbytes = _storage_nbytes(storage) if storage.resizable() else 0  # what only stands in takes no memory
                if nbytes >= MIN_SIZE and not (leaf.dtype is torch.int64 and nbytes < 1 << 20):  # no pages (N12)
                    used[id(storage)] = nbytes
                    self._seen[id(storage)] = weakref.ref(storage)
                    self._sizes[id(storage)] = nbytes
        self.largest_op_bytes = max(self.largest_op_bytes, sum(used.values()))
        alive = {key: ref() for key, ref in self._seen.items()}
        self._seen = {key: self._seen[key] for key, storage in alive.items() if storage is not None}
        resident = sum(_storage_nbytes(storage) for storage in alive.values() if storage is not None)
        self.peak_bytes = max(self.peak_bytes, resident)
        return result


@pytest.fixture(params=WORKLOADS, scope="module")
def workload(request: pytest.FixtureRequest) -> Workload:
    return WORKLOADS[request.param]


@pytest.fixture(scope="module")
def reference(workload: Workload) -> tuple[list[torch.Tensor], int, int]:
    """Results without LMS, the demand, and the bytes of the largest operation.

    A census that is entered first sees the operations of which others are made if LMS is a dispatch mode, too.
    """
    expected = workload(CPU)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_LMS_INTERPOSER", "python")
        with Census() as census, torch_lms.session(limit="64GB", min_size=MIN_SIZE):
            workload(CPU)
    with torch_lms.session(limit="64GB", min_size=MIN_SIZE) as lms:
        unlimited = workload(CPU)
        lms.step()
        demand = lms.stats().peak_resident_bytes
        assert lms.stats().evicted_bytes == 0
    assert same_bits(unlimited, expected)
    return expected, demand, census.largest_op_bytes


@pytest.mark.parametrize("share", [2, 4, 8, 0], ids=["half", "quarter", "eighth", "zero"])
def test_equal_to_the_bit(workload: Workload, reference: tuple[list[torch.Tensor], int, int], share: int) -> None:
    expected, demand, largest_op_bytes = reference
    limit = demand // share if share else 0
    with Census() as census, torch_lms.session(limit=limit, min_size=MIN_SIZE) as lms:
        results = workload(CPU)
        lms.validate()
        stats = lms.stats()
    assert same_bits(results, expected)
    assert stats.evicted_bytes > 0
    assert stats.fetched_bytes > 0
    assert stats.peak_resident_bytes <= limit + largest_op_bytes
    assert census.peak_bytes <= limit + largest_op_bytes
