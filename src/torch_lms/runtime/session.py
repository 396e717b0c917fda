"""A session: every storage of one kind of device becomes a page, until the session ends."""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any

import torch

from torch_lms.capture.collectives import Coalescing
from torch_lms.capture.compiled import CompiledRegions
from torch_lms.capture.mode import LmsMode, Sink
from torch_lms.capture.raw import ESCAPED, RawAccess, RawPatches
from torch_lms.capture.registry import STORAGE, Entry, Registry, storage_nbytes
from torch_lms.capture.tensors import no_torch_function, storage_of, tensors_among, tensors_within
from torch_lms.capture.told import Use
from torch_lms.errors import DeviceFullError, ForkedPageError, InvariantError, UsageError, WorkingSetError
from torch_lms.pager import (
    Exported,
    LimitChanged,
    OpEnds,
    Pinned,
    Reclaim,
    Restore,
    Spoiled,
    Unpinned,
)
from torch_lms.residency import UNDER_WAY, PageId, State
from torch_lms.runtime.executor import CAN_SWAP, Executor
from torch_lms.runtime.foreign import Seen
from torch_lms.runtime.interrupts import Interrupts
from torch_lms.runtime.limits import auto_limit
from torch_lms.runtime.options import Options
from torch_lms.runtime.stats import Stats, Step
from torch_lms.runtime.unit import REFRESH_EVERY_S, Unit
from torch_lms.timeline import Lane
from torch_lms.units import format_bytes

_NOT_RESIZABLE = "not resizable"

_READ_UNSEEN = {torch.int32: 1 << 20, torch.int64: 1 << 20}
"""Tensors of these types on the CPU below so many bytes are read by PyTorch itself without an operation that shows it:
lengths and indices (N12)."""

_SMALL = 64 << 10
"""The same for the other integer types."""


class _Loan(weakref.ref[Any]):
    """Pages of ``unit`` that somebody shares, referenced weakly: they stay until whoever that is has died."""

    __slots__ = ("pages", "unit")
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    pages: tuple[PageId, ...]
    unit: Unit


@dataclass(slots=True)
class _Keeping:
    """What a thread makes stays until that is over."""

    is_over: bool = False


class Session(Sink, RawAccess):
    """Pages of all devices of one kind.

    Any thread may call any method; one lock guards the books. Operations themselves run outside it, with their pages
    pinned.

    Args:
        options: the settings.
        new_executor: makes the executor of a device.
    """

    def __init__(self, options: Options, new_executor: Callable[[torch.device], Executor]) -> None:
        self.options = options
        self.active = True
        self.min_size = options.min_size
        self.kind = options.kind
        self.calm = False
        self._is_cpu = options.kind == "cpu"
        self.uses = 0
        self._keeping: dict[int, _Keeping] = {}
        self._suspicion: Seen | None = None
        self._flights: dict[int, list[Entry]] = {}
        self._young: set[Entry] = set()
        self._caught: dict[int, list[tuple[Unit, tuple[PageId, ...]]]] = {}
        self._held_until: list[tuple[Callable[[], bool], Unit, tuple[PageId, ...]]] = []
        self._loans: set[_Loan] = set()
        self._returned: deque[_Loan] = deque()
        self.mode = LmsMode(self)
        self.lock = threading.RLock()
        self.interrupted = False
        self._interrupts = Interrupts(self._interrupt)
        self._new_executor = new_executor
        self._registry = Registry()
        self._lost_to_fork: set[PageId] | None = None
        self._patches = RawPatches(self, options.kind)
        self._units: dict[torch.device, Unit] = {}
        self._default = self._unit_of(_current_device(options.kind))
        self._compiled = CompiledRegions(self._held_for_region)
        self._coalescing = Coalescing()
        self._patches.install()
        self._compiled.install()
        self._coalescing.install()
        self._interrupts.install()
        self._calm_down()

    # -- told by capture ---------------------------------------------------------------------------------------------

    def entry_of(self, storage: torch.UntypedStorage, tensor: torch.Tensor | None) -> Entry | None:
        entry = self._registry.find(storage)
        if entry is None and storage_nbytes(storage) >= self.min_size:
            return self._register(storage, tensor)
        return entry

    def find(self, storage: torch.UntypedStorage) -> Entry | None:
        """The page of ``storage``, if it is one."""
        return self._registry.find(storage)

    def tight(self, entries: list[Entry]) -> bool:
        if self._lost_to_fork is not None:
            return False
        if not entries:
            return not self.calm
        unit = entries[0].unit
        needed = sum(entry.nbytes for entry in entries)  # wherever it is: what is cut must not depend on that (N10)
        return not unit.is_roomy or needed * 2 >= unit.pager.limit

    def room_for_one_op(self, entries: list[Entry]) -> int:
        return int((entries[0].unit if entries else self._default).pager.limit)

    def begin(self, op: Use, entries: list[Entry], new_bytes: int) -> None:
        if (not entries and new_bytes < self.min_size) or self._is_left_alone(entries):
            return
        self.uses += 1
        with self.lock:
            self._bury()
            begun: list[tuple[Unit, tuple[PageId, ...]]] = []
            try:
                for unit, its, its_bytes in self._shares(op, entries, new_bytes):
                    begun.append((unit, unit.begin(op, its, its_bytes)))
                    unit.executor.use(its)
                    unit.write_down(op)
            except BaseException:
                for unit, pages in begun:
                    unit.tell(OpEnds(pages, ()))
                raise

    def _shares(self, op: Use, entries: list[Entry], new_bytes: int) -> list[tuple[Unit, list[Entry], int]]:
        """What ``op`` uses and creates, by device."""
        if self._is_cpu:
            return [(self._default, entries, new_bytes)]
        groups = self._by_unit(entries)
        maker = self._unit_of(_with_index(op.device)) if new_bytes else groups[0][0]
        if all(unit is not maker for unit, _ in groups):
            groups.append((maker, []))
        return [(unit, its, new_bytes if unit is maker else 0) for unit, its in groups if its or unit is maker]

    def end(self, entries: list[Entry], written: list[Entry]) -> None:
        if self._is_left_alone(entries):
            return
        if self._suspicion is not None:
            self._suspicion.written.update(entry.page for entry in written)
            written = [*entries, *(entry for entry in written if entry not in entries)]
        with self.lock:
            try:
                for entry in written:
                    self._notice_size(entry)
            finally:
                for unit, its in self._by_unit(entries):
                    if its or unit.pager.room < 0:
                        pages = tuple(entry.page for entry in its)
                        unit.end(pages, tuple(entry.page for entry in written if entry.unit is unit))

    def hold(self, entries: list[Entry], is_over: Callable[[], bool]) -> None:
        if self._is_left_alone(entries):
            return
        with self.lock:
            self._bury()
            for unit, its in self._by_unit(entries):
                pages = tuple(entry.page for entry in its)
                unit.tell(Pinned(pages))
                self._held_until.append((is_over, unit, pages))

    def lend(self, entries: list[Entry], borrower: object) -> None:
        if not CAN_SWAP:  # by lending PyTorch makes a storage one that refuses to be resized
            self.export(entries, ESCAPED)
        if not CAN_SWAP or self._is_left_alone(entries):
            return
        with self.lock:
            self._bury()
            for unit, its in self._by_unit(entries):
                loan = _Loan(borrower, self._returned.append)
                loan.unit, loan.pages = unit, tuple(entry.page for entry in its)
                unit.tell(Pinned(loan.pages))
                self._loans.add(loan)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        thread, inside = get_ident(), _Keeping()
        before = self._keeping.get(thread)
        self._keeping[thread] = inside
        try:
            yield
        finally:
            inside.is_over = True
            del self._keeping[thread]
            if before is not None:
                self._keeping[thread] = before

    @contextmanager
    def all_held(self) -> Iterator[None]:
        with self._held_entries(list(self._registry)):
            yield

    def unseen(self) -> AbstractContextManager[None]:
        return self.mode.left_out()

    def spoil(self, entries: list[Entry]) -> None:
        if self._is_left_alone(entries):
            return
        with self.lock:
            self._bury()
            for unit, its in self._by_unit(entries):
                unit.tell(Spoiled(tuple(entry.page for entry in its)))

    def export(self, entries: list[Entry], reason: str) -> None:
        if self._is_left_alone(entries):
            return
        with self.lock:
            self._bury()
            for unit, its in self._by_unit(entries):
                unit.tell(Exported(tuple(entry.page for entry in its), reason))
                unit.executor.use(its)
                for entry in its:
                    entry.is_exported = True

    def resized(self, entry: Entry) -> None:
        if self._is_left_alone([entry]):
            return
        with self.lock:
            self._notice_size(entry)

    def retyped(self, tensor: torch.Tensor) -> None:
        entry = self._registry.find(storage_of(tensor))
        if entry is not None and _is_read_unseen(tensor, entry.nbytes):
            self.export([entry], "read by PyTorch unseen")

    def is_out_of_memory(self, error: BaseException) -> bool:
        return any(unit.executor.is_out_of_memory(error) for unit in self._units.values())

    def recover(self, entries: list[Entry], new_bytes: int) -> None:
        with self.lock:
            for unit, _ in self._by_unit(entries):
                unit.learn_from_failure(new_bytes)
                unit.tell(Reclaim())
                unit.executor.trim()

    def does_not_fit(self, op: str, entries: list[Entry], new_bytes: int, error: BaseException) -> Exception:
        unit = entries[0].unit if entries else self._default
        held = sum(entry.nbytes for entry in entries)
        others = unit.pager.book.ledger.device - sum(
            entry.nbytes for entry in entries if unit.pager.book[entry.page].state.on_device
        )
        return WorkingSetError(
            f"{unit.device} cannot hold what {op} alone needs: {format_bytes(held)} of arguments and "
            f"{format_bytes(new_bytes)} of results, beside its workspace; all other tensors that can move have left "
            f"({format_bytes(max(0, others))} cannot). Use a smaller batch, crop or layer, or a device with more "
            f"memory. PyTorch said: {error}"
        )

    # -- while everything fits (N3) ----------------------------------------------------------------------------------

    def fly(self, entries: list[Entry]) -> bool:
        self.uses += 1
        self._flights[get_ident()] = entries
        if not self.calm:  # asked again, now that whoever ends it would see this flight
            self.land(entries, wrote=False)
            return False
        if not self._is_cpu:
            with self.lock:
                for unit, its in self._by_unit(entries):
                    unit.executor.use(its)
        return True

    def land(self, entries: list[Entry], wrote: bool) -> None:
        thread = get_ident()
        self._flights.pop(thread, None)
        if wrote and any(
            (storage := entry()) is not None and storage_nbytes(storage) != entry.nbytes for entry in entries
        ):
            with self.lock:
                for entry in entries:
                    self._notice_size(entry)
        if self._caught or not self.calm:
            with self.lock:  # whoever ended it, though it may have begun again, may be about to pin these
                for unit, pages in self._caught.pop(thread, ()):
                    unit.tell(Unpinned(pages, pages if wrote else ()))

    def _calm_down(self) -> None:
        """Calm begins again if every page is on the device, and a step like the last would fit."""
        if all(unit.is_calm for unit in self._units.values()):
            self.calm = True
        else:
            self._end_calm()

    def _end_calm(self) -> None:
        """Before any page leaves: pages of operations that run unpinned on other threads are pinned now.

        All of a device at once: telling of it may itself make pages leave.
        """
        if not self.calm:
            return
        self.calm = False
        self._bury()
        pinned: dict[Unit, tuple[PageId, ...]] = {}
        for thread, entries in list(self._flights.items()):
            for unit, its in self._by_unit(entries):
                pages = tuple({entry.page for entry in its if entry.page in unit.pager.book})
                self._caught.setdefault(thread, []).append((unit, pages))
                pinned[unit] = pinned.get(unit, ()) + pages
        for unit, pages in pinned.items():
            unit.tell(Pinned(pages))

    # -- told by the user --------------------------------------------------------------------------------------------

    def step(self) -> None:
        """A training step ended."""
        with self.lock:
            self._bury()
            for unit in self._units.values():
                unit.refresh_limit(at_most_every_s=REFRESH_EVERY_S)
                unit.end_step()
            self._calm_down()
            for unit in self._units.values():
                unit.begin_step(is_short=not self.calm)

    def reclaim(self) -> None:
        """Evict whatever may leave."""
        with self.lock:
            self._bury()
            for unit in self._units.values():
                unit.tell(Reclaim())

    def set_limit(self, nbytes: int) -> None:
        """From now on pages may occupy ``nbytes`` of each device; what exceeds it leaves at once."""
        with self.lock:
            self._bury()
            self.options = replace(self.options, limit=nbytes)
            for unit in self._units.values():
                unit.set_limit(nbytes)

    def set_min_size(self, nbytes: int) -> None:
        """Of the storages first seen from now on, those of ``nbytes`` bytes and more are pages."""
        self.min_size = max(1, nbytes)

    @contextmanager
    def held(self) -> Iterator[list[Unit]]:
        """Its devices so far, standing still and with every death counted."""
        with self.lock:
            self._bury()
            yield list(self._units.values())

    def adopt(self, tensors: Iterable[torch.Tensor]) -> None:
        """The program owns these, and nobody else their memory: page them even if they refuse to be resized (N12)."""
        with no_torch_function():
            storages = [(storage_of(tensor), tensor) for tensor in tensors_among(tensors)] if CAN_SWAP else []
        for storage, tensor in storages:
            entry = self.entry_of(storage, tensor)
            with self.lock:
                self._bury()
                page = None if entry is None else entry.unit.pager.book[entry.page]
                if entry is None or page is None or entry.is_exported or page.pins:
                    continue  # somebody else has its memory, too
                if page.unpageable == _NOT_RESIZABLE:
                    self._remove(entry)
                    self._registry.drop(entry)
                    self._register(storage, tensor, owned=True)

    @contextmanager
    def suspecting(self, tensors: list[torch.Tensor], expected: list[torch.Tensor], hold: bool) -> Iterator[Seen]:
        """Inside, ``tensors`` may be written without an operation that shows it: all that is used is taken for written.

        Args:
            tensors: what may be written.
            expected: those that will be.
            hold: keep ``tensors`` on the device, if that has room for all.
        """
        entries = self._pages_of(tensors)
        seen = Seen(set() if self.calm else {entry.page for entry in self._pages_of(expected)})
        with ExitStack() as held:
            if not (hold and self._is_held(entries, held)):
                self._taken_for_written(entries)
            self._suspicion = seen
            try:
                yield seen
            finally:
                self._suspicion = None

    def _is_held(self, entries: list[Entry], until: ExitStack) -> bool:
        """Hold ``entries`` if they fit; whether they do."""
        if any(sum(entry.nbytes for entry in its) > unit.pager.limit for unit, its in self._by_unit(entries)):
            return False
        try:
            until.enter_context(self._held_entries(entries, {entry.page for entry in entries}))
        except WorkingSetError:
            return False
        return True

    def _taken_for_written(self, entries: list[Entry]) -> None:
        with self.lock:
            self._bury()
            for unit, its in self._by_unit(entries):
                pages = tuple(entry.page for entry in its)
                unit.tell(Spoiled(pages))
                unit.tell(OpEnds((), pages))

    def _pages_of(self, tensors: Iterable[Any]) -> list[Entry]:
        with no_torch_function():
            found = {self.entry_of(storage_of(t), t): None for t in tensors_among(tensors)}
        return [entry for entry in found if entry is not None]

    @contextmanager
    def pinned(self, what: Any) -> Iterator[None]:
        """Keep the tensors in ``what`` (a tensor, a module, or a nest of them) on the device."""
        tensors = tensors_within(what)
        if not tensors:
            raise UsageError(f"pinned() takes a tensor, a module, or a list or dict of them; got {what!r}")
        with self._held(tensors):
            yield

    @contextmanager
    def _held_for_region(self, inputs: Sequence[Any], written: Sequence[Any]) -> Iterator[None]:
        with self._held(tensors_among(inputs), tensors_among(written)), self.mode.left_out():
            yield

    @contextmanager
    def _held(self, tensors: list[Any], written: Sequence[Any] = ()) -> Iterator[None]:
        changed = {entry.page for entry in self._pages_of(written)}
        with self._held_entries(self._pages_of(tensors), changed):
            yield

    @contextmanager
    def _held_entries(self, entries: list[Entry], written: Container[PageId] = ()) -> Iterator[None]:
        with ExitStack() as undo:
            with self.lock:
                self._bury()
                living = [entry for entry in entries if entry.page in entry.unit.pager.book]
                for unit, its in self._by_unit(living):
                    pages = tuple(entry.page for entry in its)
                    try:
                        unit.tell(Pinned(pages))
                    except (RuntimeError, MemoryError) as error:
                        if not self.is_out_of_memory(error):
                            raise
                        raise self.does_not_fit("pinned()", its, 0, error) from error
                    undo.callback(self._unpin, unit, pages, tuple(page for page in pages if page in written))
                    unit.executor.use(its)
            yield

    def _unpin(self, unit: Unit, pages: tuple[PageId, ...], written: tuple[PageId, ...]) -> None:
        with self.lock:
            self._bury()
            unit.tell(Unpinned(pages, written))

    def stats(self) -> Stats:
        """The figures now."""
        with self.lock:
            self._bury()
            units = list(self._units.values())
            for unit in units:
                unit.count_copies()
            stall_s, busy_s = sum(unit.executor.stall_s for unit in units), sum(unit.busy_s for unit in units)
            counters = [unit.pager.counters for unit in units]
            ledgers = [unit.pager.book.ledger for unit in units]
            foresights = [unit.foresight for unit in units if unit.foresight is not None]
            unpaged = self._unpaged()
            return Stats(
                steps=max(c.steps for c in counters),
                demand_bytes=sum(c.demand_bytes for c in counters),
                limit_bytes=sum(unit.pager.limit for unit in units),
                resident_bytes=sum(ledger.device for ledger in ledgers),
                peak_resident_bytes=sum(ledger.peak_device for ledger in ledgers),
                evicted_bytes=sum(c.evicted_bytes for c in counters),
                evictions=sum(c.evictions for c in counters),
                fetched_bytes=sum(c.fetched_bytes for c in counters),
                fetches=sum(c.fetches for c in counters),
                clean_drops=sum(c.clean_drops for c in counters),
                recomputed_bytes=sum(c.recomputed_bytes for c in counters),
                recomputes=sum(c.recomputes for c in counters),
                stall_s=stall_s,
                hidden_fraction=max(0.0, 1 - stall_s / busy_s) if busy_s else 1.0,
                link_bytes_per_s={
                    lane.value: sum(unit.links[lane].bytes_per_s for unit in units) for lane in (Lane.OUT, Lane.IN)
                },
                host_bytes=sum(ledger.host for ledger in ledgers),
                disk_bytes=sum(ledger.disk for ledger in ledgers),
                policy=self._default.pager.policy.name,
                planned_steps=sum(foresight.planned_steps for foresight in foresights),
                diverged_steps=sum(foresight.diverged_steps for foresight in foresights),
                replans=sum(foresight.replans for foresight in foresights),
                recoveries=sum(unit.recoveries for unit in units),
                unpaged_bytes=unpaged,
                allocations={
                    "free": sum(c.room_from_free for c in counters),
                    "one": sum(c.room_from_one for c in counters),
                    "some": sum(c.room_from_some for c in counters),
                    "all": sum(c.room_from_all for c in counters),
                    "retry": sum(unit.recoveries for unit in units),
                },
            )

    def _unpaged(self) -> dict[str, int]:
        """Bytes that stay on their devices, by reason; what is lent among them."""
        lent = {(loan.unit, page) for loan in self._loans for page in loan.pages}
        found: dict[str, int] = {}
        for unit in self._units.values():
            for page in unit.pager.book:
                reason = page.unpageable or (ESCAPED if (unit, page.id) in lent else "")
                if reason:
                    found[reason] = found.get(reason, 0) + page.nbytes
        return found

    def traffic_ratio(self) -> float | None:
        """See ``Stats``.

        Raises:
            ImportError: scipy is not installed.
        """
        with self.lock:
            foresights = [unit.foresight for unit in self._units.values() if unit.foresight is not None]
            kinds = [kind for foresight in foresights for kind in foresight.kinds]
            evicted_bytes = sum(kind.evicted_bytes for kind in kinds)
        least_bytes = sum(kind.floor_bytes() for kind in kinds)
        return evicted_bytes / least_bytes if least_bytes else None

    @property
    def last_step(self) -> Step:
        """Of the current device."""
        with self.lock:
            unit = self._default
            known = unit.foresight
            plan = known.kinds[0].plan if known is not None and known.kinds else None
            return Step(None if known is None else known.trace, plan, unit.timeline)

    def reset_stats(self) -> None:
        """Start counting anew."""
        with self.lock:
            for unit in self._units.values():
                unit.reset_counts()

    def validate(self) -> None:
        """Check every invariant of the books, and the books against the storages themselves."""
        with self.lock:
            self._bury()
            for unit in self._units.values():
                unit.pager.validate()
            for entry in self._registry:
                storage = entry()
                if storage is not None:
                    _check(entry, storage)

    def close(self) -> None:
        """Bring everything back, and let go.

        Raises:
            DeviceFullError: not everything fits. The session goes on, and so it does if another error is raised.
        """
        with self.lock:
            self._bury()
            try:
                for unit in self._units.values():
                    unit.tell(Restore(tuple(page.id for page in unit.pager.book)))
            except (RuntimeError, MemoryError) as error:
                if not self.is_out_of_memory(error):
                    raise
                raise self._cannot_end() from error
            self._let_go()
            for unit in self._units.values():
                unit.executor.close()
        self._interrupts.uninstall()

    def _interrupt(self, waits: bool) -> None:
        self.interrupted = waits

    def deliver(self) -> None:
        self._interrupts.deliver()

    def _let_go(self) -> None:
        self.active = self.calm = False
        self._patches.uninstall()
        self._compiled.uninstall()
        self._coalescing.uninstall()

    def _cannot_end(self) -> DeviceFullError:
        books = [unit.pager.book for unit in self._units.values()]
        away = sum(page.nbytes for book in books for page in book if not page.state.on_device)
        for unit in self._units.values():
            unit.tell(LimitChanged(unit.pager.limit))
        held = sum(book.ledger.live for book in books)
        return DeviceFullError(
            f"LMS stays on: {format_bytes(away)} of the {format_bytes(held)} that it holds do not fit on the device. "
            f"Nothing is lost. Delete tensors that are not needed any more, then call torch_lms.disable() again; a "
            f"process that ends needs not call it at all"
        )

    # -- forks (N13) -------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """The child may read pages on the CPU: all that fits comes back, for this moment beyond the limit."""
        self.lock.acquire()
        self._bury()
        unit = self._units.get(torch.device("cpu"))
        if unit is not None:
            unready = (*UNDER_WAY, State.DROPPED)
            unit.tell(Restore(tuple(page.id for page in unit.pager.book if page.state in unready)))
            room = auto_limit(unit.device).nbytes
            for page in [page for page in unit.pager.book if page.state is State.EVICTED]:
                if page.nbytes <= room:
                    unit.tell(Restore((page.id,)))
                    room -= page.nbytes

    def after_fork_in_parent(self) -> None:
        """Back under the limit: what came back left a copy below, so this moves nothing."""
        for unit in self._units.values():
            unit.tell(LimitChanged(unit.pager.limit))
        self.lock.release()

    def after_fork_in_child(self) -> bool:
        """Let go of all that is the parent's. Whether pages stayed behind, which the child must be kept from."""
        self.lock, self.calm = threading.RLock(), False
        self._lost_to_fork = {
            page.id for unit in self._units.values() for page in unit.pager.book if not page.state.on_device
        }
        for unit in self._units.values():
            unit.executor.abandon()
        if not self._lost_to_fork:
            self._let_go()
        return bool(self._lost_to_fork)

    def _is_left_alone(self, entries: list[Entry]) -> bool:
        """Whether this is a forked child, which pages nothing."""
        if self._lost_to_fork is None:
            return False
        if any(entry.page in self._lost_to_fork for entry in entries):
            raise ForkedPageError(
                "a forked process touched a tensor that its parent had moved to disk, and cannot bring it back. "
                "Keep it in memory while processes are started (torch_lms.pinned), or start them by spawn"
            )
        return True

    # -- pages -------------------------------------------------------------------------------------------------------

    def _register(
        self, storage: torch.UntypedStorage, tensor: torch.Tensor | None, owned: bool = False
    ) -> Entry | None:
        if storage.device.type != self.options.kind or self._lost_to_fork is not None:
            return None
        if tensor is not None and (_is_read_unseen(tensor, storage_nbytes(storage)) or tensor._is_zerotensor()):
            return None
        with self.lock:
            entry = self._registry.find(storage)
            if entry is None:
                unit = self._default if self._is_cpu else self._unit_of(storage.device)
                entry = self._registry.add(storage, unit)
                is_owned = owned or isinstance(tensor, torch.nn.Parameter)
                if self.calm and not is_owned:
                    self._count_dead()
                    self._young.add(entry)
                    unit.pager.book.ledger.add(entry.nbytes)
                    if not self._is_cpu:
                        unit.executor.use((entry,))
                else:
                    self._bury()
                    unit.add(entry, _why_unpageable(storage, is_owned))
                if not unit.is_roomy:
                    self._end_calm()
                if self._keeping and (keeping := self._keeping.get(get_ident())) is not None:
                    self.hold([entry], lambda: keeping.is_over)
            return entry

    def _bury(self) -> None:
        """Bring the books up to date: whose storages died, who was born in calm, which loans and collectives ended."""
        self._count_dead()
        while self._young:
            entry = self._young.pop()
            entry.unit.pager.book.ledger.remove(entry.nbytes)
            storage = entry()
            entry.unit.add(entry, "" if storage is None else _why_unpageable(storage, owned=False))
        while self._returned:
            loan = self._returned.popleft()
            self._loans.discard(loan)
            loan.unit.tell(Unpinned(loan.pages, loan.pages))
        if self._held_until:
            ended = [held for held in self._held_until if held[0]()]
            self._held_until = [held for held in self._held_until if held not in ended]
            for _, unit, pages in ended:
                unit.tell(Unpinned(pages, pages))

    def _count_dead(self) -> None:
        """Forget the pages whose storages died. Most of those born in calm die before the pager hears of them."""
        for entry in self._registry.dead():
            if entry in self._young:
                self._young.remove(entry)
                entry.unit.pager.book.ledger.remove(entry.nbytes)
                entry.unit.executor.forget(entry)
            else:
                self._remove(entry)

    def _remove(self, entry: Entry) -> None:
        if entry.page in entry.unit.pager.book:
            entry.unit.remove(entry)

    def _notice_size(self, entry: Entry) -> None:
        self._bury()
        storage = entry()
        if storage is None or entry.page not in entry.unit.pager.book:
            return
        nbytes = storage_nbytes(storage)
        if nbytes == entry.nbytes or not entry.unit.pager.book[entry.page].state.on_device:
            return
        if nbytes == 0:  # freed by hand, as FSDP does: a new page if it is filled again
            self._registry.drop(entry)
            self._remove(entry)
        else:
            entry.nbytes = nbytes
            entry.unit.resize(entry)
            if not entry.unit.is_roomy:
                self._end_calm()

    def _unit_of(self, device: torch.device) -> Unit:
        unit = self._units.get(device)
        if unit is None:
            with self.lock:
                options = self.options
                executor, policy = self._new_executor(device), options.new_policy()
                unit = Unit(device, executor, policy, options.limit, options.recompute, self._end_calm)
                self._units[device] = unit
        return unit

    def _by_unit(self, entries: list[Entry]) -> list[tuple[Unit, list[Entry]]]:
        """``entries`` by their devices; the current device alone if there are none."""
        if self._is_cpu or not entries:
            return [(self._default, entries)]
        first = entries[0].unit
        if all(entry.unit is first for entry in entries):
            return [(first, entries)]
        groups: dict[int, tuple[Unit, list[Entry]]] = {}
        for entry in entries:
            groups.setdefault(id(entry.unit), (entry.unit, []))[1].append(entry)
        return list(groups.values())


def _current_device(kind: str) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device(kind, torch.accelerator.current_device_index())


def _with_index(device: torch.device | None) -> torch.device:
    assert device is not None
    return device if device.index is not None else _current_device(device.type)


def _why_unpageable(storage: torch.UntypedStorage, owned: bool) -> str:
    if storage.device.type == "cpu" and storage.is_shared():
        return "shared memory"
    if not STORAGE.resizable(storage) and not (owned and CAN_SWAP):
        return _NOT_RESIZABLE
    return ""


def _is_read_unseen(tensor: torch.Tensor, nbytes: int) -> bool:
    if tensor.device.type != "cpu" or tensor.is_floating_point() or tensor.is_complex():
        return False
    return nbytes < _READ_UNSEEN.get(tensor.dtype, _SMALL)


def _check(entry: Entry, storage: torch.UntypedStorage) -> None:
    state = entry.unit.pager.book[entry.page].state
    expected = entry.nbytes if state.on_device else 0
    if storage_nbytes(storage) != expected:
        raise InvariantError(f"page {entry.page} is {state.value}, its storage holds {storage_nbytes(storage)} bytes")
