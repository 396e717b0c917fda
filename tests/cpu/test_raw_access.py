"""Every road to a storage's bytes works while the page is evicted, and leaves what it must alone (N11, N12)."""

import copy
import ctypes
import io
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import torch_lms
from torch_lms.capture.page_owner import PageOwner
from torch_lms.capture.raw import RawPatches
from torch_lms.errors import UnsupportedError
from torch_lms.runtime import api
from torch_lms.runtime.executor import CAN_SWAP


@pytest.fixture
def lms() -> Iterator[api.Lms]:
    with torch_lms.session(limit=0, min_size=512) as running:
        yield running
        running.validate()


def numbers(n: int = 4096) -> torch.Tensor:
    return torch.arange(n, dtype=torch.float32) * 0.5


def evicted(n: int = 4096) -> torch.Tensor:
    tensor = numbers(n)
    torch_lms.reclaim()
    assert is_away(tensor)
    return tensor


def is_away(tensor: torch.Tensor) -> bool:
    return bool(torch._C.StorageBase.nbytes(tensor.untyped_storage()) == 0)


READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tolist": lambda t: t.tolist(),
    "repr": repr,
    "str": str,
    "format": lambda t: f"{t}",
    "item": lambda t: t[7].item(),
    "numpy": lambda t: t.numpy().copy().tolist(),
    "array": lambda t: np.asarray(t).copy().tolist(),
    "dlpack": lambda t: np.from_dlpack(t).copy().tolist(),
    "torch dlpack": lambda t: torch.from_dlpack(t).tolist(),
    "to_dlpack": lambda t: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(t)).tolist(),
    "storage item": lambda t: [t.untyped_storage()[n] for n in range(4, 12)],
    "storage slice": lambda t: t.untyped_storage()[4:12].tolist(),
    "storage clone": lambda t: t.untyped_storage().clone()[4:12].tolist(),
    "typed storage": lambda t: t.storage()[3],
    "storage size": lambda t: (len(t.untyped_storage()), t.untyped_storage().nbytes(), t.untyped_storage().size()),
    "deepcopy": lambda t: copy.deepcopy(t).tolist(),
    "copy": lambda t: copy.copy(t).tolist(),
    "pickle": lambda t: pickle.loads(pickle.dumps(t)).tolist(),
    "save": lambda t: _saved(t).tolist(),
    "save legacy": lambda t: _saved(t, _use_new_zipfile_serialization=False).tolist(),
    "view": lambda t: t.view(64, 64)[5].tolist(),
    "transpose": lambda t: t.view(64, 64).t().contiguous().tolist(),
    "as_strided": lambda t: t.as_strided((4, 4), (2, 8)).tolist(),
    "detach": lambda t: t.detach().tolist(),
    "data": lambda t: t.data.tolist(),
    "iterate": lambda t: [float(x) for x in t[:5]],
    "sum": lambda t: t.sum().item(),
    "from_buffer": lambda t: bytes(memoryview(t.numpy()))[:64],
    "bool": lambda t: bool(t.any()),
    "set_": lambda t: torch.empty(0).set_(t.untyped_storage()).tolist(),
}


def _saved(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("road", READS)
def test_reading_an_evicted_page_gives_its_content(road: str) -> None:
    expected = READS[road](numbers())
    with torch_lms.session(limit=0, min_size=512) as running:
        tensor = evicted()
        assert READS[road](tensor) == expected
        running.validate()
        assert torch.equal(tensor, numbers())


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "storage item": lambda t: t.untyped_storage().__setitem__(0, 1),
    "storage fill": lambda t: t.untyped_storage().fill_(0),
    "storage copy": lambda t: t.untyped_storage().copy_(torch.ones(4096).untyped_storage()),
    "apply_": lambda t: t.apply_(lambda x: x + 1),
    "map_": lambda t: t.map_(torch.ones(4096), lambda x, y: x - y),
    "numpy": lambda t: t.numpy().__setitem__(slice(0, 9), 3.0),
    "data": lambda t: t.data.add_(1),
    "in place": lambda t: t.mul_(2),
    "index": lambda t: t.__setitem__(5, 9.0),
    "out": lambda t: torch.add(torch.ones(4096), 1, out=t),
    "zero_": lambda t: t.zero_(),
    "set_": lambda t: t.set_(torch.full((4096,), 2.0)),
    "resize_": lambda t: t.resize_(6000)[4096:].fill_(1.0),
    "storage resize": lambda t: (t.untyped_storage().resize_(4 * 5000), t.resize_(4096)),
    "swap data": lambda t: setattr(t, "data", torch.full((4096,), 5.0)),
}


@pytest.mark.parametrize("road", WRITES)
def test_writing_to_an_evicted_page_is_not_lost(road: str) -> None:
    expected = numbers()
    WRITES[road](expected)
    with torch_lms.session(limit=0, min_size=512) as running:
        tensor = evicted()
        WRITES[road](tensor)
        torch_lms.reclaim()
        running.validate()
        assert torch.equal(tensor, expected)
        torch_lms.reclaim()
    assert torch.equal(tensor, expected)


@pytest.mark.parametrize(
    ("export", "reason"),
    [
        (lambda t: t.data_ptr(), "address escaped"),
        (lambda t: t.numpy(), "address escaped"),
        (lambda t: torch.utils.dlpack.to_dlpack(t), "address escaped"),
        (lambda t: t.untyped_storage().data_ptr(), "address escaped"),
        (lambda t: t.share_memory_(), "shared memory"),
    ],
)
def test_an_escaped_address_stays_valid(lms: api.Lms, export: Callable[[torch.Tensor], Any], reason: str) -> None:
    tensor = evicted()
    held = export(tensor)
    torch_lms.reclaim()
    assert lms.stats().unpaged_bytes == {reason: 4 * 4096}
    assert torch._C.StorageBase.nbytes(tensor.untyped_storage()) > 0
    assert torch.equal(tensor, numbers())
    del held


OTHERS = [torch.zeros(0)]


@torch.library.custom_op("torch_lms_raw::add_numbers", mutates_args={"total"})
def add_numbers(total: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """By addresses, as bitsandbytes does. Returns what was there before."""
    before = torch.empty_like(total)
    length = total.numel()
    at = {t: (ctypes.c_float * length).from_address(t.data_ptr()) for t in (before, total, numbers, OTHERS[0])}
    at[before][:] = at[total][:]
    for n in range(length):
        at[total][n] += at[numbers][n] + at[OTHERS[0]][n]
    return before


def test_an_operator_forgets_addresses(lms: api.Lms) -> None:
    total, added, OTHERS[0] = evicted(512), evicted(512), evicted(512)
    for n in range(3):
        before = add_numbers(total, added)
        torch_lms.reclaim()
        assert all(map(is_away, (before, total, added, OTHERS[0])))
        assert torch.equal(before, numbers(512) * (2 * n + 1))
    assert torch.equal(total, numbers(512) * 7)
    assert lms.stats().unpaged_bytes == {}
    total.data_ptr()
    assert lms.stats().unpaged_bytes == {"address escaped": 2048}


def new_bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module in its place, with a ``get_ptr`` as it has it."""
    module = ModuleType("bitsandbytes.functional")
    module.get_ptr = lambda A: None if A is None else ctypes.c_void_p(A.data_ptr())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.skipif(not CAN_SWAP, reason="lends no memory: PyTorch 2.11")
def test_a_pointer_has_a_tensor_as_long_as_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Unsloth calls functions in C: pointers by bitsandbytes, outside of any operator."""
    module = new_bitsandbytes(monkeypatch)
    copy_bytes = ctypes.CDLL(None).memcpy
    copy_bytes.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    with torch_lms.session(limit=0, min_size=512) as lms:
        source, target = evicted(512), evicted(512) * 0
        torch_lms.reclaim()
        copy_bytes(module.get_ptr(target), module.get_ptr(A=source), 2048)
        torch_lms.reclaim()
        assert is_away(source)
        assert is_away(target)
        assert torch.equal(target, numbers(512))
        pointer = module.get_ptr(source)
        torch_lms.reclaim()
        assert not is_away(source)
        ctypes.memset(pointer, 0, 2048)
        del pointer
        torch_lms.reclaim()
        assert is_away(source)
        assert not source.any()
        assert module.get_ptr(None) is None
        assert lms.stats().unpaged_bytes == {}
        lms.validate()


def test_what_cannot_be_paged_is_counted(lms: api.Lms) -> None:
    shared = torch.ones(4096).share_memory_()
    foreign = torch.from_numpy(np.ones(4096, dtype=np.float32))
    assert (shared + foreign).sum().item() == 2 * 4096
    unpaged = lms.stats().unpaged_bytes
    assert unpaged == {"shared memory": 4 * 4096, "not resizable": 4 * 4096}


def test_views_of_an_evicted_page_share_it_when_it_is_back(lms: api.Lms) -> None:
    tensor = evicted()
    view = tensor.view(64, 64)[3]
    torch_lms.reclaim()
    view.fill_(7.0)
    torch_lms.reclaim()
    assert tensor[3 * 64 : 4 * 64].tolist() == [7.0] * 64
    assert lms.stats().evictions >= 2


VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "select": lambda t: t[7],
    "slice": lambda t: t[100:200:3],
    "narrow": lambda t: t.narrow(0, 4000, 96),
    "split": lambda t: t.split(1000),
    "chunk, unbind": lambda t: t.view(64, 64).chunk(2)[1].unbind(1),
    "diagonal": lambda t: t.view(64, 64).diagonal(3),
    "as_strided": lambda t: t.as_strided((5, 3), (700, 2), 9),
    "unfold": lambda t: t.unfold(0, 16, 8),
    "a part of a part": lambda t: t.view(64, 64)[5:].t()[3:, 2],
    "real and imaginary": lambda t: torch.view_as_complex(t.view(-1, 2)).conj()[5:].imag,
}


@pytest.mark.parametrize("kind", VIEWS)
def test_a_view_of_an_evicted_page_does_not_bring_it(kind: str, lms: api.Lms) -> None:
    expected, tensor = numbers(), evicted()
    fetches = lms.stats().fetches
    views = VIEWS[kind](tensor)
    if kind != "real and imaginary":  # the same bytes as another type
        assert lms.stats().fetches == fetches
    for view, other in zip(*map(pytree.tree_leaves, (views, VIEWS[kind](expected))), strict=True):
        assert view.stride() == other.stride()
        assert torch.equal(view, other)
        torch_lms.reclaim()
        view.copy_(view + 1)
        other.copy_(other + 1)
        torch_lms.reclaim()
    assert torch.equal(tensor, expected)


def test_a_view_that_would_leave_an_evicted_page_is_refused(lms: api.Lms) -> None:
    tensor = evicted()
    with pytest.raises(RuntimeError, match="out of bounds for storage of size 16384"):
        tensor.as_strided((4096,), (1,), 1)
    assert torch.equal(tensor, numbers())


def test_gradients_flow_through_a_view_that_was_made_of_an_evicted_page(lms: api.Lms) -> None:
    weight = numbers().requires_grad_()
    torch_lms.reclaim()
    fetches = lms.stats().fetches
    part = weight[64:]
    assert lms.stats().fetches == fetches
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        part.mul_(2)
    (part * part).sum().backward()
    assert torch.equal(weight.grad, torch.cat([torch.zeros(64), 2 * numbers()[64:]]))


def test_a_lazily_conjugated_page_stays_so_in_its_views(lms: api.Lms) -> None:
    values = torch.complex(numbers(), numbers() + 1)
    lazy = values.conj()
    torch_lms.reclaim()
    fetches = lms.stats().fetches
    part = lazy[8:16]
    assert lms.stats().fetches == fetches
    assert part.is_conj()
    assert torch.equal(part.imag, -numbers()[8:16] - 1)


def test_checkpoint_three_times_the_limit(tmp_path: Path) -> None:
    """Saves, loads, and trains on, paged, equal to the bit; what is loaded can be paged again (N12)."""

    def train(steps: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 512)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(3)
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)))
        return model, torch.optim.Adam(model.parameters())

    def whole(path: Path, session: Callable[[], Any], assign: bool) -> tuple[list[float], Any]:
        model, optimizer = fresh()
        with session() as lms:
            train(2, model, optimizer)
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
            if lms is not None:
                size = sum(p.nbytes for p in model.parameters()) * 3
                assert size > 3 * lms.stats().limit_bytes
                assert path.stat().st_size > 3 * lms.stats().limit_bytes
                assert lms.stats().resident_bytes <= lms.stats().limit_bytes + 512 * 512 * 4
            model, optimizer = fresh()
            loaded = torch.load(path)
            model.load_state_dict(loaded["model"], assign=assign)
            if assign:
                optimizer = torch.optim.Adam(model.parameters())
            optimizer.load_state_dict(loaded["optimizer"])
            del loaded
            torch.manual_seed(9)
            losses = train(3, model, optimizer)
            if lms is not None:
                lms.validate()
                stats = lms.stats()
                assert stats.unpaged_bytes.keys() <= (set() if CAN_SWAP else {"not resizable"})
                assert stats.evicted_bytes > 0
        return losses, model.state_dict()

    for assign in (False, True):
        losses, state = whole(tmp_path / "plain.pt", nullcontext, assign)
        limit = 512 * 512 * 4 * 5
        session = partial(torch_lms.session, limit=limit, min_size="64KiB")
        paged_losses, paged_state = whole(tmp_path / "paged.pt", session, assign)
        assert paged_losses == losses
        assert all(torch.equal(state[name], paged_state[name]) for name in state)
        plain_file, paged_file = torch.load(tmp_path / "plain.pt"), torch.load(tmp_path / "paged.pt")
        assert all(torch.equal(plain_file["model"][name], paged_file["model"][name]) for name in state)


def test_disable_brings_everything_back() -> None:
    with torch_lms.session(limit=0, min_size=512):
        tensors = [numbers() for _ in range(4)]
        torch_lms.reclaim()
    assert all(torch.equal(tensor, numbers()) for tensor in tensors)
    assert torch.Tensor.data_ptr is torch._C.TensorBase.data_ptr
    assert "nbytes" not in vars(torch.UntypedStorage)


def test_pinned_tensors_stay(lms: api.Lms) -> None:
    model = nn.Linear(256, 256)
    torch_lms.reclaim()
    with torch_lms.pinned(model):
        torch_lms.reclaim()
        assert torch._C.StorageBase.nbytes(model.weight.untyped_storage()) > 0
        lms.validate()
    torch_lms.reclaim()
    assert torch._C.StorageBase.nbytes(model.weight.untyped_storage()) == 0


def test_a_storage_is_read_byte_by_byte() -> None:
    """It is brought back for some thousands of them at a time, not for each."""
    tensor = torch.arange(5000.0)
    expected = bytes(tensor.untyped_storage())
    with torch_lms.session(limit="1GB", min_size=1024, device="cpu") as lms:
        away = tensor + 0
        lms.reclaim()
        before = torch_lms.stats().fetches
        assert bytes(away.untyped_storage()) == expected
        assert torch_lms.stats().fetches == before + 1
        lms.reclaim()
        assert away.untyped_storage().tolist() == list(expected)
        bytes_of = iter(away.untyped_storage())
        assert [next(bytes_of) for _ in range(4)] == list(expected[:4])
        uses = api.current_session().uses
        bytes(away.untyped_storage())
        assert api.current_session().uses - uses < 20  # of 20,000 bytes


@pytest.mark.usefixtures("_each_interposer")
def test_storages_freed_by_hand_are_empty_though_they_were_away() -> None:
    """As FSDP does it: what is empty is allocated anew, and filled."""
    with torch_lms.session(limit="1GB", min_size=1024, device="cpu") as lms:
        tensors = [torch.full((1000,), float(number)) for number in range(3)]
        lms.reclaim()
        for tensor in tensors:
            storage = tensor.untyped_storage()
            assert storage.size() == 4000
            storage.resize_(0)
            assert storage.size() == 0
        lms.validate()
        assert lms.stats().disk_bytes == lms.stats().resident_bytes == 0
        for tensor in tensors:
            tensor.untyped_storage().resize_(4000)
            tensor.fill_(7)
        lms.reclaim()
        assert [float(tensor.sum()) for tensor in tensors] == [7000] * 3


def test_sparse_tensors_bring_their_parts(lms: api.Lms) -> None:
    values = evicted(2048)
    indices = torch.arange(2048).repeat(2, 1)
    sparse = torch.sparse_coo_tensor(indices, values, (2048, 2048)).coalesce()
    torch_lms.reclaim()
    result = torch.sparse.mm(sparse, torch.ones(2048, 1))
    torch_lms.reclaim()
    assert torch.equal(result.view(-1), numbers(2048))


def test_cuda_graphs_are_refused() -> None:
    patches = RawPatches(Mock(spec=PageOwner), "cuda")
    patches.install()
    try:
        graph = torch.cuda.CUDAGraph
        for call in (graph.capture_begin, graph.replay, torch.cuda.graph.__enter__):
            with pytest.raises(UnsupportedError, match="neither captured nor replayed"):
                call(Mock())
    finally:
        patches.uninstall()


def test_empty_tensors_that_pytorch_fills_unseen() -> None:
    """``ctc_loss`` makes a tensor empty, and fills it from a list in C++."""
    scores, targets = torch.randn(50, 3, 15).log_softmax(2), torch.randint(1, 15, (3, 20))
    expected = nn.functional.ctc_loss(scores, targets, (50, 50, 50), (20, 15, 10))
    with torch_lms.session(limit=0, min_size=1):
        assert torch.equal(nn.functional.ctc_loss(scores, targets, (50, 50, 50), (20, 15, 10)), expected)


def test_operators_of_unknown_libraries_are_taken_to_write(lms: api.Lms) -> None:
    """Their schemas may not tell: a page that such an operator had is not taken for clean."""
    with torch.library._scoped_library("torch_lms_test", "FRAGMENT") as library:
        library.define("bump(Tensor x) -> Tensor")
        library.impl("bump", lambda x: x.add_(1).sum(), "CompositeExplicitAutograd")
        tensor = evicted()
        torch.ops.torch_lms_test.bump(tensor)
        torch_lms.reclaim()
        assert torch.equal(tensor, numbers() + 1)


def test_lazy_parameters_are_met_once_they_exist(lms: api.Lms) -> None:
    layer = nn.LazyLinear(64)
    assert layer(torch.ones(16, 64)).shape == (16, 64)
    torch_lms.reclaim()
    assert torch._C.StorageBase.nbytes(layer.weight.untyped_storage()) == 0


def test_what_is_copied_as_a_storage_can_leave_again(lms: api.Lms) -> None:
    """As ``deepcopy`` of an optimizer's state copies it."""
    tensor = evicted()
    state = {"state": {0: {"exp_avg": tensor}}}
    copied = copy.deepcopy(state)["state"][0]["exp_avg"] + 0
    other = evicted()
    other.untyped_storage().copy_(src=tensor.untyped_storage())
    torch_lms.reclaim()
    for each in (tensor, copied, other):
        assert torch._C.StorageBase.nbytes(each.untyped_storage()) == 0
        assert torch.equal(each, numbers())
    assert not lms.stats().unpaged_bytes
