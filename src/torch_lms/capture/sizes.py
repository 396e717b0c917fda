"""How many bytes an operation will create, known before it runs (N8): from its shapes, on tensors without bytes.

``Sizes`` remembers the answers by signature, for the dispatch mode. ``dry_run`` calls an operator on tensors without
bytes, and adds what PyTorch's own meta kernels do not tell; ``trace_step`` uses it, too.
"""

import math
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_lms.capture.registry import storage_nbytes
from torch_lms.capture.schema import FINDING, OpInfo
from torch_lms.capture.unobserved import Undispatched

_MAX_ITEMSIZE = 8

_MAX_SIGNATURES = 20_000
"""The cache is emptied beyond this: a program whose shapes never repeat must not grow."""

_NO_KEY = (TypeError, RuntimeError)
"""Raised where an argument is not hashable, or does not tell its shape, as lazy parameters."""

_HARMLESS = (int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_FREQUENT = frozenset((*_HARMLESS, bool))
_NUMBERS = frozenset((int, float, complex))

IsPage = Callable[[OpInfo, torch.dtype, int], bool]
"""Whether an operator's result of this type, in a storage of so many bytes, may be a page."""


def _always(_info: OpInfo, _dtype: torch.dtype, _nbytes: int) -> bool:
    return True


class Sizes:
    """Bytes that operations create, by signature.

    Args:
        is_page: whether a result counts. What changes its answers must ``forget`` these.
    """

    def __init__(self, is_page: IsPage = _always) -> None:
        self._is_page = is_page
        self._known: dict[Any, int] = {}

    def forget(self) -> None:
        """Find out anew."""
        self._known.clear()

    def new_bytes(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Bytes of the storages that ``func`` will create; 0 where that is not known beforehand. Where it depends on
        numbers, as what a mask selects, it is the most that it may be, and then the most that it was.

        An operator of an unknown library is asked if it has a kernel for tensors without bytes (``register_fake``).
        Nothing else of the user's runs for that: what others make is learned from what they made.
        """
        if not info.creates:
            return 0
        try:
            key = _key(func, info, args, kwargs)
            known = self._known.get(key)
        except _NO_KEY:
            return _infer(func, info, args, kwargs, self._is_page)
        if known is None:
            known = _infer(func, info, args, kwargs, self._is_page)
            if not selects(info, args):
                self._remember(key, known)
        return known

    def learn(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], nbytes: int) -> None:
        """Expect ``nbytes`` from now on, at least: ``func`` has created them. What has grown may grow as much again."""
        with suppress(*_NO_KEY):
            key = _key(func, info, args, kwargs)
            known = self._known.get(key, nbytes)
            grown = nbytes - known if selects(info, args) else 0
            self._remember(key, max(known, nbytes + grown))

    def _remember(self, key: Any, nbytes: int) -> None:
        if len(self._known) >= _MAX_SIGNATURES:
            self._known.clear()
        self._known[key] = nbytes


def most_new_bytes(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Bytes that an operation creates at most, told quickly by the sizes of its arguments. Mostly it is far less.

    Convolutions, products and broadcasting give what is largest one more dimension, of another argument. Lists of
    numbers are sizes, or tell how often something is repeated. Where there are neither, single numbers may be any size
    (``eye``, ``arange``). 0 where a tensor does not tell its shape: lazy parameters, nested tensors.
    """
    if info.writes or not info.creates:
        return 0
    with suppress(*_NO_KEY):
        return _most_new_bytes(info, args, kwargs)
    return 0


def _most_new_bytes(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    elements, listed, in_lists = 1, 1, 0
    has_numbers = has_sizes = False
    shape: tuple[int, ...] = ()
    others: list[tuple[int, ...]] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            if value.is_meta:  # its sizes may be symbols
                return 0
            others.append(value.shape)
            if value.numel() > elements:
                elements, shape = value.numel(), value.shape
        elif type(value) is list and value and isinstance(value[0], torch.Tensor):
            in_lists += sum(tensor.numel() for tensor in value if isinstance(tensor, torch.Tensor))
        elif info.numbers_matter and type(value) is list and value and type(value[0]) is int:
            has_sizes = True
            listed *= math.prod(max(1, number) for number in value if type(number) is int)
        elif info.numbers_matter and type(value) in (int, float):
            has_numbers = True
    if info.grows or (has_numbers and not has_sizes and not others):
        return sys.maxsize
    widest = max([1, *(size for other in others if other != shape for size in other)])
    return _MAX_ITEMSIZE * max(in_lists, elements * widest * listed)


class Firsts:
    """Which calls are the first of their signature on their thread."""

    def __init__(self) -> None:
        self._seen: set[Any] = set()

    def is_first(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether none was ``made`` before. One whose arguments cannot be compared is none."""
        with suppress(*_NO_KEY):
            return (threading.get_ident(), _key(func, info, args, kwargs)) not in self._seen
        return False

    def made(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The next such call is not the first."""
        if len(self._seen) >= _MAX_SIGNATURES:
            self._seen.clear()
        self._seen.add((threading.get_ident(), _key(func, info, args, kwargs)))


def _key(func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    by_name = _signature(kwargs.items(), info.numbers_matter) if kwargs else ()
    return func, torch.is_grad_enabled(), _signature(args, info.numbers_matter), by_name


def _signature(values: Iterable[Any], numbers_matter: bool) -> tuple[Any, ...]:
    """Equal for values of which an operator makes results of equal sizes. Keeps no tensor.

    Args:
        values: its arguments.
        numbers_matter: whether numbers among them may be sizes. Else their types alone count.
    """
    found: list[Any] = []
    for value in values:
        if type(value) in _FREQUENT:
            found.append(value if numbers_matter or type(value) not in _NUMBERS else type(value))
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
            found.append((value.shape, value.stride(), value.dtype))
        elif isinstance(value, list | tuple):
            is_exact = numbers_matter and _FREQUENT.issuperset(map(type, value))
            found.append(tuple(value) if is_exact else _signature(value, numbers_matter))
        elif isinstance(value, _HARMLESS):
            found.append(value)
        else:
            raise TypeError(type(value))  # a storage, a generator: the cache must not keep it alive; a sparse tensor
    return tuple(found)


def result_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """Where an operator puts what it makes: where it is told to, else where its arguments are, numbers apart."""
    if kwargs and (asked := kwargs.get("device")) is not None:
        return torch.device(asked)
    if args and type(args[0]) is torch.Tensor and args[0].dim():  # most often
        return args[0].device
    tensors = [leaf for leaf in pytree.arg_tree_leaves(*args, **kwargs) if isinstance(leaf, torch.Tensor)]
    for tensor in tensors:
        if tensor.dim():
            return tensor.device
    return tensors[0].device if tensors else torch.device("cpu")


# -- on the meta device ----------------------------------------------------------------------------------------------


def on_meta(func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``func`` would give, on the meta device."""
    device = "cpu" if result_device(args, kwargs).type == "cpu" else "cuda"
    with Undispatched():  # modes below ours must not see it
        return dry_run(func, info, pytree.tree_map(_to_meta, args), pytree.tree_map(_to_meta, kwargs), device)


def _infer(func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], is_page: IsPage) -> int:
    if info.opaque and not _has_meta_kernel(func):
        return 0
    with Undispatched():  # modes below ours must not see it
        try:
            return _infer_on_meta(func, info, args, kwargs, is_page)
        except Exception:  # no meta kernel, sparse, generators, ...: make room reactively
            return 0


def _has_meta_kernel(func: Any) -> bool:
    return isinstance(func, torch._ops.OpOverload) and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "Meta"
    )


def _infer_on_meta(func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], is_page: IsPage) -> int:
    meta_args, meta_kwargs = pytree.tree_map(_to_meta, (args, kwargs))
    if any(argument.name == "device" for argument in func._schema.arguments[len(args) :]):
        meta_kwargs["device"] = torch.device("meta")
    elif not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((args, kwargs))):
        return 0  # it would run in earnest
    make = all_selected if selects(info, args) else dry_run
    results = make(func, info, meta_args, meta_kwargs)
    given = _storages((meta_args, meta_kwargs))
    made = _storages(results)
    nbytes = 0
    for key, tensor in made.items():
        size = storage_nbytes(tensor.untyped_storage())
        if key not in given and is_page(info, tensor.dtype, size):
            nbytes += size
    return nbytes


def _storages(values: Any) -> dict[int, torch.Tensor]:
    """A tensor of each storage of those among ``values``, by the storage's identity."""
    tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return {id(tensor.untyped_storage()): tensor for tensor in tensors}


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, torch.Generator):
        return None
    return value


# -- what depends on numbers -------------------------------------------------------------------------------------------

_SELECTING = FINDING | {f"aten::{name}" for name in ("masked_select", "_to_sparse", "_to_sparse_csr", "_to_sparse_csc")}
_MASKS = (torch.bool, torch.uint8)


def selects(info: OpInfo, args: tuple[Any, ...]) -> bool:
    """Whether the sizes of its results depend on numbers, and the sizes of its arguments bound them."""
    if info.packet == "aten::index" and len(args) > 1:
        return any(tensor is not None and tensor.dtype in _MASKS for tensor in args[1])
    return info.packet in _SELECTING


def all_selected(func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``func`` would give on the meta device if it selected all, or all were different."""
    given = args[0]
    if info.packet == "aten::index":
        return func(given, [place for index in args[1] for place in _places(index)])
    if info.packet == "aten::nonzero":
        return given.new_empty((given.numel(), given.dim()), dtype=torch.long)
    if info.packet == "aten::masked_select":
        return given.new_empty(torch.broadcast_shapes(given.shape, args[1].shape))
    if "sparse" in info.packet:
        return given.new_empty(given.shape), given.new_empty((given.dim(), given.numel()), dtype=torch.long)
    numbers = torch.empty((given.numel(),), dtype=torch.long, device="meta")
    return given.new_empty(given.shape), numbers, torch.empty_like(numbers)


def _places(index: torch.Tensor | None) -> list[torch.Tensor | None]:
    """``index``; where it is a mask, the positions along each of its dimensions that it stands for."""
    if index is None or index.dtype not in _MASKS:
        return [index]
    return [torch.empty((index.numel(),), dtype=torch.long, device="meta") for _ in index.shape]


# -- what PyTorch's meta kernels do not tell -------------------------------------------------------------------------

_LOSSES = frozenset(
    f"aten::{name}" for name in ("binary_cross_entropy", "mse_loss", "smooth_l1_loss", "soft_margin_loss")
)

_FIRST_PARAMETER = {
    "aten::native_layer_norm": 2,
    "aten::native_batch_norm": 1,
    "aten::_native_batch_norm_legit": 1,
    "aten::_batch_norm_with_update": 1,
}
"""Of normalizations that also give statistics: weight, bias and running statistics are the arguments from here on."""

_ALIGNED_PART = 4096
"""Bytes. OneDNN makes each part of a workspace a multiple of these."""

_CACHE_LINE = 64
"""Bytes. OneDNN makes each row in such a part a multiple of these."""

_ALIGNED_ROW = 16
"""Bytes. Each row of what ``_grouped_mm`` gives begins at a multiple of these."""


def dry_run(func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], device: str = "cpu") -> Any:
    """Call ``func`` on tensors without bytes, and give results whose storages have the size of real ones.

    Args:
        device: where it is to be as large: "cpu" or "cuda".
    """
    name = info.packet
    if name == "aten::_ctc_loss":
        return _ctc_loss(args)
    if name == "aten::_ctc_loss_backward":
        scores = args[1]
        return scores.new_empty(scores.shape)
    if name == "aten::_grouped_mm":
        return _grouped_mm(*args)
    if name == "aten::mkldnn_rnn_layer_backward":
        return tuple(given.new_empty(given.shape) for given in args[:7])
    result = func(*args, **kwargs)
    if name in _LOSSES:
        return _loss(result, args)
    if name in _FIRST_PARAMETER and device == "cpu":
        return _normalized(result, args[0], args[_FIRST_PARAMETER[name] :])
    if name == "aten::log_sigmoid_forward" and device == "cuda":  # which needs no buffer for the gradient
        return result[0], result[1].new_empty(0)
    if name == "aten::mkldnn_rnn_layer":
        return _recurrent_layer(result, args, device)
    return result


def _loss(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    """It is as large as what is compared before it becomes one number, and keeps the storage."""
    if result.dim():
        return result
    return result.new_empty(torch.broadcast_shapes(args[0].shape, args[1].shape)).resize_(())


def _normalized(
    result: tuple[torch.Tensor, ...], given: torch.Tensor, parameters: tuple[Any, ...]
) -> tuple[torch.Tensor, ...]:
    """Where ``given`` is of half precision, so are the statistics, unless the parameters are of another type."""
    types = {tensor.dtype for tensor in parameters if isinstance(tensor, torch.Tensor)}
    if types - {given.dtype}:
        return result
    whole, mean, deviation, *reserved = result
    return whole, mean.to(given.dtype), deviation.to(given.dtype), *reserved


def _ctc_loss(args: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """A loss for each sequence, and its logarithms of probabilities by time and place among labels and blanks."""
    scores, targets, _, lengths = args[:4]
    steps, batch, _ = scores.shape
    if isinstance(lengths, list | tuple):
        longest = max(lengths)
    elif targets.dim() > 1:  # padded to the longest
        longest = targets.shape[1]
    else:  # one after the other: as if all had the same length
        longest = -(-targets.numel() // batch)
    places = 2 * longest + 1
    return scores.new_empty(batch), scores.new_empty((batch, steps, places))


def _grouped_mm(
    left: torch.Tensor,
    right: torch.Tensor,
    offsets: torch.Tensor | None = None,
    _bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """PyTorch tells of bfloat16 alone, and of no more than the rows need, which begin at multiples of 16 bytes."""
    dtype = out_dtype or left.dtype
    rows = left.shape[-2]
    columns = right.shape[-1]
    row = -(-columns * dtype.itemsize // _ALIGNED_ROW) * _ALIGNED_ROW // dtype.itemsize
    if left.dim() != right.dim():
        size: tuple[int, ...] = (rows, columns)
        stride: tuple[int, ...] = (row, 1)
    else:
        groups = len(left) if offsets is None else len(offsets)
        size = (groups, rows, columns)
        stride = (rows * row, row, 1)
    return torch.empty_strided(size, stride, dtype=dtype, device=left.device)


def _recurrent_layer(result: tuple[torch.Tensor, ...], args: tuple[Any, ...], device: str) -> tuple[torch.Tensor, ...]:
    """It keeps a workspace for the gradient. CuDNN does not tell its size: gates and cell states are assumed."""
    if not torch.is_grad_enabled():
        return result
    steps, batch, width = args[0].shape
    itemsize = args[0].element_size()
    hidden = args[10]
    if device == "cpu":
        nbytes = onednn_workspace(steps, batch, width, hidden, itemsize)
    else:
        gates = len(args[1])
        nbytes = steps * batch * (gates + hidden) * itemsize
    *states, workspace = result
    return (*states, workspace.new_empty(nbytes))


def onednn_workspace(steps: int, batch: int, width: int, hidden: int, itemsize: int) -> int:
    """Bytes that oneDNN keeps for the gradient of a layer of an LSTM, ``width`` and ``hidden`` elements in and out.

    Gates and outputs of each step; states and cell states, in pairs, and room for their gradients, always float32.
    As counted on version 3.12, a test compares.
    """
    cells = 2 * (steps + 1) * batch
    widest = max(width, hidden)
    parts = (
        steps * batch * _row(4 * hidden, itemsize),
        steps * batch * _row(hidden, itemsize),
        cells * _row(widest, itemsize),
        cells * hidden * itemsize,
        cells * _row(widest, 4),
        cells * _row(widest, 4),
        cells * hidden * 4,
    )
    return sum(-(-part // _ALIGNED_PART) * _ALIGNED_PART for part in parts)


def _row(elements: int, itemsize: int) -> int:
    """Bytes of a row. Rows of a multiple of 256 elements get a line more, lest they meet in the cache."""
    per_line = _CACHE_LINE // itemsize
    padded = -(-elements // per_line) * per_line
    if padded % 256 == 0:
        padded += per_line
    return padded * itemsize
