"""What PyTorch can do with tensors gives the same bits when every page leaves after every operation.

A feature is a function without arguments that uses tensors of at least 2 KiB and returns a nest of tensors and plain
values. More of them are in `test_features_autograd.py` and `test_features_training.py`.
"""

import copy
import io
import multiprocessing.resource_sharer
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torch_lms
from tests.sweep.variants import fingerprints
from tests.ways import IS_NATIVE

Feature = Callable[[], Any]
FEATURES: dict[str, Feature] = {}

CHANGED_BY_ANY_MODE: set[str] = set()
"""Where a dispatch mode sees the operations, they equal an empty mode, not a plain run (N22)."""

BROKEN: set[str] = {
    "tensors_of_elements",  # PyTorch reads elements of lists without an operation
}
"""They show a bug that is not repaired yet."""

BROKEN_CRASH: list[str] = []
"""The same, but the process dies of it: not run at all."""


class EmptyMode(TorchDispatchMode):
    """Does nothing, but is there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def, override]
        return func(*args, **(kwargs or {}))


def reference(is_changed_by_modes: bool) -> AbstractContextManager[Any]:
    """What a feature must equal: a plain run, but for what any mode changes, where ours is one."""
    return EmptyMode() if is_changed_by_modes and not IS_NATIVE else nullcontext()


def check(feature: Feature, reference: AbstractContextManager[Any]) -> None:
    """Run ``feature`` inside ``reference`` and inside a session, and compare."""
    with reference:
        expected = _prints(_run(feature))
    with torch_lms.session(limit=0, min_size=512) as running:
        results = _run(feature)
        running.validate()
        assert running.stats().evictions > 0
    assert _prints(results) == expected


def _run(feature: Feature) -> list[Any]:
    torch.manual_seed(0)
    leaves = tree_leaves(feature())
    return [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _prints(leaves: list[Any]) -> list[str]:
    assert any(isinstance(leaf, torch.Tensor) for leaf in leaves)
    return fingerprints([leaves])[0]


def cases(features: dict[str, Feature], broken: set[str], crashing: list[str]) -> list[Any]:
    """The names of ``features``, to parametrize with."""
    return [
        pytest.param(name, marks=[pytest.mark.xfail(strict=True)] if name in broken else [])
        for name in features
        if name not in crashing
    ]


def everything_leaves() -> None:
    """Where there is a session."""
    if torch_lms.is_enabled():
        torch_lms.reclaim()


def entering(features: dict[str, Feature]) -> Callable[[Feature], Feature]:
    """A decorator that enters a function in ``features``."""

    def enter(function: Feature) -> Feature:
        features[function.__name__] = function
        return function

    return enter


feature = entering(FEATURES)


def saved(value: Any) -> io.BytesIO:
    """A file with ``value``, at its beginning."""
    torch.save(value, file := io.BytesIO())
    file.seek(0)
    return file


def leaf(*shape: int) -> torch.Tensor:
    """Random numbers that want a gradient."""
    return torch.randn(*shape, requires_grad=True)


def with_gradients(result: torch.Tensor, *leaves: torch.Tensor) -> list[Any]:
    """``result`` and its gradients."""
    (result.abs() if result.is_complex() else result).square().sum().backward()
    return [result, [tensor.grad for tensor in leaves]]


# -- storages and views ------------------------------------------------------------------------------------------------


@feature
def resized_by_the_user() -> Any:
    grown, freed, shrunk = torch.randn(1024), torch.randn(1024), torch.randn(1024)
    everything_leaves()
    grown.resize_(2048)[1024:].fill_(1.0)
    freed.untyped_storage().resize_(0)
    freed.untyped_storage().resize_(4 * 1024)
    freed.copy_(grown[:1024])
    shrunk.untyped_storage().resize_(4 * 600)
    everything_leaves()
    return grown, freed, shrunk[:600] * 2, shrunk.untyped_storage().nbytes()


@feature
def results_into_given_tensors() -> Any:
    x, out = torch.randn(32, 32), torch.empty(0)
    torch.add(x, 1, out=out)
    everything_leaves()
    torch.mul(out, 2, out=out[:])
    torch.matmul(x, x, out=out)
    ordered = torch.sort(x, 1, out=(torch.empty(0), torch.empty(0, dtype=torch.int64)))
    return out, ordered, torch.cat([x, x], out=torch.empty(7)), torch.empty(4).resize_as_(x).zero_()


@feature
def results_that_grow() -> Any:
    """One of them is a page before, the other becomes one."""
    x, low, high = torch.randn(1024, 8), torch.zeros(600), torch.empty(0)
    low.resize_(0)
    everything_leaves()
    torch.aminmax(x, dim=1, out=(low, high))
    everything_leaves()
    return low, high, x


@feature
def other_views_of_a_storage() -> Any:
    base = torch.randn(64, 64)
    everything_leaves()
    strided = base.as_strided((8, 8), (100, 3), 50)
    shared = torch.empty(0).set_(base.untyped_storage(), 64, (32, 16), (16, 1))
    legacy = torch.FloatTensor(base.storage())
    everything_leaves()
    return strided, shared, legacy, base.view(torch.int16), base.unfold(0, 3, 2)


@feature
def lazy_clones() -> Any:
    """They share memory until one of them is written."""
    x = torch.randn(32, 32)
    y = torch._lazy_clone(x)
    y.add_(1)
    everything_leaves()
    return x * 2, y


@feature
def in_place_on_views() -> Any:
    x = leaf(64, 64)
    base = x * 2
    rows, column = base[10:20], base[:, 3]
    everything_leaves()
    rows.mul_(3)
    column.add_(rows[:, 0].sum())
    base[5:9, ::2] = torch.zeros(4, 32)
    base.diagonal().mul_(0.5)
    base.t()[7].copy_(base[8])
    return with_gradients(base, x), rows, column


@feature
def data_swaps() -> Any:
    parameter = nn.Parameter(torch.randn(32, 32))
    everything_leaves()
    parameter.data = torch.randn(64, 32)
    first = with_gradients(parameter @ torch.ones(32, 8), parameter)
    parameter.data.mul_(2)
    parameter.grad.data = torch.randn(64, 32)
    parameter.grad.data[3] = 7.0
    return first, parameter, parameter.grad


@feature
def swap_tensors() -> Any:
    a, b = torch.randn(32, 32), torch.randn(64, 64)
    everything_leaves()
    torch.utils.swap_tensors(a, b)
    a.add_(1)
    everything_leaves()
    torch.utils.swap_tensors(a, b)
    return a, b


@feature
def indexing() -> Any:
    x, index, mask = leaf(64, 64), torch.randint(64, (16384,)), torch.randn(64, 64) > 0
    everything_leaves()
    gathered = x[index[:900]] + x.index_select(1, index[900:964]).repeat(15, 1)[:900]
    put = torch.zeros(64, 64).index_put_((index[:64], index[64:128]), x[0], accumulate=True)
    scattered = torch.zeros(64, 64).scatter_add(0, index[: 64 * 64].view(64, 64), x)
    chosen = x.masked_select(mask).cumsum(0).sum() + x[mask].sum() + torch.where(mask, x, -x).sum()
    total = gathered.sum() + put.sum() + scattered.square().sum() + chosen + x[index[0], index[1]] + x[index[3]].sum()
    return with_gradients(total, x), gathered, put, scattered


@feature
def results_whose_shape_depends_on_data() -> Any:
    x = torch.randn(64, 64)
    numbers = torch.randint(50, (16384,))
    everything_leaves()
    unique = torch.unique(numbers, return_inverse=True, return_counts=True)
    runs = torch.unique_consecutive(x.round().flatten(), return_counts=True)
    return (
        unique,
        runs,
        x.nonzero(),
        x.topk(5),
        x.sort(stable=True),
        numbers.bincount(),
        x.repeat_interleave(numbers[:64], 0),
    )


@feature
def integers_read_by_pytorch_itself() -> Any:
    """Views of tables that are pages, where PyTorch reads the numbers without an operation."""
    table = torch.arange(1, 20001)
    x = leaf(16, 8, 20)
    everything_leaves()
    pieces = x.flatten().tensor_split(table[5:9])
    loss = F.ctc_loss(x.log_softmax(2), table[:80].view(8, 10) % 19 + 1, table[8:16], table[2:10])
    return pieces, with_gradients(loss, x), torch.tensor([table[3], table[4]]), x[table[2]], list(range(10))[table[3]]


@feature
def numbers_read_one_by_one() -> Any:
    x = torch.randn(32, 32)
    everything_leaves()
    numbers = float(x[0, 1]), bool(x[3, 3] > 0), int(x[4, 4] * 100), [v.item() for v in x[5]], f"{x[6, 6]:.3f}"
    return numbers, 3.0 in x, max(x[8]), sorted(x[9]), torch.full((9,), x[1, 2]), x.clamp(x[0, 0], x[0, 1])


@feature
def tensors_of_elements() -> Any:
    x = torch.randn(1024)
    elements = [x[3], x[4]]
    everything_leaves()
    made = (
        torch.tensor(elements),
        torch.as_tensor([elements, elements]),
        torch.asarray(elements),
        x.new_tensor(elements),
    )
    everything_leaves()
    everything = torch.tensor(list(x)), torch.Tensor(elements), torch.FloatTensor(elements), x.new(elements)
    everything_leaves()
    return made, everything, torch.sparse_coo_tensor([[1, 2], [3, 4]], elements, (9, 9))


@feature
def dtypes() -> Any:
    x = torch.randn(64, 64)
    everything_leaves()
    halves = [x.to(dtype) @ x.to(dtype) for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.complex64)]
    eights = [x.to(dtype).to(torch.float32) for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)]
    return (
        halves,
        eights,
        x.type(torch.DoubleTensor),
        x.half().view(torch.int16),
        x.bfloat16().sum(0),
        x > 0,
        x.to(torch.int8),
    )


@feature
def default_dtype_and_device() -> Any:
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("cpu")
        x = torch.randn(32, 32, requires_grad=True)
        everything_leaves()
        with torch.device("cpu"):
            y = torch.ones(32, 32) @ x
        return with_gradients(y, x), str(x.device)
    finally:
        torch.set_default_dtype(before)
        torch.set_default_device(None)


@feature
def complex_views() -> Any:
    z = torch.randn(32, 32, dtype=torch.complex64, requires_grad=True)
    everything_leaves()
    parts = (
        torch.view_as_real(z)[..., 1],
        z.real * 2,
        z.conj().imag,
        z.conj().resolve_conj(),
        z.conj().imag.resolve_neg(),
    )
    w = torch.view_as_complex(torch.view_as_real(z) * 3)
    result = w.conj() @ z.mT + z.abs() + z.angle() + parts[0]
    v = z.detach().clone()
    v.imag.mul_(2)
    v.conj().copy_(v + 1)
    return with_gradients(result, z), parts, v, z.detach().conj().resolve_conj().numpy().copy().tolist()[0]


@feature
def fft() -> Any:
    x = leaf(32, 64)
    everything_leaves()
    window = torch.hann_window(128)
    spectrum = torch.stft(x.flatten(), 128, window=window, return_complex=True)
    back = torch.istft(spectrum, 128, window=window)
    total = torch.fft.irfft(torch.fft.rfft2(x) * 2, dim=0).sum() + torch.fft.fftshift(torch.fft.fft(x)).abs().sum()
    return with_gradients(total + back.square().sum(), x), spectrum, back


# -- other layouts and kinds of numbers --------------------------------------------------------------------------------


@feature
def sparse_coo() -> Any:
    values = leaf(600)
    sparse = torch.sparse_coo_tensor(torch.randint(64, (2, 600)), values, (64, 64))
    everything_leaves()
    (torch.sparse.sum(sparse * 2) + sparse.to_dense().square().sum()).backward()
    merged = sparse.detach().coalesce()
    everything_leaves()
    copies = merged.to_dense().to_sparse(), copy.deepcopy(merged), pickle.loads(pickle.dumps(merged)), merged + merged
    return values.grad, torch.sparse.mm(merged, torch.ones(64, 8)), copies, merged.is_coalesced()


@feature
def sparse_products() -> Any:
    """Whose gradients transpose, which copies where it only makes a view of a dense tensor."""
    values, dense = leaf(600), leaf(64, 32)
    sparse = torch.sparse_coo_tensor(torch.randint(64, (2, 600)), values, (64, 64))
    everything_leaves()
    return with_gradients(torch.sparse.mm(sparse, dense), values, dense), sparse.detach().t(), sparse.detach()[3]


@feature
def sparse_rows() -> Any:
    weight = torch.randn(64, 64).relu().requires_grad_()
    x = leaf(64, 32)
    csr = weight.to_sparse_csr()
    everything_leaves()
    y = csr @ x + (x.detach().t() @ weight.detach().to_sparse_csc()).t()
    blocks = torch.randn(64, 64).to_sparse_bsr((8, 8))
    everything_leaves()
    return with_gradients(y, x), csr.detach(), blocks @ x.detach(), blocks.to_dense(), csr.detach().values() * 2


@feature
def quantized_tensors() -> Any:
    x = torch.randn(128, 1024)
    q = torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)
    everything_leaves()
    changed = q.clone()
    changed[3] = changed[4]
    fake = torch.fake_quantize_per_channel_affine(x, torch.rand(128) + 0.1, torch.zeros(128).int(), 0, -128, 127)
    copies = copy.deepcopy(q), pickle.loads(pickle.dumps(q)), torch.ops.quantized.add(q, q, 0.2, 5)
    return q, q.dequantize(), q.int_repr(), changed, copies, fake


@feature
def quantized_by_channel() -> Any:
    """The scales live in the tensor's quantizer, where no operation shows them."""
    scales, zeros = torch.rand(128, dtype=torch.float64) + 0.1, torch.zeros(128, dtype=torch.int64)
    q = torch.quantize_per_channel(torch.randn(128, 64), scales, zeros, 0, torch.qint8)
    everything_leaves()
    copies = copy.deepcopy(q), pickle.loads(pickle.dumps(q))
    return q.int_repr(), [each.dequantize() for each in (q, *copies)], q.q_per_channel_scales()


@feature
def nested_without_gradients() -> Any:
    nested = torch.nested.nested_tensor([torch.randn(20, 32), torch.randn(30, 32)])
    weight = torch.randn(16, 32)
    everything_leaves()
    results = [F.gelu(nested), F.linear(nested, weight), nested * 2, nested.clone().add_(1)]
    return [each.to_padded_tensor(0.0) for each in results], nested.unbind()[1], results[1]


@feature
def nested_with_gradients() -> Any:
    parts, linear = [leaf(n, 32) for n in (20, 30, 40)], nn.Linear(32, 32)
    nested = torch.nested.as_nested_tensor(parts)
    everything_leaves()
    padded = torch.nested.to_padded_tensor(F.gelu(linear(nested)), 0.0)
    return with_gradients(padded, *parts, linear.weight)


@feature
def jagged() -> Any:
    parts, linear = [leaf(n, 32) for n in (20, 30, 40)], nn.Linear(32, 32)
    nested = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    everything_leaves()
    normed = F.layer_norm(F.gelu(linear(nested)), (32,)) * 2
    everything_leaves()
    results = [normed.to_padded_tensor(0.0), normed.sum(1), normed.offsets(), normed.unbind()[1]]
    return with_gradients(normed.values(), *parts, linear.weight), results


@feature
def attention_of_jagged_tensors() -> Any:
    parts = [leaf(n, 2, 32) for n in (20, 30, 40)]
    q = torch.nested.as_nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    everything_leaves()
    return with_gradients(F.scaled_dot_product_attention(q, q, q).transpose(1, 2).values(), *parts)


@feature
def mkldnn_tensors() -> Any:
    x, weight = torch.randn(64, 64), torch.randn(64, 64)
    everything_leaves()
    opaque = x.to_mkldnn()
    everything_leaves()
    return (opaque + opaque).to_dense(), F.linear(opaque, weight.to_mkldnn()).to_dense()


@feature
def masked_tensors() -> Any:
    x = torch.randn(64, 64)
    masked = torch.masked.masked_tensor(x, x > 0)
    everything_leaves()
    total = (masked * 2).sum(0)
    return total.get_data(), total.get_mask(), torch.masked.mean(x, 1, mask=x > 0), masked.to_tensor(0.0)


# -- roads out of PyTorch ----------------------------------------------------------------------------------------------


class _AsNumbers:
    """Pickles its tensor as an array of NumPy."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __getstate__(self) -> Any:
        return self.tensor.numpy()

    def __setstate__(self, state: Any) -> None:
        self.tensor = torch.from_numpy(state.copy())


@feature
def saving_of_objects() -> Any:
    x = torch.randn(32, 32)
    views = {"whole": x, "row": x[3], "shared": [x.t(), x.storage()]}
    everything_leaves()
    back = torch.load(saved(views), weights_only=False)
    everything_leaves()
    back["whole"].mul_(2)
    return back["whole"], back["row"], back["shared"][0], back["shared"][1].tolist()[:9]


@feature
def arrays_inside_saved_objects() -> Any:
    own = _AsNumbers(torch.randn(32, 32))
    everything_leaves()
    return torch.load(saved(own), weights_only=False).tensor, own.tensor


@feature
def numpy_aliases() -> Any:
    x = torch.randn(1024)
    everything_leaves()
    alias = x.numpy()
    everything_leaves()
    alias[5:9] = 3.0
    y = x * 2
    foreign = torch.from_numpy(np.arange(1024, dtype=np.float32))
    everything_leaves()
    foreign.add_(x)
    alias += 1
    torch.frombuffer(bytearray(4096), dtype=torch.float32).add_(x)
    mixed = np.add(x, y), np.asarray(y) * 2, y.numpy(force=True).copy()
    return x, y, foreign, [torch.from_numpy(np.asarray(array)) for array in mixed], memoryview(alias)[3]


@feature
def copies_of_leaves() -> Any:
    x = leaf(32, 32)
    first = with_gradients(x * 2, x)
    everything_leaves()
    y = copy.deepcopy(x)
    second = with_gradients(y.exp(), y)
    parameter = pickle.loads(pickle.dumps(nn.Parameter(x.detach())))
    shared = copy.deepcopy([x, x.detach(), {"again": x}])
    shared[1].add_(1)
    return (
        first,
        second,
        parameter,
        parameter.requires_grad,
        shared,
        shared[0] is shared[2]["again"],
        copy.copy(x.detach()),
    )


@feature
def shared_memory() -> Any:
    x, y = torch.randn(32, 32), leaf(32, 32)
    everything_leaves()
    x.share_memory_()
    model = nn.Linear(32, 32).share_memory()
    everything_leaves()
    x.mul_(2)
    return with_gradients(model(y @ x), y, *model.parameters()), x, x.is_shared()


@feature
def queues_of_processes() -> Any:
    queue = torch.multiprocessing.SimpleQueue()
    x = torch.randn(32, 32)
    everything_leaves()
    queue.put({"x": x, "parameter": nn.Parameter(x * 2)})
    everything_leaves()
    back = queue.get()
    x.add_(1)
    multiprocessing.resource_sharer.stop()
    return back["x"] * 2, back["parameter"] + x, x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", cases(FEATURES, BROKEN, BROKEN_CRASH))
def test_equal_to_the_bit(name: str) -> None:
    check(FEATURES[name], reference(name in CHANGED_BY_ANY_MODE))
