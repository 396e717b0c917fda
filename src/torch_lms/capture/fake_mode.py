"""Records what operations on tensors without bytes do to pages, as a whole or as LMS runs them (N10, N27)."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_lms.capture.fake_errors import refuse_strangers
from torch_lms.capture.fake_pages import FakePages
from torch_lms.capture.large import LargeOperations
from torch_lms.capture.pieces.job import NOT_CUT
from torch_lms.capture.pieces.proof import Proofs
from torch_lms.capture.pieces.run import Pieces
from torch_lms.capture.pieces.table import TileTable, alias_by_memory
from torch_lms.capture.schema import OpInfo, describe
from torch_lms.capture.sizes import Sizes, dry_run
from torch_lms.capture.tensors import is_unadorned, untyped_storage
from torch_lms.capture.work import work_of
from torch_lms.trace import Living, Trace

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

_TOUCHES_NO_TENSOR = frozenset({"prim", "profiler"})
"""Namespaces of operators that are left out: they ask for a device, or mark a range for a profiler."""

_CONSTANTS = frozenset(f"aten::{name}" for name in ("arange", "linspace", "full", "zeros", "ones", "eye"))
_MAX_CONSTANT_ELEMENTS = 1024
"""Up to so many, the values of what these operators make are known: programs take sizes and axes from them."""

_MAX_IN_PIECES = 64
"""Times the limit: a larger operation is recorded as it is. A search for what fits must not wait for all its pieces."""


class _AssumedPieces(Pieces):
    """Pieces that are assumed to give the same bits, where there is memory to try whether they do."""

    def holds(
        self,
        packet: str,
        device: torch.device,
        tensors: list[torch.Tensor],
        key: str,
        nbytes: int,
        attempt: Callable[[], bool],
    ) -> bool:
        """See ``Pieces``."""
        return nbytes <= self._owner.free_bytes(device)


class Tracer(TorchDispatchMode):
    """Records operations, as they are or as LMS runs them under a limit.

    Args:
        min_size: smaller storages are no pages.
        device: "cpu" or "cuda": where results are to be as large.
        limit: bytes that pages may occupy. Operations that need more by themselves are recorded in pieces, or split.
            None: all are recorded as they are.
        free_bytes: that there are beside.

    Attributes:
        trace: the last step that was recorded.
    """

    supports_higher_order_operators = True

    def __init__(self, min_size: int, device: str, limit: int | None = None, free_bytes: int = 0) -> None:
        super().__init__()
        self._device = device
        self._limit = limit
        self._sizes = Sizes(lambda _info, _dtype, nbytes: nbytes >= min_size)
        self._pages = FakePages(min_size, free_bytes)
        tiles = TileTable(self._pages, lambda: self, partial(alias_by_memory))  # on any device, as nothing has bytes
        self._pages.tiles = tiles
        self._pieces = _AssumedPieces(self._pages, tiles, self._run_part, Proofs(None), is_unadorned)
        self._large = LargeOperations(
            *(tiles, self._pieces, lambda: self, self._nbytes, self._sizes.new_bytes, self._run_part),
            is_squeezed=limit is not None,  # who asks knows that some operation needs more
        )
        self.trace = Trace((), ())

    @contextmanager
    def recording(self, living: Iterable[Any]) -> Iterator[None]:
        """Inside, operations are recorded; they become ``trace``. ``living``: the tensors that are there before."""
        # Until the step is over these storages live, even if a tensor is given another one.
        tensors = [tensor for tensor in living if isinstance(tensor, torch.Tensor)]
        storages = [untyped_storage(tensor) for tensor in tensors]
        self._pages.begin_step(tensors)
        self._pieces.reset_counts()
        with self:
            yield
        self._pages.reap()
        self._pages.recorder.finish(0.0)
        del storages
        self.trace = replace(self._pages.recorder.trace(), in_pieces=self._pieces.operations)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func`` on tensors without bytes, and record it."""
        kwargs = kwargs or {}
        if self._pages.is_quiet or getattr(func, "namespace", "") in _TOUCHES_NO_TENSOR:
            return func(*args, **kwargs)
        info = describe(func)
        if info.composite:
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        refuse_strangers(args, kwargs)
        tensors = pytree.arg_tree_leaves(*args, **kwargs)
        if info.view:
            return self._view(func, info, tensors, args, kwargs)
        self._pages.reap()
        if self._pages.tiles.are_among(tensors):
            assert self._limit is not None
            if (result := self._large.run_on_tiles(func, info, args, kwargs, self._limit)) is not NOT_CUT:
                return result
            if not info.writes:
                args = self._pages.tiles.parts_as_copies(args)
        elif self._is_large(func, info, args, kwargs):
            assert self._limit is not None
            if (result := self._large.run(func, info, args, kwargs, self._limit)) is not NOT_CUT:
                return result
        return self._run_part(func, info, args, kwargs, -1)

    def _view(self, func: Any, info: OpInfo, tensors: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """PyTorch checks some views against the size of the storage, 0 while its bytes are in tiles."""
        if self._pages.tiles.are_among(tensors) and not info.retypes:
            return self._pages.tiles.make_view(func, args, kwargs)
        return func(*args, **kwargs)

    def _is_large(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if self._limit is None:
            return False
        needed = self._nbytes([args, kwargs]) + self._sizes.new_bytes(func, info, args, kwargs)
        return self._large.is_large(info, needed, self._limit) and needed <= _MAX_IN_PIECES * self._limit

    def _run_part(
        self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], shape_only: int = -1
    ) -> Any:
        """Run a call as it is, and record it. ``shape_only``: position of an argument that need not be there, or -1."""
        given = [value for position, value in enumerate(args) if position != shape_only]
        used = self._pages.entries_of(pytree.tree_leaves((given, kwargs)))
        result = _with_values(dry_run(func, info, args, kwargs, self._device), info, func, args, kwargs)
        made = [page for page in self._pages.entries_of(pytree.tree_leaves(result)) if page not in used]
        recorder = self._pages.recorder
        if not used and not made:
            recorder.small()
            return result
        for page in used:
            recorder.found(Living(page.page, page.nbytes))
        work = work_of(info, func, args, kwargs, result)
        new_bytes = sum(page.nbytes for page in made)
        is_repeatable = info.repeatable or (info.empty and self._pages.tiles.is_working)
        recorder.begins(info.name, [page.page for page in used], new_bytes, 0.0, is_repeatable, work)
        for page in made:
            recorder.created(Living(page.page, page.nbytes))
        written = self._pages.entries_of(pytree.tree_leaves(info.written_args(args, kwargs)))
        recorder.wrote([page.page for page in written])
        return result

    def _nbytes(self, values: Any) -> int:
        """Of the pages among ``values``."""
        return sum(page.nbytes for page in self._pages.entries_of(pytree.tree_leaves(values)))


def _with_values(result: Any, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``result``, of which PyTorch remembers the values where they depend on nothing."""
    is_constant = info.packet in _CONSTANTS and result.numel() <= _MAX_CONSTANT_ELEMENTS and result.device.type == "cpu"
    if not is_constant:
        return result
    with torch._C._DisableTorchDispatch():
        values = func(*args, **kwargs)
    mode = result.fake_mode
    return mode.fake_tensor_converter.from_real_tensor(mode, values, make_constant=True)
