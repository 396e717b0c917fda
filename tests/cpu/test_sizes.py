"""What is said beforehand that operations create, against what they create (N8)."""

from typing import Any

import pytest
import torch
from operators import OPS, run
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import torch_lms
from torch_lms.capture import sizes
from torch_lms.capture.schema import OpInfo, describe
from torch_lms.capture.sizes import Sizes, onednn_workspace
from torch_lms.capture.tensors import tensors_among

MIB = 1 << 20

NOT_TOLD = {
    *("bincount", "repeat_interleave", "linalg_lstsq", "geqrf", "mm", "sum"),
    *("histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors"),
    *("multi_margin_loss_backward", "multilabel_margin_loss_backward", "fractional_max_pool3d_backward"),
    *("_sparse_mm_reduce_impl", "_sparse_mm_reduce_impl_backward", "_embedding_bag"),
}
"""Depends on data, or PyTorch does not tell; `mm` and `sum` of empty tensors."""

needs_bfloat16_of_onednn = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no layers in bfloat16 on this processor"
)


class Comparing(TorchDispatchMode):
    """Notes operators that create more than was said."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes, self.seen, self.short = Sizes(), 0, set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs, info = kwargs or {}, describe(func)
        if info.composite:
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        if info.view or info.opaque:  # what the latter make is learned
            return func(*args, **kwargs)
        return self.compared(func, info, args, kwargs)

    def compared(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        told = self.sizes.new_bytes(func, info, args, kwargs)
        given = {id(tensor.untyped_storage()) for tensor in tensors_among(pytree.tree_leaves((args, kwargs)))}
        result = func(*args, **kwargs)
        leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if any(leaf.layout is not torch.strided for leaf in leaves):
            return result
        made = {leaf.untyped_storage() for leaf in leaves}
        self.seen += 1
        if sum(storage.nbytes() for storage in made if id(storage) not in given) > told:
            self.short.add(info.packet.removeprefix("aten::"))
        return result


@pytest.mark.filterwarnings("ignore")
def test_no_less_is_told_than_is_made() -> None:
    mode = Comparing()
    run(OPS, mode)
    assert mode.seen > 10_000
    assert mode.short - NOT_TOLD == set()


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16_of_onednn)])
@pytest.mark.parametrize(
    "shape", [(1, 1, 16, 16), (64, 4, 288, 256), (64, 4, 256, 64), (7, 33, 5, 100), (3, 2, 700, 1)]
)
def test_the_workspace_of_an_lstm(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    steps, batch, width, hidden = shape
    kept: list[torch.Tensor] = []
    layer = nn.LSTM(width, hidden, dtype=dtype)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(torch.ones(steps, batch, width, dtype=dtype))
    workspaces = [tensor.nbytes for tensor in kept if tensor.dtype is torch.uint8]
    assert workspaces == [onednn_workspace(steps, batch, width, hidden, dtype.itemsize)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("left", "right", "divided"),
    [
        ((24, 16), (3, 6, 16), True),
        ((3, 6, 16), (24, 16), True),
        ((6, 24), (7, 24), True),
        ((3, 8, 16), (3, 6, 16), False),
    ],
)
def test_products_of_groups_of_matrices(left: Any, right: Any, divided: bool, dtype: torch.dtype) -> None:
    offsets = torch.tensor([8, 16, 24], dtype=torch.int32) if divided else None
    product = torch.ops.aten._grouped_mm.default
    args = (torch.ones(left, dtype=dtype), torch.ones(right, dtype=dtype).mT, offsets)
    assert Sizes().new_bytes(product, describe(product), args, {}) == product(*args).untyped_storage().nbytes()


@torch.library.custom_op("torch_lms_tests::spread", mutates_args=())
def spread(x: torch.Tensor, times: int) -> torch.Tensor:  # nobody told PyTorch what it gives
    return x.repeat(times)


def test_numbers_that_are_no_sizes_need_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    infer = sizes._infer

    def counted(func: Any, *args: Any) -> int:
        looks.append(str(func))
        return infer(func, *args)

    monkeypatch.setattr(sizes, "_infer", counted)
    known = Sizes()

    def new_bytes(func: Any, *args: Any, **kwargs: Any) -> int:
        return known.new_bytes(func, describe(func), args, kwargs)

    aten = torch.ops.aten
    x = torch.ones(4, 8)
    for number in (0.5, 0.25):  # as an optimizer's, which change with each step
        assert new_bytes(aten.addcdiv.default, x, x, x, value=number) == x.nbytes
        assert new_bytes(aten._foreach_div.ScalarList, [x, x], [number, 1.0]) == 2 * x.nbytes
    assert looks == ["aten.addcdiv.default", "aten._foreach_div.ScalarList"]
    whole = torch.ones(4, 8, dtype=torch.int32)
    assert new_bytes(aten.mul.Tensor, whole, 2) == whole.nbytes
    assert new_bytes(aten.mul.Tensor, whole.short(), 2) == whole.nbytes // 2
    assert new_bytes(aten.mul.Tensor, whole.short(), 2.0) == whole.nbytes  # float32: its type does matter
    for repeats in (2, 3):
        assert new_bytes(aten.repeat.default, x, [repeats, 1]) == repeats * x.nbytes
        assert new_bytes(aten.upsample_nearest1d.vec, x[None], None, [float(repeats)]) == repeats * x.nbytes
        assert new_bytes(aten.arange.default, float(repeats)) == repeats * 4


def test_what_is_not_told_is_learned() -> None:
    peaks = []
    with torch_lms.session(limit=10 * MIB, min_size=MIB, policy="reactive") as lms:
        x = torch.ones(MIB // 4)
        for _ in range(2):
            held = [torch.full((MIB // 2,), float(n)) for n in range(4)]
            lms.reset_stats()
            assert spread(x, 3).shape == (3 * MIB // 4,)
            peaks.append(lms.stats().peak_resident_bytes)
            assert [tensor[0].item() for tensor in held] == [0, 1, 2, 3]
            del held
    assert peaks[0] > 10 * MIB >= peaks[1]


@torch.library.custom_op("torch_lms_tests::told_spread", mutates_args=())
def told_spread(x: torch.Tensor, times: int) -> torch.Tensor:
    return x.repeat(times)


@told_spread.register_fake
def _(x: torch.Tensor, times: int) -> torch.Tensor:
    return x.new_empty(len(x) * times)


def test_what_the_fake_kernel_of_an_operator_tells_is_known_at_once() -> None:
    with torch_lms.session(limit=10 * MIB, min_size=MIB, policy="reactive") as lms:
        x = torch.ones(MIB // 4)
        held = [torch.full((MIB // 2,), float(n)) for n in range(4)]
        assert told_spread(x, 3).shape == (3 * MIB // 4,)
        assert lms.stats().peak_resident_bytes <= 10 * MIB
        assert [tensor[0].item() for tensor in held] == [0, 1, 2, 3]


@pytest.mark.parametrize("op", [torch.ops.aten.is_pinned.default, torch.ops.aten.equal.default])
def test_what_gives_a_number_is_not_tried(op: Any) -> None:
    """PyTorch warns of some of the arguments that it would be tried with."""
    assert not describe(op).creates
