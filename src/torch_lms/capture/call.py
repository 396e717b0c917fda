"""Calls of operators, written down so that they can be made again with the same bits (N16)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import or_
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_lms.capture.registry import Entry, storage_nbytes
from torch_lms.capture.schema import OpInfo
from torch_lms.capture.tensors import is_bare, untyped_storage
from torch_lms.residency import PageId

_MOST_SMALL_BYTES = 1 << 20
"""Of arguments that are no pages, all of a call together: they are kept by copy."""

Find = Callable[[torch.UntypedStorage], Entry | None]
"""The page of a storage, or None."""

_C: Any = torch._C

_AUTOCAST = reduce(
    or_,
    (
        _C.DispatchKeySet(getattr(_C.DispatchKey, name))
        for name in ("AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS")
        if hasattr(_C.DispatchKey, name)
    ),
)
"""Left out of a repetition: casts were operations of their own."""


def _precision(backend: str, operations: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Of matrix products and convolutions in float32. PyTorch's older functions raise where backends differ."""
    return (
        partial(_C._get_fp32_precision_getter, backend, operations),
        partial(_C._set_fp32_precision_setter, backend, operations),
    )


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (_C._get_deterministic_algorithms, _C._set_deterministic_algorithms),
    (_C._get_mkldnn_enabled, _C._set_mkldnn_enabled),
    (_C._get_cudnn_enabled, _C._set_cudnn_enabled),
    (_C._get_cudnn_benchmark, _C._set_cudnn_benchmark),
    (_C._get_cudnn_deterministic, _C._set_cudnn_deterministic),
    *map(_precision, ("generic", "mkldnn", "mkldnn", "mkldnn", "mkldnn"), ("all", "all", "matmul", "conv", "rnn")),
    *map(_precision, ("cuda", "cuda", "cuda", "cuda"), ("all", "matmul", "conv", "rnn")),
)
"""By which a kernel, and so its rounding, is chosen: how to ask, how to set. What others inherit comes before them."""


@dataclass(frozen=True, slots=True)
class View:
    """How a tensor looks at the storage of a page."""

    entry: Entry
    dtype: torch.dtype
    device: torch.device
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor, entry: Entry) -> "View":
        """How ``tensor`` looks at ``entry``."""
        return cls(
            entry,
            tensor.dtype,
            tensor.device,
            tensor.size(),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.requires_grad,
        )

    @property
    def layout(self) -> tuple[Any, ...]:
        """All that must be the same for the bytes to mean the same."""
        return self.dtype, self.size, self.stride, self.offset

    def on(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Such a tensor on ``storage``."""
        found = torch.empty(0, dtype=self.dtype, device=self.device)
        found.set_(storage, self.offset, self.size, self.stride)
        return found.requires_grad_(self.requires_grad)


@dataclass(slots=True)
class Call:
    """One call. Keeps no page alive.

    Attributes:
        reads: for each page among the arguments, how often it had been written by then.
        writes: those among them that it wrote.
        results: what it made: position among its results, and the page.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: dict[PageId, int]
    writes: tuple[PageId, ...]
    settings: tuple[Any, ...]
    results: list[tuple[int, View]] = field(default_factory=list)

    def made(self, result: Any, find: Find) -> None:
        """It returned ``result``."""
        for position, value in enumerate(pytree.tree_leaves(result)):
            entry = find(untyped_storage(value)) if isinstance(value, torch.Tensor) else None
            if entry is not None and entry.page not in self.reads:
                self.results.append((position, View.of(value, entry)))

    @property
    def pages(self) -> list[Entry]:
        """Those among its arguments."""
        return [leaf.entry for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, View)]

    def repeat(self, storages: dict[PageId, torch.UntypedStorage]) -> None:
        """Make it again.

        Args:
            storages: of the pages among its arguments; those of the pages that it makes are added.

        Raises:
            RuntimeError: the device's memory ran out, or it made something else than before.
        """

        def given(leaf: Any) -> Any:
            if isinstance(leaf, View):
                return leaf.on(storages[leaf.entry.page])
            return _copy(leaf) if isinstance(leaf, torch.Tensor) else leaf

        args, kwargs = pytree.tree_map(given, (self.args, self.kwargs))
        with _C._AutoDispatchBelowAutograd(), _C._ExcludeDispatchKeyGuard(_AUTOCAST), _set(self.settings):
            results = pytree.tree_leaves(self.func(*args, **kwargs))
        for position, view in self.results:
            found = View.of(results[position], view.entry)
            if found.layout != view.layout:
                raise RuntimeError(f"{self.func} made {found.layout} where it had made {view.layout}")
            storages[view.entry.page] = untyped_storage(results[position])


def can_be_repeated(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], find: Find) -> bool:
    """Whether a call gives the same bits whenever it is made with the same."""
    if not info.repeatable:
        return False
    tensors = [leaf for leaf in pytree.arg_tree_leaves(*args, **kwargs) if isinstance(leaf, torch.Tensor)]
    if not all(map(is_bare, tensors)):
        return False
    small = (storage for tensor in tensors if find(storage := untyped_storage(tensor)) is None)
    return bool(sum(map(storage_nbytes, small)) <= _MOST_SMALL_BYTES)


def write_down(
    func: Any,
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    find: Find,
    writes_of: Callable[[Entry], int],
) -> Call:
    """A call that is about to be made, and that can be repeated.

    Args:
        find: the page of a storage, or None.
        writes_of: how often a page was written so far.
    """
    reads: dict[PageId, int] = {}

    def kept(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        entry = find(untyped_storage(leaf))
        if entry is None:
            return _copy(leaf)
        reads[entry.page] = writes_of(entry)
        return View.of(leaf, entry)

    settings = tuple(ask() for ask, _ in _SETTINGS)
    with _C._DisableTorchDispatch(), torch.no_grad():
        kept_args, kept_kwargs = pytree.tree_map(kept, (args, kwargs))
    written = [find(untyped_storage(tensor)) for tensor in info.written_args(args, kwargs)]
    writes = tuple({entry.page: None for entry in written if entry is not None})
    return Call(func, kept_args, kept_kwargs, reads, writes, settings)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that looks at its storage as ``tensor`` does, but at a copy."""
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    copy.set_(untyped_storage(tensor).clone(), tensor.storage_offset(), tensor.size(), tensor.stride())
    return copy.requires_grad_(tensor.requires_grad)


@contextmanager
def _set(settings: tuple[Any, ...]) -> Iterator[None]:
    changed = []
    try:
        for (ask, change), value in zip(_SETTINGS, settings, strict=True):
            before = ask()
            if before != value:
                change(value)
                changed.append((change, before))
        yield
    finally:
        for change, before in reversed(changed):
            change(before)
