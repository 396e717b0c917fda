"""The dispatch mode: every aten operation passes here, in forward, backward and optimizer (N1)."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_lms.capture.call import Find, Record, Recorded, can_be_repeated
from torch_lms.capture.collectives import finish_of
from torch_lms.capture.inside import Inside
from torch_lms.capture.jit_tracing import is_traced_in_parts, run_traced
from torch_lms.capture.large import LargeOperations
from torch_lms.capture.page_owner import PageOwner, RawUse, Use
from torch_lms.capture.pieces.job import NOT_CUT
from torch_lms.capture.pieces.proof import Proofs
from torch_lms.capture.pieces.run import Pieces
from torch_lms.capture.pieces.table import Alias, TileTable, alias_by_memory
from torch_lms.capture.registry import Entry, has_at_least
from torch_lms.capture.schema import OpInfo, describe
from torch_lms.capture.sizes import Firsts, Sizes, most_new_bytes, result_device
from torch_lms.capture.tensors import (
    has_bytes,
    has_storage,
    is_plain,
    is_strided,
    no_torch_function,
    plain_pages,
    storage_of,
    tensors_among,
    tensors_within,
    untyped_storage,
    wrappers_among,
)
from torch_lms.capture.undo import Undo, generator_of, snapshot
from torch_lms.errors import WorkingSetError

FILLED_UNSEEN = 64 << 10
"""PyTorch fills empty tensors that it has made from lists in C++, unseen; they are smaller than this (N12)."""

LARGE = 64
"""Pages of so large a part of the limit may make an operation exceed it by itself: what it creates has to be known."""

_nbytes_of: Callable[[Entry], int] = attrgetter("nbytes")

_TRACING = tuple(getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY", "FUNCTIONAL"))
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_OUT_OF_BOUNDS = "out of bounds for storage"


class LmsMode(TorchDispatchMode):
    """Tells the owner of the pages of every operation. Holds no argument longer than the operation (N21).

    Args:
        owner: of the pages.
        seen: inside it, operations come here once more. None where that means to be inside this mode: otherwise the
            native interposer has what it cannot decide ``run``.
        alias: makes tensors of storages that are too small for them.
        proofs: of pieces, as far as they were tried on this machine.

    Attributes:
        tiles: which tensors are in tiles.
        pieces: runs operations in pieces.
        large: knows how operations are run that need more than the limit by themselves.
        operator: of the program's, that ran here last.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        owner: PageOwner,
        seen: Callable[[], AbstractContextManager[Any]] | None = None,
        alias: Alias | None = None,
        proofs: Proofs | None = None,
    ) -> None:
        super().__init__()
        self.operator = ""
        self._owner = owner
        self._fast_path = owner.fast_path
        self._find = owner.find
        self._sizes = Sizes(self._may_be_page)
        self._searches = Firsts()
        self._largest: dict[Any, int] = {}  # bytes that calls of operators of other libraries had
        self._left_out = Inside()
        self._dispatches = Inside()
        self._seen = seen or (lambda: self)
        self.tiles = TileTable(owner, self._seen, alias or alias_by_memory)
        self.pieces = Pieces(owner, self.tiles, self._run_part, proofs or Proofs(None))
        self.large = LargeOperations(self.tiles, self.pieces, self._seen, self._nbytes, self._new_bytes, self._run_part)

    def left_out(self) -> AbstractContextManager[None]:
        """Inside, this thread's operations pass unseen."""
        return self._left_out.block()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No wrapper around each operation (it also imports the compiler): see ``compiled._keep_dynamo_out``."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let `torch.compile` compile; what it runs is told of as a whole (N11)."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See ``run``. Tensors that dispatch by themselves take themselves apart."""
        kwargs = kwargs or {}
        if types and self._is_watching() and (wrappers := wrappers_among((*args, *kwargs.values()))):
            if _is_traced():
                return func(*args, **kwargs)  # a mode below ours has it: fake tensors have no bytes
            return self._let_dispatch(wrappers, func, args, kwargs)
        if is_traced_in_parts(func):
            return run_traced(partial(self.run, func, args, kwargs), args)
        return self.run(func, args, kwargs)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run ``func`` with its pages resident."""
        if self._owner.interrupted:
            self._owner.deliver()
        if not self._is_watching():
            return func(*args, **kwargs)
        values = (*args, *kwargs.values()) if kwargs else args
        if self.tiles:
            with no_torch_function():
                return self._run(func, tensors_among(values), args, kwargs)
        pages: list[Entry] = []
        info = describe(func)
        seen = plain_pages(values, self._find, self._owner.min_size, pages) if info.is_simple else 0
        if seen > 0 and self._passes(func, info, pages, args, kwargs):
            try:
                return self._noticed(func(*args, **kwargs), info)
            except (RuntimeError, MemoryError) as error:
                if not self._owner.is_out_of_memory(error) or info.writes or info.seeded:
                    raise
            finally:
                if pages:
                    self._fast_path.exit(pages, wrote=bool(info.writes))
        elif seen > 0 and not (info.composite or info.view):
            self._tell_of(info)
            return self._run_on(func, info, list(dict.fromkeys(pages)), args, kwargs)
        tensors = tensors_among(values)
        if all(map(is_plain, tensors)):
            return self._run(func, tensors, args, kwargs)
        with no_torch_function():
            return self._run(func, tensors, args, kwargs)

    def _tell_of(self, info: OpInfo) -> None:
        if not self.tiles.is_working:
            self.operator = info.name

    def _is_watching(self) -> bool:
        """Whether this thread's operations are seen now."""
        return self._owner.active and not self._left_out.now

    def hold(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Entry]:
        """Hold the pages that ``func`` uses while its tensors dispatch by themselves, until they are ``let_go``.

        Returns:
            The pages; none if no such tensor has bytes of its own. Those that have stay on the device from now on.
        """
        if not self._is_watching() or _is_traced():
            return []
        return self._hold(wrappers_among((*args, *kwargs.values())), func, args, kwargs)

    def _hold(self, wrappers: list[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Entry]:
        with no_torch_function():
            own = self._entries([wrapper for wrapper in wrappers if has_bytes(wrapper)])
            if not own:
                return []
            self._owner.export(own, "a dispatch of its own")
            used = self._entries(tensors_within((args, kwargs)))
        self._owner.begin(RawUse(str(func), is_regular=False), used, 0)
        return used

    def let_go(self, held: list[Entry]) -> None:
        """They are used unseen no more."""
        if held:
            self._owner.end(held, held)

    def _let_dispatch(self, wrappers: list[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Each takes itself apart, and its parts come back here: but those with bytes of their own may do it unseen."""
        if self._dispatches.now:
            self._dispatches.now = False  # for this call alone
            return NotImplemented
        used = self._hold(wrappers, func, args, kwargs)
        if not used:
            return NotImplemented
        try:
            self._dispatches.now = True
            with self:
                result = func(*args, **kwargs)
            with no_torch_function():
                info = describe(func)
                if kept := self._kept(_Op(info.name, self._find, func, info, args, kwargs, used, False), result):
                    self._owner.export(kept, "kept by PyTorch")
            return result
        finally:
            self._dispatches.now = False
            self.let_go(used)

    def _passes(
        self, func: Any, info: OpInfo, pages: list[Entry], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Whether an operation may run at once: on the fast path, or without pages, used or made."""
        if info.grows:
            return False  # what it makes is known by what it has made
        if not self._fast_path.is_open:
            return not pages and self._new_bytes(func, info, args, kwargs) < self._owner.min_size
        if self._needs_room(func, info, pages, args, kwargs):
            return False
        return not pages or (not self._is_new_search(func, info, args, kwargs) and self._fast_path.enter(pages))

    def _needs_room(
        self, func: Any, info: OpInfo, pages: list[Entry], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Whether an operation needs more than the limit by itself, or creates more than is left of it."""
        nbytes = sum(map(_nbytes_of, pages))
        most = self._owner.room_for_one_op(pages)
        if nbytes * LARGE < most and not self._owner.is_at_brim(pages, most_new_bytes(info, args, kwargs)):
            return False
        new_bytes = self._new_bytes(func, info, args, kwargs)
        return nbytes + new_bytes > most or new_bytes > self._owner.room_left(pages)

    def _new_bytes(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Bytes of pages that ``func`` will create, as far as is known."""
        if result_device(args, kwargs).type != self._owner.kind:  # on the meta device sizes may be symbols
            return 0
        return self._sizes.new_bytes(func, info, args, kwargs)

    def min_size_has_changed(self) -> None:
        """Other results are pages now."""
        self._sizes.forget()

    def _may_be_page(self, info: OpInfo, dtype: torch.dtype, nbytes: int) -> bool:
        """Whether a result is one. Else what neither uses nor makes a page would be part of plans, and the native
        interposer, which sees that it is not, would leave them.
        """
        if info.empty and nbytes < FILLED_UNSEEN:
            return False
        return self._owner.may_be_page(dtype, nbytes)

    def _run(self, func: Any, tensors: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        info = describe(func)
        self._tell_of(info)
        if info.opaque:
            tensors = tensors_within((args, kwargs))
        if info.composite and is_strided((*args, *kwargs.values())):
            with self._seen():  # not `decompose`, which prefers formulas in Python that round in another way
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        if info.view and is_strided((*args, *kwargs.values())):
            result = self._view(func, tensors, args, kwargs)
            if info.retypes:
                self._owner.retyped(result)
            return result
        if self.tiles.are_among(tensors):
            limit = self._owner.room_for_one_op([])
            with self.tiles.settled:
                if (result := self.large.run_on_tiles(func, info, args, kwargs, limit)) is not NOT_CUT:
                    return result
                if not info.writes and not info.opaque:
                    args = self.tiles.parts_as_copies(args)
                    tensors = tensors_among((*args, *kwargs.values()))
        return self._run_on(func, info, self._entries(tensors), args, kwargs)

    def _run_part(
        self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], shape_only: int = -1
    ) -> Any:
        """Run a call of an operator that does a part of the work of another.

        Args:
            shape_only: position of an argument that is a placeholder; -1 if there is none.
        """
        used = [value for position, value in enumerate(args) if position != shape_only]
        entries = self._entries(tensors_among((*used, *kwargs.values())))
        part = _Op(info.name, self._find, func, info, args, kwargs, entries, self.tiles.is_working)
        part.new_bytes = self._new_bytes(func, info, args, kwargs)
        self._fast_path.was_split(info.name, part.entries)
        return self._execute(part)

    def _run_on(
        self, func: Any, info: OpInfo, entries: list[Entry], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        op = _Op(info.name, self._find, func, info, args, kwargs, entries, self.tiles.is_working)
        if not self._owner.tight(entries, most_new_bytes(info, args, kwargs)):
            return self._execute_or_cut(op)
        op.new_bytes = 0 if info.collective else self._new_bytes(func, info, args, kwargs)
        op.undo = op.snapshot() if info.seeded or info.writes else None
        limit = self._owner.room_for_one_op(entries)
        result = NOT_CUT
        if self.large.is_large(info, op.nbytes + op.new_bytes, limit):
            result = self.large.run(func, info, args, kwargs, limit)
        if result is NOT_CUT:
            result = self._execute(op)
        if info.creates and not info.collective and (made := self._made(op, result)) != op.new_bytes:
            self._sizes.learn(func, info, args, kwargs, made)
        return result

    def _execute_or_cut(self, op: "_Op") -> Any:
        """Run it, where nobody has asked what it needs; in pieces, if that is more than there is."""
        try:
            return self._execute(op)
        except WorkingSetError:
            if op.info.writes or op.info.seeded:
                raise  # it may have written half, or drawn some
            limit = self._owner.room_for_one_op(op.entries)
            if (result := self.large.run(op.func, op.info, op.args, op.kwargs, limit)) is NOT_CUT:
                raise
            return result

    def _execute(self, op: "_Op") -> Any:
        owner, info = self._owner, op.info
        is_search = bool(op.entries) and self._is_search(op)
        room = owner.room_to_search(op.entries, op.new_bytes) if is_search else 0
        self._begin(op, op.new_bytes + room)
        written = op.entries
        try:
            with self._around(op, is_search):
                result = self._noticed(self._call(op), info)
            if is_search:
                self._has_searched(op)
            if op.call is not None:
                op.call.made(result, self._find)
            if info.collective and (is_over := finish_of(result)) is not None:
                owner.hold(self._entries(tensors_within((op.args, op.kwargs, result))), is_over)
            if not info.opaque:
                written = self._entries(tensors_among(info.written_args(op.args, op.kwargs))) if info.writes else []
            if not info.is_simple and (kept := self._kept(op, result)):
                owner.export(kept, "kept by PyTorch")
        finally:
            owner.end(op.entries, written)
        return result

    def _around(self, op: "_Op", is_search: bool) -> AbstractContextManager[Any]:
        """Inside of it the operation runs."""
        if not op.is_of_a_library:
            return self._owner.searching(op.entries) if is_search else nullcontext()
        return self._in_library(op, is_search)

    @contextmanager
    def _in_library(self, op: "_Op", is_search: bool) -> Iterator[None]:
        searching = self._owner.searching(op.entries) if is_search else nullcontext()
        with self._owner.lending_addresses(op.entries), searching:
            yield

    def _begin(self, op: "_Op", new_bytes: int) -> None:
        """Have its pages there. What another thread has taken apart since they were looked up is put together."""
        owner = self._owner
        while True:
            with owner.lock:
                storages = [storage for entry in op.entries if (storage := entry()) is not None] if self.tiles else []
                if not any(storage in self.tiles for storage in storages):
                    owner.begin(op, op.entries, new_bytes)
                    return
            op.entries = [entry for storage in storages if (entry := owner.entry_of(storage, None)) is not None]

    def _is_search(self, op: "_Op") -> bool:
        """Whether it may take more beside its pages, on an accelerator, than is left free so far."""
        if not op.is_of_a_library:
            return self._is_new_search(op.func, op.info, op.args, op.kwargs)
        return self._owner.kind != "cpu" and op.nbytes > self._largest.get(op.func, 0)

    def _has_searched(self, op: "_Op") -> None:
        if op.is_of_a_library:
            self._largest[op.func] = op.nbytes
        else:
            self._searches.made(op.func, op.info, op.args, op.kwargs)

    def _is_new_search(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call is the first of its kind that chooses an algorithm by what is free on an accelerator."""
        return info.searches and self._owner.kind != "cpu" and self._searches.is_first(func, info, args, kwargs)

    def _kept(self, op: "_Op", result: Any) -> list[Entry]:
        """What PyTorch goes on using, unseen, after ``op`` has returned ``result``."""
        info = op.info
        if info.collective:
            return []
        if info.has_object:
            return self._entries(tensors_within((op.args, op.kwargs, result)))
        kept = info.kept_args(op.args, op.kwargs)
        return self._entries(tensors_within((kept, result if info.keeps_results else ())))

    def _call(self, op: "_Op") -> Any:
        """Run it; if memory runs out, once more with everything else gone (N9)."""
        try:
            return op.func(*op.args, **op.kwargs)
        except (RuntimeError, MemoryError) as error:
            if not self._owner.is_out_of_memory(error):
                raise
            failure = error.with_traceback(None)  # its frames would hold what must be freed
        if op.undo is None and (op.info.writes or op.info.seeded):
            try:
                raise failure  # it may have written half, or drawn some: a second run would not equal the first
            finally:
                del failure  # which holds this frame (N21)
        op.new_bytes = self._new_bytes(op.func, op.info, op.args, op.kwargs)
        self._owner.recover(op.entries, op.new_bytes)
        if op.undo is not None:
            op.undo()
        try:
            return op.func(*op.args, **op.kwargs)
        except (RuntimeError, MemoryError) as error:
            if not self._owner.is_out_of_memory(error):
                raise
            raise self._owner.does_not_fit(str(op), op.entries, op.new_bytes, error) from error

    def _view(self, func: Any, tensors: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """No byte is touched, but PyTorch checks some views against the size of the storage, 0 while it is evicted."""
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if _OUT_OF_BOUNDS not in str(error):
                raise
        if len(tensors) == 1 and not describe(func).retypes and self.tiles.can_alias(tensors[0].device):
            with suppress(RuntimeError, MemoryError), self._owner.lock:  # meanwhile no page comes or goes
                return self.tiles.make_view(func, args, kwargs)
        entries = self._entries(tensors)
        self._owner.begin(RawUse(str(func), is_regular=False), entries, 0)
        try:
            return func(*args, **kwargs)
        finally:
            self._owner.end(entries, [])

    def _noticed(self, result: Any, info: OpInfo) -> Any:
        """``result``, with the pages in it known. Small empty ones are none before their first operation (N12)."""
        is_new = not info.retypes
        if isinstance(result, torch.Tensor) and is_plain(result) and has_storage(result):
            storage = untyped_storage(result)
            if not info.empty or has_at_least(storage, FILLED_UNSEEN):
                self._owner.entry_of(storage, result, is_new)
        else:
            for tensor in tensors_among(result if isinstance(result, tuple | list) else (result,)):
                self._entry(tensor, is_new)
        if info.retypes:
            self._owner.retyped(result)
        return result

    def _entries(self, tensors: list[Any]) -> list[Entry]:
        """The pages of ``tensors``, each once."""
        found = {entry: None for tensor in tensors if (entry := self._entry(tensor)) is not None}
        return list(found)

    def _entry(self, tensor: Any, is_new: bool = False) -> Entry | None:
        if isinstance(tensor, torch.Tensor):
            return self._owner.entry_of(storage_of(tensor), tensor, is_new)
        return self._find(tensor)  # a storage is nobody's yet: its type decides whether it will be a page (N12)

    def _made(self, op: "_Op", result: Any) -> int:
        """Bytes of the pages in ``result`` that are new."""
        nbytes = 0
        seen = set(op.entries)
        for tensor in tensors_among((result,)):
            page = self._find(storage_of(tensor))
            if page is not None and page not in seen:
                seen.add(page)
                nbytes += page.nbytes
        return nbytes

    def _nbytes(self, tensors: list[Any]) -> int:
        return sum(entry.nbytes for entry in self._entries(tensors_among(tensors)))


@dataclass(slots=True)
class _Op(Use):
    """One call of an operator. Lives as long as the call (N21).

    Attributes:
        find: the page of a storage, or None.
        is_of_tiles: whether it works for the table of tiles, which fills what it allocates.
        new_bytes: what it will create, as far as is known.
        undo: makes up for an attempt that failed; None if that is not possible, or was not prepared for.
    """

    name: str
    find: Find
    func: Any
    info: OpInfo
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    entries: list[Entry]
    is_of_tiles: bool
    new_bytes: int = 0
    undo: Undo | None = None
    call: Recorded | None = None

    @property
    def tensors(self) -> list[Any]:
        """Among its arguments, at any depth where their schema does not tell all."""
        if self.info.opaque:
            return tensors_within((self.args, self.kwargs))
        return tensors_among((*self.args, *self.kwargs.values()))

    @property
    def is_of_a_library(self) -> bool:
        """Whether its operator is one that we do not know: it takes addresses, and memory beside, as it likes."""
        return self.info.opaque and not self.info.collective and isinstance(self.func, torch._ops.OpOverload)

    @property
    def nbytes(self) -> int:
        """Of its pages."""
        return sum(map(_nbytes_of, self.entries))

    @property
    def device(self) -> torch.device:
        return result_device(self.args, self.kwargs)

    @property
    def is_repeatable(self) -> bool:
        return can_be_repeated(self.info, self.args, self.kwargs, self.find, self.device, self.is_of_tiles)

    def capture_call(self, record: Record) -> None:
        if self.is_repeatable:
            self.call = record(self.func, self.info, self.args, self.kwargs, self.find)

    def written(self, entries: list[Entry]) -> list[Entry]:
        if self.info.opaque:
            return entries
        storages = map(storage_of, tensors_among(self.info.written_args(self.args, self.kwargs)))
        return [entry for storage in storages if (entry := self.find(storage)) is not None]

    def __str__(self) -> str:
        shapes = [f"{t.dtype}{list(t.shape)}".removeprefix("torch.") for t in self.tensors if hasattr(t, "shape")]
        return f"{self.info.name}({', '.join(shapes)})"

    def snapshot(self) -> Undo | None:
        """How to undo what a failed attempt may have done; None if nobody can tell."""
        if self.info.opaque:
            return None
        generator = _generator(self.device, self.kwargs) if self.info.seeded else None
        if self.info.seeded and generator is None:
            return None
        pages = {entry.key for entry in self.entries}
        written = tensors_among(self.info.written_args(self.args, self.kwargs))
        return snapshot(written, lambda tensor: id(storage_of(tensor)) in pages, generator)


def _is_traced() -> bool:
    """Whether a mode of PyTorch's own, which is always below ours, records operations on tensors without bytes."""
    return any(torch._C._get_dispatch_mode(key) is not None for key in _TRACING)


def _generator(device: torch.device, kwargs: dict[str, Any]) -> torch.Generator | None:
    """The generator that an operation on ``device`` draws from, if that is known."""
    given = kwargs.get("generator")
    return given if isinstance(given, torch.Generator) else generator_of(device)
