"""How operators are cut: which of their arguments in which slabs, one file's table for all that can be (N27).

A cut says what a piece of the operation is given. Of its results nothing is said: where a piece's lies is seen by
their shapes.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from torch_lms.capture.pieces.proof import ALIGNED

Arguments = dict[str, Any]
"""Of a call, by the names of its operator's schema, defaults included."""


@dataclass(frozen=True, slots=True)
class Slab:
    """What a piece takes of an argument: from ``first`` to ``last`` along ``dim``.

    Attributes:
        before: zeros in front, and ``after``: behind.
        shape_only: whether nothing but its shape is asked.
        is_written: whether the operation may write it, so that no copy will do.
    """

    dim: int
    first: int
    last: int
    before: int = 0
    after: int = 0
    shape_only: bool = False
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """A way to cut an operation.

    Attributes:
        kind: as people say it: "rows of the result", for one.
        extent: of what is cut.
        takes: what the piece from one index to another takes instead of the whole's arguments: slabs, or other values.
        is_proven: whether it gives the same bits by construction. Else it has to be proved on this machine.
        step: bounds are multiples of it.
        keeps: of the results of a piece: dimension, first and last index of what counts; None if all of it does.
    """

    kind: str
    extent: int
    takes: Callable[[int, int], Mapping[str, Any]]
    is_proven: bool = False
    step: int = 1
    keeps: Callable[[int, int], tuple[int, int, int]] | None = None


Cuts = Callable[[Arguments], Iterator[Cut]]


def cuts_of(packet: str, arguments: Arguments) -> list[Cut]:
    """The ways to cut a call of an operator of the table, by its name without its overload's; the best first."""
    return [cut for cut in OPERATORS[packet.removeprefix("aten::")](arguments) if cut.extent > 1]


def _same(names: tuple[str, ...], dim: int) -> Callable[[int, int], dict[str, Slab]]:
    """Slabs of all arguments of these ``names`` along one dimension."""
    return lambda first, last: {name: Slab(dim, first, last) for name in names}


def _expanded(name: str, tensor: torch.Tensor | None, slab: Slab, dims: int) -> dict[str, Slab]:
    """The same slab of the argument of that ``name``, which is expanded to so many dimensions; none, if it is there."""
    place = -1 if tensor is None else slab.dim - (dims - tensor.dim())
    is_cut = tensor is not None and place >= 0 and tensor.shape[place] > 1
    return {name: Slab(place, slab.first, slab.last)} if is_cut else {}


# -- row by row ------------------------------------------------------------------------------------------------------


def _beside(names: tuple[str, ...]) -> Cuts:
    """Each line along the argument ``dim`` is computed by itself: any other dimension can be cut."""

    def cuts(given: Arguments) -> Iterator[Cut]:
        tensor = given[names[0]]
        if not isinstance(given.get("dim"), int):
            return
        line = given["dim"] % max(1, tensor.dim())
        for dim in _longest_first(tensor, set(range(tensor.dim())) - {line}):
            if step := _step_beside(tensor, dim, {line}):
                yield Cut(f"dimension {dim}", tensor.shape[dim], _same(names, dim), step=step)

    return cuts


def _longest_first(tensor: torch.Tensor, dims: set[int]) -> list[int]:
    """``dims``, the outermost in memory first."""
    return sorted((dim for dim in dims if tensor.shape[dim] > 1), key=lambda dim: -tensor.stride()[dim])


def _step_beside(tensor: torch.Tensor, dim: int, lines: set[int]) -> int:
    """What bounds along ``dim`` have to be multiples of, if each line along ``lines`` is computed by itself; 0 if it
    must not be cut there.

    Kernels take several lines that are side by side in memory as vectors, and what is left over in another way.
    """
    stride = tensor.stride(dim)
    if all(stride > tensor.stride(line) for line in lines if tensor.shape[line] > 1):
        return 1
    step = ALIGNED // math.gcd(ALIGNED, stride)
    return step if tensor.shape[dim] % step == 0 else 0


def _copied_beside(tensor: torch.Tensor, lines: set[int], names: tuple[str, ...] = ("self",)) -> Iterator[Cut]:
    """Elements are copied, from places along ``lines`` that are the same for each: any other dimension can be cut."""
    for dim in _longest_first(tensor, set(range(tensor.dim())) - lines):
        yield Cut(f"dimension {dim}", tensor.shape[dim], _same(names, dim), True)


def _moved(given: Arguments) -> Iterator[Cut]:
    """Elements move along the argument ``dims`` alone; along all of them, if it is empty."""
    tensor = given["self"]
    if given["dims"]:
        yield from _copied_beside(tensor, {dim % max(1, tensor.dim()) for dim in given["dims"]})


def _chosen(given: Arguments) -> Iterator[Cut]:
    """Elements are taken from places along the argument ``dim``, the same in each line, or those of its own."""
    tensor, index = given["self"], given["index"]
    lines = {given["dim"] % max(1, tensor.dim())}
    if index.dim() < tensor.dim():
        yield from _copied_beside(tensor, lines)
    else:
        shorter = {dim for dim in range(tensor.dim()) if index.shape[dim] != tensor.shape[dim]}
        yield from _copied_beside(tensor, lines | shorter, ("self", "index"))


def _indexed(given: Arguments) -> Iterator[Cut]:
    """The same by lists of indices: along dimensions that have none."""
    indices = {dim: index for dim, index in enumerate(given["indices"]) if index is not None}
    if not any(index.dtype in (torch.bool, torch.uint8) for index in indices.values()):  # masks may have several
        yield from _copied_beside(given["self"], set(indices))


def _triangle(given: Arguments) -> Iterator[Cut]:
    """By matrices, or by rows: below each the diagonal has gone on by one."""
    tensor = given["self"]
    rows = tensor.dim() - 2
    for dim in range(rows):
        yield Cut("matrices", tensor.shape[dim], _same(("self",), dim), True)

    def by_row(first: int, last: int) -> dict[str, Any]:
        return {"self": Slab(rows, first, last), "diagonal": given["diagonal"] + first}

    yield Cut("rows", tensor.shape[rows], by_row, True)


def _layer_norm(given: Arguments) -> Iterator[Cut]:
    tensor = given["input"]
    for dim in range(tensor.dim() - len(given["normalized_shape"])):
        yield Cut(f"dimension {dim}", tensor.shape[dim], _same(("input",), dim))


def _layer_norm_backward(given: Arguments) -> Iterator[Cut]:
    """The gradient of the input alone; those of weight and bias are sums over all rows."""
    if any(given["output_mask"][1:]):
        return
    tensor = given["input"]
    for dim in range(tensor.dim() - len(given["normalized_shape"])):
        yield Cut(f"dimension {dim}", tensor.shape[dim], _same(("grad_out", "input", "mean", "rstd"), dim))


def _group_norm(given: Arguments) -> Iterator[Cut]:
    tensor = given["input"]
    batch, channels, groups = given["N"], given["C"], given["group"]
    step = channels // groups

    def samples(first: int, last: int) -> dict[str, Any]:
        return {"input": Slab(0, first, last), "N": last - first}

    def by_group(first: int, last: int) -> dict[str, Any]:
        count = last - first
        found = {"input": Slab(1, first, last), "C": count, "group": count // step}
        return found | {name: Slab(0, first, last) for name in ("weight", "bias") if given[name] is not None}

    if tensor.shape[:2] == (batch, channels):
        yield Cut("samples", batch, samples)
        yield Cut("groups of channels", channels, by_group, step=step)


def _group_norm_backward(given: Arguments) -> Iterator[Cut]:
    """By samples only if the gradients of weight and bias, which are sums over them, are not asked for."""
    tensor = given["input"]
    batch, channels, groups = given["N"], given["C"], given["group"]
    step = channels // groups
    names = ("grad_out", "input", "mean", "rstd")

    def by_group(first: int, last: int) -> dict[str, Any]:
        count = (last - first) // step
        found: dict[str, Any] = {name: Slab(1, first, last) for name in names[:2]}
        found |= {name: Slab(1, first // step, last // step) for name in names[2:]}
        found |= {"weight": Slab(0, first, last)} if given["weight"] is not None else {}
        return found | {"C": last - first, "group": count}

    if tensor.shape[:2] == (batch, channels) and given["mean"].shape == (batch, groups):
        if not any(given["output_mask"][1:]):
            yield Cut("samples", batch, lambda a, b: {**_same(names, 0)(a, b), "N": b - a})
        yield Cut("groups of channels", channels, by_group, step=step)


def _embedding_dense_backward(given: Arguments) -> Iterator[Cut]:
    """By features: the gradient of a row is a sum over all indices that name it."""
    dim = given["grad_output"].dim() - 1
    yield Cut("features", given["grad_output"].shape[dim], _same(("grad_output",), dim))


def _embedding(given: Arguments) -> Iterator[Cut]:
    yield Cut("indices", given["indices"].shape[0] if given["indices"].dim() else 0, _same(("indices",), 0), True)


def _nll_loss_backward(given: Arguments) -> Iterator[Cut]:
    """Of the scores nothing but the shape is asked, and the order in memory."""
    names = ("target",) if given["grad_output"].dim() == 0 else ("grad_output", "target")
    tensor = given["self"]
    if tensor.dim() < 2:
        return
    is_plain = tensor.is_contiguous()

    def takes(dim: int, first: int, last: int) -> dict[str, Slab]:
        place = dim - (dim > 0)  # without the dimension of classes
        found = {name: Slab(place, first, last) for name in names}
        return {"self": Slab(dim, first, last, shape_only=is_plain)} | found

    for dim in (0, *range(2, tensor.dim())):
        yield Cut(f"dimension {dim}", tensor.shape[dim], partial(takes, dim), True)


def _beside_all(given: Arguments) -> Iterator[Cut]:
    """What lies along all of the argument ``dim`` is computed by itself, as a sum or a transform: others can be cut."""
    tensor = given["self"]
    dims = given.get("dim")
    if not isinstance(dims, list) or not dims or tensor.dim() == 0:
        return
    lines = {dim % tensor.dim() for dim in dims}
    for dim in _longest_first(tensor, set(range(tensor.dim())) - lines):
        if step := _step_beside(tensor, dim, lines):
            yield Cut(f"dimension {dim}", tensor.shape[dim], _same(("self",), dim), step=step)


# -- channel by channel ----------------------------------------------------------------------------------------------


def _by_channel(tensors: tuple[str, ...], vectors: tuple[str, ...] = (), is_proven: bool = False) -> Cuts:
    """Each channel is computed by itself.

    Args:
        tensors: have it as dimension 1.
        vectors: have it as dimension 0; some may be missing, or empty.
    """

    def cuts(given: Arguments) -> Iterator[Cut]:
        def takes(first: int, last: int) -> dict[str, Slab]:
            found = {name: Slab(1, first, last) for name in tensors}
            for name in vectors:
                if _has_elements(given.get(name)):
                    found[name] = Slab(0, first, last, is_written=name in _STATISTICS)
            return found

        yield Cut("channels", given[tensors[0]].shape[1], takes, is_proven)

    return cuts


def _has_elements(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 0


_STATISTICS = ("running_mean", "running_var")
_NORM_VECTORS = ("weight", "bias", *_STATISTICS)


def _batch_norm(given: Arguments) -> Iterator[Cut]:
    """By channels. Rows only where the statistics are not the batch's."""
    yield from _by_channel(("input",), _NORM_VECTORS)(given)
    if not given.get("training", False):
        tensor = given["input"]
        for dim in (0, *range(2, tensor.dim())):
            yield Cut(f"dimension {dim}", tensor.shape[dim], _same(("input",), dim))


def _planes(names: tuple[str, ...], space: int, sizes: str = "", is_proven: bool = True) -> Cuts:
    """Each plane, or volume, of a channel of a sample is computed by itself.

    Args:
        names: of the arguments that have them.
        space: 2 for planes, 3 for volumes; one more where the channels belong together.
        sizes: the name of the argument that has the shape of a result.
    """

    def cuts(given: Arguments) -> Iterator[Cut]:
        tensor = given[names[0]]
        planes = tensor.dim() - space
        for dim in range(planes):

            def takes(first: int, last: int, dim: int = dim) -> dict[str, Any]:
                found: dict[str, Any] = {name: Slab(dim, first, last) for name in names}
                if sizes:
                    whole = list(given[sizes])
                    found[sizes] = [*whole[:dim], last - first, *whole[dim + 1 :]]
                return found

            yield Cut("channels" if dim == planes - 1 else "samples", tensor.shape[dim], takes, is_proven)

    return cuts


# -- matrix products -------------------------------------------------------------------------------------------------


def _product(left: str, right: str, added: str = "") -> Cuts:
    """Rows of the left, columns of the right, or products of a batch."""

    def cuts(given: Arguments) -> Iterator[Cut]:
        one, two = given[left], given[right]
        rows, columns = one.dim() - 2, one.dim() - 1
        offset = given[added] if added else None

        def with_added(found: dict[str, Slab], dim: int, first: int, last: int) -> dict[str, Slab]:
            return found | _expanded(added, offset, Slab(dim, first, last), one.dim())

        def some(first: int, last: int) -> dict[str, Slab]:
            return with_added({left: Slab(0, first, last), right: Slab(0, first, last)}, 0, first, last)

        if one.dim() == 3:
            yield Cut("matrices", one.shape[0], some)
        yield Cut("rows", one.shape[rows], lambda a, b: with_added({left: Slab(rows, a, b)}, rows, a, b))
        yield Cut("columns", two.shape[columns], lambda a, b: with_added({right: Slab(columns, a, b)}, columns, a, b))

    return cuts


def _grouped_product(given: Arguments) -> Iterator[Cut]:
    """Products by groups. They end where ``offs`` tells: along what is summed up; or along the rows of the left, if
    the right has a matrix for each, or along the columns of the right, if the left has.
    """
    left, right = given["self"], given["mat2"]
    if given["bias"] is not None:
        return
    if left.dim() == 3 or right.dim() == 2:
        yield Cut("rows", left.shape[-2], _same(("self",), left.dim() - 2))
    if right.dim() == 3 or left.dim() == 2:
        yield Cut("columns", right.shape[-1], _same(("mat2",), right.dim() - 1))


def _attention(names: tuple[str, ...], of_queries: tuple[str, ...] = ()) -> Cuts:
    """Each head of each sample is computed by itself, and what each query gives by these arguments."""

    def cuts(given: Arguments) -> Iterator[Cut]:
        query, mask = given["query"], given.get("attn_mask")
        if given.get("dropout_p") or given["key"].shape[1] != query.shape[1]:
            return

        def along(dim: int, names: tuple[str, ...], first: int, last: int) -> dict[str, Slab]:
            return _same(names, dim)(first, last) | _expanded("attn_mask", mask, Slab(dim, first, last), query.dim())

        for dim, kind in enumerate(("samples", "heads")):
            yield Cut(kind, query.shape[dim], partial(along, dim, names))
        if of_queries and not given.get("is_causal"):
            yield Cut("queries", query.shape[2], partial(along, 2, of_queries))

    return cuts


# -- convolutions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Line:
    """A convolution along its first dimension of space."""

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    @classmethod
    def of(cls, given: Arguments) -> "_Line":
        """Of the arguments of a convolution, or of its gradients."""
        firsts = [given[name][0] for name in ("stride", "padding", "dilation")]
        return cls(given["input"].shape[2], given["weight"].shape[2], *firsts)

    @property
    def reach(self) -> int:
        """Of the kernel, in indices of the input."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def results(self) -> int:
        """How many there are."""
        return (self.size + 2 * self.padding - self.reach) // self.stride + 1

    def seen(self, first: int, last: int) -> tuple[int, int]:
        """What of the input those results see. Padding counts: it may begin below 0, and end beyond the size."""
        return first * self.stride - self.padding, (last - 1) * self.stride - self.padding + self.reach

    def seeing(self, first: int, last: int) -> tuple[int, int]:
        """The results that see any of the input from ``first`` to ``last``."""
        begin = -(-(first + self.padding - self.reach + 1) // self.stride)
        end = (last - 1 + self.padding) // self.stride + 1
        return max(0, begin), min(self.results, end)

    def slab(self, first: int, last: int) -> Slab:
        """That part of the input, which may begin below 0, and end beyond its size."""
        inside = (max(0, first), min(self.size, last))
        return Slab(2, *inside, before=inside[0] - first, after=last - inside[1])


def _in_full(given: Arguments) -> Arguments | None:
    """``given``, with a number for each dimension of space where one is told for all; None if there is no batch."""
    space = given["input"].dim() - 2
    if space <= 0 or given["weight"].dim() != space + 2:
        return None
    lists = {name: given[name] for name in ("stride", "padding", "dilation")}
    return {**given, **{name: its * space if len(its) == 1 else its for name, its in lists.items()}}


def _without_padding(given: Arguments) -> dict[str, Any]:
    return {"padding": [0, *given["padding"][1:]]}


def _channels_by_group(given: Arguments, dims: Mapping[str, int], shape_only: str = "") -> Cut:
    """Each group of channels is computed by itself.

    Args:
        given: of the call.
        dims: by the names of arguments, which of their dimensions are channels.
        shape_only: the name of an argument of which nothing but the shape is asked.
    """
    groups, sizes = given["groups"], given.get("bias_sizes")

    def takes(first: int, last: int) -> dict[str, Any]:
        found: dict[str, Any] = {"groups": last - first}
        for name, dim in dims.items():
            if given[name] is not None:
                width = given[name].shape[dim] // groups
                found[name] = Slab(dim, first * width, last * width, shape_only=name == shape_only)
        return found | ({"bias_sizes": [sizes[0] // groups * (last - first)]} if sizes else {})

    return Cut("groups of channels", groups, takes)


def _convolution(asked: Arguments) -> Iterator[Cut]:
    given = _in_full(asked)
    if given is None:
        return
    tensor, weight = given["input"], given["weight"]
    yield Cut("samples", tensor.shape[0], _same(("input",), 0))
    line = _Line.of(given)
    if not given["transposed"] and line.results > 1:

        def rows(first: int, last: int) -> dict[str, Any]:
            return {"input": line.slab(*line.seen(first, last)), **_without_padding(given)}

        yield Cut("rows", line.results, rows)

    def channels(first: int, last: int) -> dict[str, Any]:
        found = {"weight": Slab(1 if given["transposed"] else 0, first, last)}
        return found | ({"bias": Slab(0, first, last)} if given["bias"] is not None else {})

    if given["groups"] == 1:
        yield Cut("channels", weight.shape[1 if given["transposed"] else 0], channels)
    else:
        yield _channels_by_group(given, {"input": 1, "weight": 0, "bias": 0})


def _convolution_backward(asked: Arguments) -> Iterator[Cut]:
    """Either the gradient of the input, or those of weight and bias: ``split.parts`` has told them apart."""
    given = _in_full(asked)
    of_input, *others = asked["output_mask"]
    if (of_input and any(others)) or given is None:
        return
    tensor, weight = given["input"], given["weight"]
    channels_of = {"grad_output": 1, "input": 1, "weight": 0}
    out, into = (1, 0) if given["transposed"] else (0, 1)
    if of_input:
        line = _Line.of(given)

        def rows(first: int, last: int) -> dict[str, Any]:
            begin, end = line.seeing(first, last)
            size = line.seen(begin, end)
            slab = Slab(2, 0, size[1] - size[0], shape_only=True)
            return {"grad_output": Slab(2, begin, end), "input": slab, **_without_padding(given)}

        def kept(first: int, last: int) -> tuple[int, int, int]:
            begin = line.seen(*line.seeing(first, last))[0]
            return 2, first - begin, last - begin

        def samples(first: int, last: int) -> dict[str, Any]:
            return {"grad_output": Slab(0, first, last), "input": Slab(0, first, last, shape_only=True)}

        def channels(first: int, last: int) -> dict[str, Any]:
            return {"weight": Slab(into, first, last), "input": Slab(1, first, last, shape_only=True)}

        yield Cut("samples", tensor.shape[0], samples)
        if not given["transposed"] and line.stride <= line.reach and _is_covered(line):
            yield Cut("rows", line.size, rows, keeps=kept)
        if given["groups"] == 1:
            yield Cut("channels", tensor.shape[1], channels)
        else:
            yield _channels_by_group(given, channels_of, shape_only="input")
        return

    def weights(first: int, last: int) -> dict[str, Any]:
        sizes = given["bias_sizes"]
        found = {"grad_output": Slab(1, first, last), "weight": Slab(out, first, last)}
        return found | ({"bias_sizes": [last - first]} if sizes else {})

    def weights_of(first: int, last: int) -> dict[str, Any]:
        return {"input": Slab(1, first, last), "weight": Slab(into, first, last)}

    if given["groups"] == 1:
        yield Cut("channels of the result", weight.shape[out], weights)
        yield Cut("channels of the input", weight.shape[into], weights_of)
    else:
        yield _channels_by_group(given, channels_of)


def _is_covered(line: _Line) -> bool:
    """Whether each index of the input is seen by some result, so that each has a gradient."""
    return line.seen(line.results - 1, line.results)[1] >= line.size


_FUNCTIONS_OF_ROWS = ("grad_output", "output")
_BATCH_NORM_BACKWARD = ("weight", *_STATISTICS, "save_mean", "save_invstd", "save_var")
_UPSAMPLED = {"nearest2d": 2, "nearest3d": 3, "bilinear2d": 2, "bicubic2d": 2, "trilinear3d": 3}
_ATTENTION = ("query", "key", "value")
_OF_LINES = (
    *("_softmax", "_safe_softmax", "_log_softmax", "glu", "cumsum", "cumprod", "logcumsumexp", "sort", "topk"),
    *("argmax", "argmin", "max", "min", "prod"),
)

OPERATORS: dict[str, Cuts] = {
    "_softmax_backward_data": _beside(_FUNCTIONS_OF_ROWS),
    "_log_softmax_backward_data": _beside(_FUNCTIONS_OF_ROWS),
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_dense_backward,
    **dict.fromkeys(("flip", "roll"), _moved),
    **dict.fromkeys(("gather", "index_select"), _chosen),
    "index": _indexed,
    **dict.fromkeys(("tril", "triu"), _triangle),
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), _planes(("self",), 3)),
    **dict.fromkeys(_OF_LINES, _beside(("self",))),
    "glu_backward": _beside(("self", "grad_output")),
    **{
        f"grid_sampler_{space}d{which}": _planes(names, space + 1, is_proven=False)
        for space in (2, 3)
        for which, names in {"": ("input", "grid"), "_backward": ("grad_output", "input", "grid")}.items()
    },
    "nll_loss_backward": _nll_loss_backward,
    "nll_loss2d_backward": _nll_loss_backward,
    **dict.fromkeys(("sum", "mean", "amax", "amin", "var", "std", "var_mean", "linalg_vector_norm"), _beside_all),
    **dict.fromkeys(("_fft_r2c", "_fft_c2c", "_fft_c2r"), _beside_all),
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _by_channel(("input",), _NORM_VECTORS),
    "_native_batch_norm_legit_no_training": _batch_norm,
    "cudnn_batch_norm": _by_channel(("input",), _NORM_VECTORS),
    "native_batch_norm_backward": _by_channel(("grad_out", "input"), _BATCH_NORM_BACKWARD),
    **{
        f"{pool}{space}d{which}": _planes(names, space)
        for space in (2, 3)
        for pool, which, names in (
            ("max_pool", "_with_indices", ("self",)),
            ("max_pool", "_with_indices_backward", ("grad_output", "self", "indices")),
            ("avg_pool", "", ("self",)),
            ("avg_pool", "_backward", ("grad_output", "self")),
            ("_adaptive_avg_pool", "", ("self",)),
            ("_adaptive_avg_pool", "_backward", ("grad_output", "self")),
        )
    },
    **{
        f"{kind}_pad{space}d{which}": _planes(names, space, is_proven=not which)
        for space in (1, 2, 3)
        for kind in ("reflection", "replication")
        for which, names in {"": ("self",), "_backward": ("grad_output", "self")}.items()
    },
    **{f"upsample_{kind}": _planes(("self",), space, is_proven=False) for kind, space in _UPSAMPLED.items()},
    **{
        f"upsample_{kind}_backward": _planes(("grad_output",), space, "input_size", is_proven=False)
        for kind, space in _UPSAMPLED.items()
    },
    "mm": _product("self", "mat2"),
    "addmm": _product("mat1", "mat2", "self"),
    "bmm": _product("self", "mat2"),
    "_grouped_mm": _grouped_product,
    "baddbmm": _product("batch1", "batch2", "self"),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(_ATTENTION, ("query",)),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention(("grad_out", *_ATTENTION, "out", "logsumexp")),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
}
"""By name. Operators that treat each element by itself are cut everywhere, and stand nowhere here."""
