"""Calls of operators, recorded so that they can be repeated with the same bits (N16)."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import or_
from typing import Any, Protocol

import torch

from torch_lms.capture.placeholder import is_placeholder
from torch_lms.capture.registry import STORAGE, Entry, storage_nbytes
from torch_lms.capture.schema import OpInfo
from torch_lms.capture.tensors import is_bare, objects_among, set_view, untyped_storage, with_objects
from torch_lms.capture.unobserved import Undispatched
from torch_lms.residency import PageId

_MAX_SMALL_BYTES = 1 << 20
"""Bytes of the arguments of one call that are no pages, all together. They are kept by copy."""

Find = Callable[[torch.UntypedStorage], Entry | None]
"""The page of a storage, or None."""

WritesOf = Callable[[PageId], int]
"""How often a page was written so far; -1 if it is none any more."""

_C: Any = torch._C

_AUTOCAST = reduce(
    or_,
    (
        _C.DispatchKeySet(getattr(_C.DispatchKey, name))
        for name in ("AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS")
        if hasattr(_C.DispatchKey, name)
    ),
)
"""Autocast is left out of a repetition: its casts were recorded as operations of their own."""


def _precision(backend: str, operations: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """How to ask for the precision in float32 of ``operations`` of ``backend``, and how to set it.

    PyTorch's older functions raise where backends differ.
    """
    return (
        partial(_C._get_fp32_precision_getter, backend, operations),
        partial(_C._set_fp32_precision_setter, backend, operations),
    )


def _deterministic_algorithms() -> tuple[bool, bool]:
    """Whether they are asked for, and whether it is only warned where there are none."""
    return _C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()


def _flushes_denormals() -> bool:
    """On the calling thread: only its arithmetic tells."""
    return sys.float_info.min / 2 == 0


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (_deterministic_algorithms, lambda value: _C._set_deterministic_algorithms(value[0], warn_only=value[1])),
    (_C._get_mkldnn_enabled, _C._set_mkldnn_enabled),
    (_C._get_mkldnn_deterministic, _C._set_mkldnn_deterministic),
    (_C._get_nnpack_enabled, _C._set_nnpack_enabled),
    (_C._get_cudnn_enabled, _C._set_cudnn_enabled),
    (_C._get_cudnn_benchmark, _C._set_cudnn_benchmark),
    (_C._get_cudnn_deterministic, _C._set_cudnn_deterministic),
    (
        _C._get_cublas_allow_fp16_reduced_precision_reduction,
        lambda value: _C._set_cublas_allow_fp16_reduced_precision_reduction(*value),
    ),
    (
        _C._get_cublas_allow_bf16_reduced_precision_reduction,
        lambda value: _C._set_cublas_allow_bf16_reduced_precision_reduction(*value),
    ),
    (_C._get_cublas_allow_fp16_accumulation, _C._set_cublas_allow_fp16_accumulation),
    (_flushes_denormals, torch.set_flush_denormal),
    _precision("generic", "all"),
    _precision("mkldnn", "all"),
    _precision("mkldnn", "matmul"),
    _precision("mkldnn", "conv"),
    _precision("mkldnn", "rnn"),
    _precision("cuda", "all"),
    _precision("cuda", "matmul"),
    _precision("cuda", "conv"),
    _precision("cuda", "rnn"),
)
"""Settings by which a kernel, and so its rounding, is chosen: how to ask for each, and how to set it.

What others inherit from comes before them.
"""


class Recorded(Protocol):
    """A call that was recorded, as whoever makes it sees it."""

    def made(self, result: Any, find: Find) -> None:
        """Note the pages in ``result``, which it returned."""


Record = Callable[[Any, OpInfo, tuple[Any, ...], dict[str, Any], Find], Recorded]
"""Records a call that is about to be made, and that can be repeated: the operator, what is known of it, arguments."""


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
        set_view(found, storage, self.offset, self.size, self.stride)
        return found.requires_grad_(self.requires_grad)


@dataclass(slots=True)
class Call:
    """One call that was recorded. It keeps no page alive. The native interposer has its own (``native/csrc/calls.h``).

    Attributes:
        func: the operator.
        args, kwargs: its arguments; in place of a tensor on a page stands a ``View``.
        reads: for each page among the arguments, how often it had been written by then.
        writes: the pages among the arguments that it wrote.
        settings: the values of ``_SETTINGS`` at the call.
        results: the pages that it made: position among its results, and how that result looks at its page.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: dict[PageId, int]
    writes: tuple[PageId, ...]
    settings: tuple[Any, ...]
    results: list[tuple[int, View]] = field(default_factory=list)

    def made(self, result: Any, find: Find) -> None:
        """See ``Recorded``."""
        for position, value in enumerate(objects_among((result,))):
            entry = find(untyped_storage(value)) if isinstance(value, torch.Tensor) else None
            if entry is not None and entry.page not in self.reads:
                self.results.append((position, View.of(value, entry)))

    @property
    def pages(self) -> list[Entry]:
        """The pages among its arguments."""
        given = objects_among((*self.args, *self.kwargs.values()))
        return [found.entry for found in given if isinstance(found, View)]

    def repeat(self, storages: dict[PageId, torch.UntypedStorage]) -> None:
        """Repeat the call.

        Args:
            storages: those of the pages among its arguments; those of the pages that it makes are added.

        Raises:
            RuntimeError: the device's memory ran out, or it made something else than before.
        """

        def given(kept: Any) -> Any:
            if isinstance(kept, View):
                return kept.on(storages[kept.entry.page])
            if not isinstance(kept, torch.Tensor):
                return kept
            if kept.device.type != "cpu" and not is_placeholder(kept):
                # It may be let go of before the stream of now, which reads it, is through with it.
                kept.record_stream(torch.accelerator.current_stream(kept.device))
            return _kept(kept)

        args, kwargs = _with_objects(self.args, self.kwargs, given)
        with _C._AutoDispatchBelowAutograd(), _C._ExcludeDispatchKeyGuard(_AUTOCAST), _set(self.settings):
            results = objects_among((self.func(*args, **kwargs),))
        for position, view in self.results:
            found = View.of(results[position], view.entry)
            if found.layout != view.layout:
                raise RuntimeError(f"{self.func} made {found.layout} where it had made {view.layout}")
            storages[view.entry.page] = untyped_storage(results[position])


def can_be_repeated(
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    find: Find,
    device: torch.device,
    is_filled: bool = False,
) -> bool:
    """Whether a call, whose results are on ``device``, gives the same bits whenever it is made with the same.

    Not with pages of another device: its engine does not know what depends on them here.

    Args:
        is_filled: whether what the call leaves empty is filled by operations that are seen, and by nobody else.
    """
    if not (info.repeatable or (info.empty and is_filled)):
        return False
    tensors = [given for given in objects_among((*args, *kwargs.values())) if isinstance(given, torch.Tensor)]
    if not all(map(is_bare, tensors)):
        return False
    small = []
    for tensor in tensors:
        storage = untyped_storage(tensor)
        if is_placeholder(tensor):
            continue
        if find(storage) is None:
            small.append(storage)
        elif tensor.device != device:
            return False
    return bool(sum(map(storage_nbytes, small)) <= _MAX_SMALL_BYTES)


def capture_call(
    func: Any,
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    find: Find,
    writes_of: WritesOf,
) -> Call:
    """Record a call that is about to be made, and that can be repeated."""
    reads: dict[PageId, int] = {}

    def kept(given: Any) -> Any:
        if not isinstance(given, torch.Tensor):
            return given
        entry = find(untyped_storage(given))
        if entry is None:
            return _kept(given)
        reads[entry.page] = writes_of(entry.page)
        return View.of(given, entry)

    settings = tuple(ask() for ask, _ in _SETTINGS)
    with Undispatched(), torch.no_grad():
        kept_args, kept_kwargs = _with_objects(args, kwargs, kept)
    written = [find(untyped_storage(tensor)) for tensor in info.written_args(args, kwargs)]
    writes = dict.fromkeys(entry.page for entry in written if entry is not None)  # each once, in order
    return Call(func, kept_args, kept_kwargs, reads, tuple(writes), settings)


def _with_objects(
    args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with ``change`` of each tensor, or what else is neither a number nor a setting, in its place."""
    return tuple(with_objects(args, change)), dict(zip(kwargs, with_objects(kwargs.values(), change), strict=True))


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that looks at its storage as ``tensor`` does, but at a copy. A placeholder has nothing to copy."""
    if is_placeholder(tensor):
        return tensor
    storage = untyped_storage(tensor)
    copied = torch.UntypedStorage(storage_nbytes(storage), device=storage.device)
    STORAGE.copy_(copied, storage)
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    set_view(copy, copied, tensor.storage_offset(), tensor.size(), tensor.stride())
    return copy.requires_grad_(tensor.requires_grad)


@contextmanager
def _set(settings: tuple[Any, ...]) -> Iterator[None]:
    """Inside, ``_SETTINGS`` have these values."""
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
