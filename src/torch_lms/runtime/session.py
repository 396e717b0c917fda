"""A session: every storage of one kind of device becomes a page, until the session ends."""

import threading
import weakref
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from torch_lms.capture.collectives import Collectives
from torch_lms.capture.compiled import CompiledRegions
from torch_lms.capture.mode import LARGE, LmsMode
from torch_lms.capture.page_owner import PageOwner, Use
from torch_lms.capture.pieces.proof import Proofs
from torch_lms.capture.raw import ESCAPED, RawPatches
from torch_lms.capture.registry import Entry, has_at_least, pages_of, storage_nbytes
from torch_lms.capture.tensors import no_function_modes, storage_of, tensors_among, tensors_within
from torch_lms.engine import Engine, Kind
from torch_lms.errors import DeviceFullError, UsageError, WorkingSetError
from torch_lms.native.build import cache_directory
from torch_lms.native.load import IN_PYTHON, Found
from torch_lms.residency import PageId
from torch_lms.runtime import collecting, forks
from torch_lms.runtime.backend import DeviceBackend, new_backend
from torch_lms.runtime.executor import CAN_SWAP, Executor
from torch_lms.runtime.fast_path import FastPath
from torch_lms.runtime.foreign import Seen
from torch_lms.runtime.holds import Holds
from torch_lms.runtime.interposer import Interposer, PythonInterposer
from torch_lms.runtime.interrupts import Interrupts
from torch_lms.runtime.limits import auto_limit
from torch_lms.runtime.native_interposer import NativeFastPath, NativeInterposer, excluded
from torch_lms.runtime.native_pages import NativePageTable
from torch_lms.runtime.options import Options
from torch_lms.runtime.page_table import Group, PageTable, has_any_other_size
from torch_lms.runtime.pageable import NOT_RESIZABLE, READ_UNSEEN, is_read_unseen, is_type_read_unseen
from torch_lms.runtime.stats import Stats, Step
from torch_lms.stores.loaded_file import LoadedFile
from torch_lms.units import format_bytes

STEPS_ASK_EVERY_S = 0.2
"""How often steps that end ask what is free: short ones are not to spend a hundredth of their time on it. Where there
is no room, the engine asks more often."""

_PIN_FIRST = (
    "What LMS does not see may find a tensor evicted, or write one that others depend on. Have it run inside "
    "`with torch_lms.pinned(tensor):`, which also counts as written what is pinned"
)


PROOFS = "pieces.jsonl"
"""The file in the user's cache that tells which pieces give the same bits on this machine."""


class _Place(NamedTuple):
    """Where in a file the bytes of a storage are."""

    file: LoadedFile
    offset: int


class Session(PageOwner):
    """Pages of all devices of one kind.

    Any thread may call any method; one lock guards the books. Operations themselves run outside it, with their pages
    pinned.

    Args:
        options: the settings.
        new_executor: makes the executor of a device.
        found: what sees the operations.
    """

    fast_path: FastPath

    def __init__(
        self, options: Options, new_executor: Callable[[torch.device], Executor], found: Found = IN_PYTHON
    ) -> None:
        self.options = options
        self.active = True
        self.interrupted = False
        self.min_size = options.min_size
        self.kind = options.kind
        self.lock = threading.RLock()
        self._uses = 0
        self._suspicion: Seen | None = None
        self._lost: forks.LostPages | None = None
        self._new_executor = new_executor
        self._holds = Holds()
        self._owned: weakref.WeakKeyDictionary[torch.UntypedStorage, _Place | None] = weakref.WeakKeyDictionary()
        self._interpose(found)
        self._default = self._table.default
        self._interrupts = Interrupts(self._interrupt)
        self._patches = RawPatches(self, options.kind)
        self._compiled = CompiledRegions(self)
        self._collectives = Collectives()
        self._patches.install()
        self._compiled.install()
        self._collectives.install()
        self._interrupts.install()
        self.interposer.begin()
        self.fast_path.open_if_all_fits()

    def _interpose(self, found: Found) -> None:
        """Have operations come by: see ``Interposer``."""
        native = found.native
        proofs = Proofs(cache_directory() / PROOFS, self.options.exact)
        self._table: PageTable
        self.interposer: Interposer
        if native is None:
            self._table = PageTable(self.kind, self.lock, self._new_backend)
            self.fast_path = FastPath(self._table, self.lock, self._reap, self._notice_size)
        else:
            self._table = table = NativePageTable(self.kind, self.lock, self._new_backend, native)
            self.fast_path = fast_path = NativeFastPath(
                native, table, self.lock, self._reap, self._notice_size, self.end
            )
        self.find = self._table.find  # type: ignore[method-assign]  # called most: a frame less
        if native is None:
            self.mode = LmsMode(self, proofs=proofs)
            self.interposer = PythonInterposer(self.mode)
        else:
            self.mode = LmsMode(self, lambda: excluded(native, False), native.alias, proofs)
            self.interposer = NativeInterposer(native, self, self.mode, fast_path, table)
        self.interposer.reason = found.reason

    def _new_backend(self, device: torch.device) -> DeviceBackend:
        recomputer = self._table.new_recomputer()
        close, is_aside = self.fast_path.close, self.interposer.asides.is_one
        return new_backend(device, self._new_executor(device), recomputer, self.options, close, is_aside)

    @property
    def uses(self) -> int:
        """How many operations used pages so far."""
        return self._uses + self.fast_path.operations

    # -- pages -------------------------------------------------------------------------------------------------------

    def find(self, storage: torch.UntypedStorage) -> Entry | None:
        """See ``PageOwner``."""
        return self._table.find(storage)

    def entry_of(
        self, storage: torch.UntypedStorage, tensor: torch.Tensor | None, is_new: bool = False
    ) -> Entry | None:
        entry = self.known(storage)
        if entry is None and has_at_least(storage, self.min_size):
            return self._register(storage, tensor, is_new=is_new)
        return entry

    def known(self, storage: torch.UntypedStorage) -> Entry | None:
        if storage in self.mode.tiles:
            self.mode.tiles.assemble(storage)
        return self._table.find(storage)

    def register(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> None:
        self._register(storage, tensor, is_new=True)

    def may_leave(self, entry: Entry) -> bool:
        with self.lock:
            self.fast_path.close()
            self._reap()
            page = entry.engine.pager.book[entry.page]
            return not (page.unpageable or page.pins or entry.is_exported)

    def in_pieces(self) -> None:
        self._watch_all()

    def owns(self, storage: torch.UntypedStorage, file: object = None, offset: int = 0) -> None:
        is_seen = storage_nbytes(storage) >= max(self.min_size, READ_UNSEEN)  # whenever it is written
        self._owned[storage] = _Place(file, offset) if is_seen and isinstance(file, LoadedFile) else None

    def open_file(self, path: str) -> LoadedFile | None:
        if self.kind != "cpu":
            return None
        try:
            return LoadedFile(path)
        except OSError:  # whoever loads it will say so, if it matters
            return None

    def may_be_page(self, dtype: torch.dtype, nbytes: int) -> bool:
        return nbytes >= self.min_size and not (self.kind == "cpu" and is_type_read_unseen(dtype, nbytes))

    def _register(
        self, storage: torch.UntypedStorage, tensor: torch.Tensor | None, is_owned: bool = False, is_new: bool = False
    ) -> Entry | None:
        if storage.device.type != self.kind or self._lost is not None:
            return None
        if tensor is not None and (is_read_unseen(tensor, storage_nbytes(storage)) or tensor._is_zerotensor()):
            self._take_place(storage)
            return None
        with self.lock:
            entry = self._table.find(storage)
            if entry is not None:
                return entry
            is_owned = is_owned or isinstance(tensor, torch.nn.Parameter) or storage in self._owned
            place = self._take_place(storage)
            # On the fast path nobody sees that a page of a file is written, or makes room.
            engine = self._table.backend_of(storage.device).engine
            if place is not None or not self.fast_path.has_room(engine, storage_nbytes(storage)):
                self.fast_path.close()
            if self.fast_path.is_open and not is_owned:
                self._table.count_dead()
                entry = self._table.add_young(storage)
            else:
                if not self.fast_path.take_over() and not is_new:  # else its operation has just brought them up to date
                    self._table.reap()
                entry = self._table.add(storage, is_owned, is_found=not is_new)
            if place is not None and not entry.engine.pager.book[entry.page].unpageable:
                self._table.home(entry).found_in_file(entry, place.file, place.offset)
            if not is_new:
                self._table.home(entry).executor.adopt(entry)
            if self._holds.keepers:
                self._reap()
                self._holds.keep_if_asked((self._table.home(entry), [entry]))
            return entry

    def _take_place(self, storage: torch.UntypedStorage) -> _Place | None:
        """Where in a file the bytes of ``storage`` are, if it was not used before: from now on it may be written."""
        place = self._owned.get(storage)
        if place is not None:
            self._owned[storage] = None
        return place

    def retyped(self, tensor: torch.Tensor) -> None:
        entry = self._table.find(storage_of(tensor))
        if entry is None:
            return
        if has_any_other_size([entry]):
            self.resized(entry)
        if is_read_unseen(tensor, entry.nbytes):
            self.export([entry], "read by PyTorch unseen")

    def invalidate(self, entries: list[Entry]) -> None:
        if self._is_left_alone(entries):
            return
        with self.lock:
            self._reap()
            for backend, its in self._table.group(entries):
                backend.engine.invalidated(pages_of(its))

    def export(self, entries: list[Entry], reason: str) -> None:
        if self._is_left_alone(entries):
            return
        with self.lock:
            self._reap()
            for backend, its in self._table.group(entries):
                backend.engine.exported(pages_of(its), reason)
                for entry in its:
                    entry.is_exported = True

    def resized(self, entry: Entry, is_freed: bool = False) -> None:
        if not self._is_left_alone([entry]):
            with self.lock:
                self._notice_size(entry, is_freed)

    def _notice_size(self, entry: Entry, is_freed: bool = False) -> None:
        """Look whether the program gave the storage of ``entry`` another size."""
        self._reap()
        self._table.notice_size(entry, is_freed)
        if not self.fast_path.has_room(entry.engine):
            self.fast_path.close()

    def _reap(self, keep_young: bool = False) -> None:
        """Bring the books up to date: which operations passed unseen, whose storages died, who was born, whose holds
        ended. ``keep_young``: see ``PageTable.reap``.
        """
        if not self.fast_path.take_over():
            self._table.reap(keep_young)
        self._holds.release()

    # -- operations --------------------------------------------------------------------------------------------------

    def tight(self, entries: list[Entry], more: int = 0) -> bool:
        if self._lost is not None:
            return False
        if not entries:
            return not self.fast_path.is_open or self.is_at_brim(entries, more)
        with self.lock:
            self.fast_path.take_over()
        engine = entries[0].engine
        # The ledger does not count what was born on the fast path in this step. What is split must not depend on what
        # is there (N10).
        is_roomy = self.fast_path.is_roomy(engine) if self.fast_path.is_open else engine.is_roomy
        is_large = sum([entry.nbytes for entry in entries]) * LARGE >= self.room_for_one_op(entries)
        return is_large or not is_roomy or self.is_at_brim(entries, more)

    def limit_of(self, device: torch.device) -> int | None:
        """Bytes of ``device`` that pages may occupy; None if it has none, or there is room for as much again."""
        engine = self._table.backend_of(device).engine if device.type == self.kind else None
        return None if engine is None or self.fast_path.is_roomy(engine) else engine.pager.limit

    def room_for_one_op(self, entries: list[Entry]) -> int:
        return self._engine_of(entries).room_for_one_op(pages_of(entries))

    def is_at_brim(self, entries: list[Entry], more: int = 0) -> bool:
        engine = self._engine_of(entries)
        live = self._table.live_bytes(engine)
        return self.fast_path.fills_limit and (live >= engine.fast_path_bytes or live + more > engine.pager.limit)

    def room_left(self, entries: list[Entry]) -> int:
        engine = self._engine_of(entries)
        return engine.pager.limit - self._table.live_bytes(engine)

    def _engine_of(self, entries: list[Entry]) -> Engine:
        return entries[0].engine if entries else self._default.engine

    def begin(self, op: Use, entries: list[Entry], new_bytes: int) -> None:
        if not entries and new_bytes < self.min_size:
            return
        if self._lost is not None:
            self._lost.check(entries)
            return
        self._uses += 1
        with self.lock:
            self._reap()
            begun: list[Group] = []
            try:
                for backend, its, its_bytes in self._shares(op, entries, new_bytes):
                    if self._suspicion is not None:
                        self._suspicion.begins(backend.engine, its_bytes + backend.unpinned_bytes(its))
                    backend.begin(op, its, its_bytes)
                    begun.append((backend, its))
            except BaseException as error:
                for backend, its in begun:
                    backend.engine.op_ends(pages_of(its), ())
                if isinstance(error, RuntimeError | MemoryError) and self.is_out_of_memory(error):
                    raise self.does_not_fit(str(op), entries, new_bytes, error) from error
                raise

    def _shares(self, op: Use, entries: list[Entry], new_bytes: int) -> list[tuple[DeviceBackend, list[Entry], int]]:
        """What ``op`` uses and creates, by device."""
        if self.kind == "cpu":
            return [(self._default, entries, new_bytes)]
        groups = self._table.group(entries)
        if not new_bytes or op.device is None:
            maker = groups[0][0]
        else:
            maker = self._table.backend_of(op.device)
        if all(backend is not maker for backend, _ in groups):
            groups.append((maker, []))
        return [
            (backend, its, new_bytes if backend is maker else 0) for backend, its in groups if its or backend is maker
        ]

    def end(self, entries: list[Entry], written: list[Entry]) -> None:
        if self._lost is not None:
            self._lost.check(entries)
            return
        if self._suspicion is not None:
            self._suspicion.written.update(pages_of(written))
            written = [*entries, *(entry for entry in written if entry not in entries)]
        with self.lock:
            self.fast_path.take_over()
            try:
                if written and has_any_other_size(written):
                    for entry in written:
                        self._notice_size(entry)
            finally:
                for backend, its in self._table.group(entries):
                    engine = backend.engine
                    engine.promises.end()
                    if its or engine.pager.room < 0:
                        backend.note_excess(self.mode.operator)
                        own = written if its is entries else [entry for entry in written if entry.engine is engine]
                        engine.op_ends(pages_of(its), pages_of(own))
            if self._suspicion is None and not self._holds.keepers:
                self.fast_path.hand_over()

    def free_bytes(self, device: torch.device) -> int:
        return auto_limit(device).nbytes

    def room_to_search(self, entries: list[Entry], new_bytes: int) -> int:
        op_bytes = sum(entry.nbytes for entry in entries) + new_bytes
        with self.lock:
            return self._table.home(entries[0]).room_to_search(op_bytes)

    def searching(self, entries: list[Entry]) -> AbstractContextManager[None]:
        return self._table.home(entries[0]).searching(self.lock)

    def hold(self, entries: list[Entry], is_over: Callable[[], bool]) -> None:
        if self._is_left_alone(entries):
            return
        with self.lock:
            self._reap()
            for group in self._table.group(entries):
                self._holds.hold(group, is_over)

    def deliver(self) -> None:
        self._interrupts.deliver()

    # -- out of memory (N9) ------------------------------------------------------------------------------------------

    def is_out_of_memory(self, error: BaseException) -> bool:
        return any(backend.executor.is_out_of_memory(error) for backend in self._table.backends)

    def recover(self, entries: list[Entry], new_bytes: int) -> None:
        with self.lock:
            self._reap()
            groups = self._table.group(entries)
            for backend, _ in groups:
                backend.engine.learn_from_failure(new_bytes)
                backend.executor.drain()
            self._reap()  # what collectives used, the host having run ahead of them
            for backend, _ in groups:
                backend.engine.reclaim()
                backend.executor.trim()

    def does_not_fit(self, op: str, entries: list[Entry], new_bytes: int, error: BaseException) -> Exception:
        backend = self._table.home(entries[0]) if entries else self._default
        book = backend.engine.pager.book
        held = sum(entry.nbytes for entry in entries)
        resident = sum(entry.nbytes for entry in entries if book[entry.page].state.on_device)
        others = max(0, book.ledger.device - resident)
        return WorkingSetError(
            f"{backend.device} cannot hold what {op} alone needs: {format_bytes(held)} of arguments and "
            f"{format_bytes(new_bytes)} of results, beside its workspace; all other tensors that can move have left "
            f"({format_bytes(others)} cannot). Use a smaller batch, crop or layer, or a device with more "
            f"memory. PyTorch said: {error}"
        )

    # -- raw accesses (N11) ------------------------------------------------------------------------------------------

    def lend(self, entries: list[Entry], borrower: object) -> None:
        if not CAN_SWAP:  # by lending PyTorch makes a storage one that refuses to be resized
            self.export(entries, ESCAPED)
        if not CAN_SWAP or self._is_left_alone(entries):
            return
        with self.lock:
            self._reap()
            for group in self._table.group(entries):
                self._holds.lend(group, borrower)

    def lending_addresses(self, used: list[Entry]) -> AbstractContextManager[None]:
        return self._patches.lending_addresses(used)

    @contextmanager
    def keeping(self, may_write: bool) -> Iterator[None]:
        try:
            with self._holds.keeping(may_write), self.mode.large.kept_whole():
                self._watch_all()
                yield
        finally:
            self._watch_all()

    def _watch_all(self) -> None:
        """The mode has every operation while an interrupt waits, a thread's tensors are kept, or some are in tiles."""
        self.interposer.watch_all(bool(self._holds.keepers) or bool(self.mode.tiles) or self.interrupted)

    @contextmanager
    def all_held(self) -> Iterator[None]:
        with self.lock:
            self._reap()
            entries = list(self._table.registry)
        with self._held_entries(entries):
            yield

    def unseen(self) -> AbstractContextManager[None]:
        return self.interposer.unseen()

    # -- holding pages for a block -----------------------------------------------------------------------------------

    @contextmanager
    def pinned(self, what: Any) -> Iterator[None]:
        """Keep the tensors in ``what`` (a tensor, a module, or a nest of them) on the device; they may be written."""
        tensors = tensors_within(what)
        if not tensors:
            raise UsageError(f"pinned() takes a tensor, a module, or a list or dict of them; got {what!r}")
        entries = self.entries_of(tensors)
        with self._held_entries(entries, set(pages_of(entries))):
            yield

    def touched(self, tensors: Any) -> None:
        """Something that shows no operation has written ``tensors``.

        Raises:
            UsageError: there are none, or it cannot have found one there; or what depends on one is lost.
        """
        found = tensors_within(tensors)
        if not found:
            raise UsageError(f"touched() takes tensors that were written; got {tensors!r}")
        entries = self.entries_of(found)
        with self.lock:
            self._reap()
            for backend, its in self._table.group(entries):
                book = backend.engine.pager.book
                pages = pages_of(its)
                if not all(book[page].state.on_device for page in pages):
                    raise UsageError(f"touched() was told of a tensor that is not on the device. {_PIN_FIRST}")
                if backend.engine.pager.recipes.dependents(pages):
                    raise UsageError(f"touched() was told of a tensor from which others are recomputed. {_PIN_FIRST}")
                backend.engine.op_ends((), pages)

    @contextmanager
    def _held_entries(self, entries: list[Entry], written: Container[PageId] = ()) -> Iterator[None]:
        with ExitStack() as undo:
            with self.lock:
                self._reap()
                living = [entry for entry in entries if entry.page in entry.engine.pager.book]
                for backend, its in self._table.group(living):
                    pages = pages_of(its)
                    try:
                        backend.engine.pinned(pages)
                    except (RuntimeError, MemoryError) as error:
                        if not self.is_out_of_memory(error):
                            raise
                        raise self.does_not_fit("pinned()", its, 0, error) from error
                    undo.callback(self._unpin, backend, pages, tuple(page for page in pages if page in written))
                    backend.use(pages)
            yield

    def _unpin(self, backend: DeviceBackend, pages: tuple[PageId, ...], written: tuple[PageId, ...]) -> None:
        with self.lock:
            self._reap()
            backend.engine.unpinned(pages, written)

    # -- optimizers --------------------------------------------------------------------------------------------------

    def adopt(self, tensors: Iterable[torch.Tensor]) -> None:
        """The program owns these, and nobody else their memory: page them before they are used, and even if they refuse
        to be resized (N12).
        """
        with no_function_modes():
            storages = [(storage_of(tensor), tensor) for tensor in tensors_among(tensors)]
        for storage, tensor in storages:
            entry = self.entry_of(storage, tensor)
            if entry is None:
                continue
            with self.lock:
                self._reap()
                page = entry.engine.pager.book[entry.page]
                if entry.is_exported or page.pins:
                    continue  # somebody else has its memory, too
                if CAN_SWAP and page.unpageable == NOT_RESIZABLE:
                    self._table.drop(entry)
                    self._register(storage, tensor, is_owned=True)

    @contextmanager
    def suspecting(self, tensors: list[torch.Tensor], expected: list[torch.Tensor], hold: bool) -> Iterator[Seen]:
        """Inside, ``tensors`` may be written without an operation that shows it: all that is used is taken for written.

        Args:
            tensors: what may be written.
            expected: those that will be.
            hold: keep ``tensors`` on the device, as long as that has room for all.
        """
        entries = self.entries_of(tensors)
        seen = Seen(self._pages_among, set() if self.fast_path.is_open else self._pages_among(expected))
        with seen.held:
            if not (hold and self._is_held(entries, seen)):
                self._take_for_written(entries)
            self._suspicion = seen
            try:
                yield seen
            finally:
                self._suspicion = None

    def _pages_among(self, tensors: list[torch.Tensor]) -> set[PageId]:
        return set(pages_of(self.entries_of(tensors)))

    def _is_held(self, entries: list[Entry], seen: Seen) -> bool:
        """Hold ``entries`` if they fit; whether they do."""
        nbytes = {backend.engine: sum(entry.nbytes for entry in its) for backend, its in self._table.group(entries)}
        if any(its_bytes > engine.pager.limit for engine, its_bytes in nbytes.items()):
            return False
        try:
            seen.held.enter_context(self._held_entries(entries, set(pages_of(entries))))
        except WorkingSetError:
            return False
        seen.held_bytes = nbytes
        return True

    def _take_for_written(self, entries: list[Entry]) -> None:
        with self.lock:
            self._reap()
            for backend, its in self._table.group(entries):
                pages = pages_of(its)
                backend.engine.invalidated(pages)
                backend.engine.op_ends((), pages)

    # -- told by the user --------------------------------------------------------------------------------------------

    def step(self) -> None:
        """A training step ended."""
        with self.lock:
            self.interposer.step_ends()
            self._reap(keep_young=self.fast_path.is_open)
            self.mode.large.step_ended()
            backends = self._table.backends
            for backend in backends:
                backend.engine.refresh_limit(STEPS_ASK_EVERY_S, before_moves=self._reap)
                backend.engine.step_ended()
                if backend.allocator is not None:
                    backend.allocator.shed()
                    backend.allocator.tell_of_failures()
            self._watch_all()
            if not self.mode.tiles:
                self.fast_path.open_if_all_fits()
            for backend in backends:
                backend.engine.step_begins(is_short=not self.fast_path.is_open)
                backend.forget_calls()

    def reclaim(self) -> None:
        """Evict whatever may leave."""
        with self.lock:
            self._reap()
            for backend in self._table.backends:
                backend.engine.reclaim()

    def set_limit(self, nbytes: int) -> None:
        """From now on pages may occupy ``nbytes`` of each device; what exceeds it leaves at once."""
        with self.lock:
            self._reap()
            self.options = replace(self.options, limit=nbytes)
            for backend in self._table.backends:
                backend.engine.set_limit(nbytes)
            self.fast_path.limits_have_changed()

    def set_min_size(self, nbytes: int) -> None:
        """Of the storages first seen from now on, those of ``nbytes`` bytes and more are pages."""
        self.min_size = max(1, nbytes)
        for storage in list(self._owned):  # some of them may be written unseen
            self._take_place(storage)
        self.mode.min_size_has_changed()
        self.interposer.set_min_size(self.min_size)

    # -- what happened -----------------------------------------------------------------------------------------------

    @contextmanager
    def standing_still(self) -> Iterator[list[DeviceBackend]]:
        """Its devices so far, of which nothing changes inside, with every death counted."""
        with self.lock:
            self._reap()
            yield self._table.backends

    @property
    def page_count(self) -> int:
        """How many storages are pages now, young ones included."""
        return len(self._table.registry)

    def stats(self) -> Stats:
        """The figures now."""
        with self.standing_still():
            return self._figures()

    @contextmanager
    def undisturbed(self) -> Iterator[tuple[list[DeviceBackend], Stats]]:
        """Its devices so far, of which nothing changes inside, and the figures. Births and deaths while a plan is
        followed are not in them: to ask for these in the midst of a step may end that the step follows its plan (N25).
        """
        with self.lock:
            if self.fast_path.is_open:
                self._reap()
            figures, since = self._figures(), self.fast_path.progress()
            if since is not None:
                figures = replace(
                    figures,
                    resident_bytes=since.resident,
                    host_bytes=since.host,
                    disk_bytes=since.disk,
                    file_bytes=since.file,
                    evictions=figures.evictions + since.counts.evictions,
                    evicted_bytes=figures.evicted_bytes + since.counts.evicted_bytes,
                    fetches=figures.fetches + since.counts.fetches,
                    fetched_bytes=figures.fetched_bytes + since.counts.fetched_bytes,
                    recomputes=figures.recomputes + since.counts.recomputes,
                    recomputed_bytes=figures.recomputed_bytes + since.counts.recomputed_bytes,
                )
            yield self._table.backends, figures

    def _figures(self) -> Stats:
        figures = collecting.collect(self._table.backends, self._default.engine.pager.policy.name, self._holds.loans)
        pieces = self.mode.pieces
        return replace(
            figures,
            interposer=self.interposer.name,
            interposer_reason=self.interposer.reason,
            in_pieces=pieces.operations,
            unproved=tuple(sorted(pieces.unproved)),
            inexact=tuple(sorted(pieces.inexact)),
        )

    def planned_kinds(self) -> list[Kind]:
        """The kinds of steps for which there are plans, or were since the last ``reset_stats``."""
        with self.lock:
            plans = [backend.plans for backend in self._table.backends if backend.plans is not None]
            return [kind for cache in plans for kind in (*cache.kinds, *cache.past)]

    @property
    def last_step(self) -> Step:
        """The last step of the current device in which room was short."""
        with self.lock:
            backend = self._default
            engine, plans = backend.engine, backend.plans
            trace = engine.trace if plans is not None else None
            plan = plans.kinds[0].plan if plans is not None and plans.kinds else None
            return Step(trace, plan, engine.timeline, backend.device.type, backend.overlap_penalty)

    def reset_stats(self) -> None:
        """Start counting anew."""
        with self.lock:
            self._reap()
            self.mode.pieces.reset_counts()
            for backend in self._table.backends:
                backend.reset_counts()

    def validate(self) -> None:
        """Check every invariant of the books, and the books against the storages themselves."""
        with self.lock:
            self._reap()
            self._table.validate()

    # -- the end (N20) -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Bring everything back, and let go.

        Raises:
            DeviceFullError: not everything fits. The session goes on, and so it does if another error is raised.
        """
        try:
            self.mode.tiles.assemble_all()
        except WorkingSetError as error:
            raise self._cannot_end() from error
        with self.lock:
            self._reap()
            try:
                for backend in self._table.backends:
                    backend.engine.restore(tuple(page.id for page in backend.engine.pager.book))
            except (RuntimeError, MemoryError) as error:
                if not self.is_out_of_memory(error):
                    raise
                raise self._cannot_end() from error
            self._let_go()
            for backend in self._table.backends:
                backend.close()
        self._interrupts.uninstall()

    def _interrupt(self, waits: bool) -> None:
        self.interrupted = waits
        self._watch_all()

    def _let_go(self) -> None:
        self.active = False
        self.fast_path.abandon()
        self.interposer.end()
        self._patches.uninstall()
        self._compiled.uninstall()
        self._collectives.uninstall()

    def _cannot_end(self) -> DeviceFullError:
        engines = [backend.engine for backend in self._table.backends]
        away = sum(page.nbytes for engine in engines for page in engine.pager.book if not page.state.on_device)
        for engine in engines:
            engine.set_soft_limit(engine.pager.limit)
        held = sum(engine.pager.book.ledger.live for engine in engines)
        return DeviceFullError(
            f"LMS stays on: {format_bytes(away)} of the {format_bytes(held)} that it holds do not fit on the device. "
            f"Nothing is lost. Delete tensors that are not needed any more, then call torch_lms.disable() again; a "
            f"process that ends needs not call it at all"
        )

    # -- forks (N13) -------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """All that fits comes back; nothing changes until the process has forked."""
        with suppress(WorkingSetError):
            self.mode.tiles.assemble_all()
        self.lock.acquire()
        self._reap()
        forks.bring_back_for_fork(self._table.backends)

    def after_fork_in_parent(self) -> None:
        """Go on."""
        forks.trim_after_fork(self._table.backends)
        self.lock.release()

    def after_fork_in_child(self) -> bool:
        """Let go of all that is the parent's. Whether pages stayed behind, which the child must be kept from."""
        self.lock._at_fork_reinit()  # type: ignore[attr-defined]  # all of ours refer to this lock
        self.fast_path.abandon()
        self._lost = forks.LostPages(self._table.backends)
        if not self._lost:
            self._let_go()
        return bool(self._lost)

    def _is_left_alone(self, entries: list[Entry]) -> bool:
        """Whether this is a forked child, which pages nothing."""
        if self._lost is None:
            return False
        self._lost.check(entries)
        return True
