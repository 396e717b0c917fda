"""Records what operations on tensors without bytes do to pages, as a whole and split (N10)."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_lms.capture import split
from torch_lms.capture.fake_errors import refuse_strangers
from torch_lms.capture.registry import Entry, Registry, storage_nbytes
from torch_lms.capture.schema import OpInfo, describe
from torch_lms.capture.sizes import dry_run
from torch_lms.capture.tensors import untyped_storage
from torch_lms.capture.work import work_of
from torch_lms.trace import Living, Recorder, Trace, Work

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

_TOUCHES_NO_TENSOR = frozenset({"prim", "profiler"})
"""Namespaces of operators that are left out: they ask for a device, or mark a range for a profiler."""

MAX_WHOLE_BYTES = 256 << 20
"""An operation on pages of no more than that is not split."""

_CONSTANTS = frozenset(f"aten::{name}" for name in ("arange", "linspace", "full", "zeros", "ones", "eye"))
_MAX_CONSTANT_ELEMENTS = 1024
"""Up to so many, the values of what these operators make are known: programs take sizes and axes from them."""


class Tracer(TorchDispatchMode):
    """Records operations, twice: as they are, and with those that are large split.

    Args:
        min_size: smaller storages are no pages.
        device: "cpu" or "cuda": where results are to be as large.

    Attributes:
        trace: the last step that was recorded.
    """

    supports_higher_order_operators = True

    def __init__(self, min_size: int, device: str) -> None:
        super().__init__()
        self._min_size = max(1, min_size)
        self._device = device
        self._registry = Registry()
        self._owner = object()
        self._whole = Recorder(())
        self._split = Recorder(())
        self._recorders: tuple[Recorder, ...] = (self._whole, self._split)
        self.trace = Trace((), ())

    @contextmanager
    def recording(self, living: Iterable[Any]) -> Iterator[None]:
        """Inside, operations are recorded; they become ``trace``. ``living``: the tensors that are there before."""
        # Until the step is over these storages live, even if a tensor is given another one.
        storages = [untyped_storage(tensor) for tensor in living if isinstance(tensor, torch.Tensor)]
        entries = dict.fromkeys(map(self._entry, storages))
        pages = [Living(entry.page, entry.nbytes) for entry in entries if entry is not None]
        self._whole = Recorder(pages)
        self._split = Recorder(pages)
        self._recorders = (self._whole, self._split)
        with self:
            yield
        self._reap()
        self._whole.finish(0.0)
        self._split.finish(0.0)
        self.trace = replace(self._whole.trace(), split=self._split.trace())

    @contextmanager
    def only(self, *, split: bool) -> Iterator[None]:
        """Inside, operations are part of the split step alone, or of the other."""
        before = self._recorders
        self._recorders = (self._split,) if split else (self._whole,)
        try:
            yield
            self._reap()
        finally:
            self._recorders = before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func`` on tensors without bytes, and record it."""
        kwargs = kwargs or {}
        if getattr(func, "namespace", "") in _TOUCHES_NO_TENSOR:
            return func(*args, **kwargs)
        info = describe(func)
        if info.composite:
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        refuse_strangers(args, kwargs)
        if info.view:
            return func(*args, **kwargs)
        self._reap()
        program = None
        if self._split in self._recorders and self._nbytes((args, kwargs)) > MAX_WHOLE_BYTES:
            program = split.program(func, info, args, kwargs, self._nbytes, MAX_WHOLE_BYTES)
        if program is None:
            result = dry_run(func, info, args, kwargs, self._device)
            result = _with_values(result, info, func, args, kwargs)
            self._record(self._recorders, info, func, args, kwargs, result)
        else:
            result = split.perform(program, partial(self._run, info))
            others = [recorder for recorder in self._recorders if recorder is not self._split]
            self._record(others, info, func, args, kwargs, result)
        return result

    def _run(self, info: OpInfo, instruction: split.Instruction) -> Any:
        """Run an instruction of the operation that ``info`` describes, and record it as part of the split step."""
        if isinstance(instruction, split.Empty):
            return instruction.run()
        if isinstance(instruction, split.Copy):
            instruction.run()
            self._record_copy(instruction)
            return None
        func = instruction.func
        args = instruction.args
        kwargs = instruction.kwargs
        shape_only = instruction.shape_only if isinstance(instruction, split.Part) else -1
        result = dry_run(func, info, args, kwargs, self._device)
        self._record((self._split,), info, func, args, kwargs, result, shape_only)
        return result

    def _record(
        self,
        recorders: Sequence[Recorder],
        info: OpInfo,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        shape_only: int = -1,
    ) -> None:
        """Record the call ``func(*args, **kwargs)`` that gave ``result``.

        Args:
            shape_only: position of an argument that need not be there; -1 if there is none.
        """
        given = [value for position, value in enumerate(args) if position != shape_only]
        used = self._pages((given, kwargs))
        made = [page for page in self._pages(result) if page not in used]
        if not used and not made:
            for recorder in recorders:
                recorder.small()
            return
        work = work_of(info, func, args, kwargs, result)
        written = self._pages(info.written_args(args, kwargs))
        for recorder in recorders:
            _record_op(recorder, info, used, made, written, work)

    def _record_copy(self, copy: split.Copy) -> None:
        """Record a copy: the first into a page makes that page, the others write it."""
        func, args = copy.recorded_as
        info = describe(func)
        source = self._pages(copy.source)
        target = self._pages(copy.target)
        if not source and not target:
            self._split.small()
            return
        made = [page for page in target if page.page not in self._split.numbers]
        written = [page for page in target if page.page in self._split.numbers]
        work = work_of(info, func, args, {}, copy.source)
        _record_op(self._split, info, [*source, *written], made, written, work)

    def _nbytes(self, values: Any) -> int:
        return sum(page.nbytes for page in self._pages(values))

    def _pages(self, values: Any) -> list[Entry]:
        """The pages of the tensors among ``values``, each once."""
        found: dict[Entry, None] = {}
        for leaf in pytree.tree_leaves(values):
            if isinstance(leaf, torch.Tensor):
                entry = self._entry(untyped_storage(leaf))
                if entry is not None:
                    found[entry] = None
        return list(found)

    def _entry(self, storage: torch.UntypedStorage) -> Entry | None:
        entry = self._registry.find(storage)
        if entry is None and storage_nbytes(storage) >= self._min_size:
            return self._registry.add(storage, None)
        return entry

    def _reap(self) -> None:
        """Record the deaths of pages whose storages died since the last call."""
        for entry in self._registry.dead():
            for recorder in (self._whole, self._split):
                if entry.page in recorder.numbers:
                    recorder.died(entry.page)


def _record_op(
    recorder: Recorder, info: OpInfo, used: list[Entry], made: list[Entry], written: list[Entry], work: Work
) -> None:
    for page in used:
        recorder.found(Living(page.page, page.nbytes))
    new_bytes = sum(page.nbytes for page in made)
    recorder.begins(info.name, [page.page for page in used], new_bytes, 0.0, info.repeatable, work)
    for page in made:
        recorder.created(Living(page.page, page.nbytes))
    recorder.wrote([page.page for page in written])


def _with_values(result: Any, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``result``, of which PyTorch remembers the values where they depend on nothing."""
    is_constant = info.packet in _CONSTANTS and result.numel() <= _MAX_CONSTANT_ELEMENTS and result.device.type == "cpu"
    if not is_constant:
        return result
    with torch._C._DisableTorchDispatch():
        values = func(*args, **kwargs)
    mode = result.fake_mode
    return mode.fake_tensor_converter.from_real_tensor(mode, values, make_constant=True)
