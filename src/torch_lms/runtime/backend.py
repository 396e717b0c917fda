"""The backend of a real device: performs an engine's actions on storages."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch

from torch_lms.capture.call import Find, Recorded
from torch_lms.capture.page_owner import Use
from torch_lms.capture.registry import Entry, pages_of, storage_nbytes
from torch_lms.capture.schema import OpInfo
from torch_lms.capture.tensors import no_function_modes
from torch_lms.capture.unobserved import Undispatched
from torch_lms.engine import Engine, Mark, PlanCache, Spent, Stretch
from torch_lms.errors import StoreError
from torch_lms.pager import (
    Action,
    Discard,
    Drop,
    FinishEvict,
    FinishFetch,
    Recompute,
    Release,
    StartEvict,
    StartFetch,
)
from torch_lms.policy import ByOutlook, Passed, Planned, Recipe
from torch_lms.residency import PageId
from torch_lms.runtime.allocator import Allocator
from torch_lms.runtime.executor import Executor
from torch_lms.runtime.limits import auto_limit, tells_memory
from torch_lms.runtime.options import Options
from torch_lms.runtime.plans_beside import new_planner
from torch_lms.runtime.recompute import Recomputer
from torch_lms.stores.loaded_file import LoadedFile
from torch_lms.timeline import Copies

_WORKSPACE = 8
"""Times the bytes of an operation, that its best algorithm may want beside them."""


class _Unobserved:
    """Transfers and recomputations are no operations of the user's: no mode sees them, autograd records none."""

    def __enter__(self) -> Self:
        self._no_modes = no_function_modes()
        self._no_modes.__enter__()
        self._undispatched = Undispatched()
        self._undispatched.__enter__()
        self._no_grad = torch.no_grad()
        self._no_grad.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._no_grad.__exit__(kind, error, at)
        self._undispatched.__exit__(kind, error, at)
        self._no_modes.__exit__(kind, error, at)


class Excess(NamedTuple):
    """By how many bytes pages exceeded the limit, and what operator of the program's ran then."""

    nbytes: int = 0
    operator: str = ""


class DeviceBackend:
    """Knows which storage is which page of one device, and has an executor move their bytes (see ``engine.Backend``).

    Args:
        device: the device.
        executor: moves bytes.
        recomputer: makes them anew.

    Attributes:
        engine: of the device; ``new_backend`` sets it.
        plans: that it follows; None if the policy makes none.
        excess: the largest since counting began.
        allocator: PyTorch's own of the device; None where it tells nothing, as for the CPU.
    """

    engine: Engine
    plans: PlanCache | None = None
    unobserved = _Unobserved

    def __init__(self, device: torch.device, executor: Executor, recomputer: Recomputer) -> None:
        self.device = device
        self.executor = executor
        self.recomputer = recomputer
        self.tiers = executor.tiers
        self.allocator = Allocator(device) if tells_memory(device) else None
        self.excess = Excess()
        self.landed = executor.landed
        if not executor.has_streams:
            self.mark = executor.clock.mark  # type: ignore[method-assign]  # asked for every operation: a frame less
        self.grows = executor.grows
        self._entries: dict[PageId, Entry] = {}

    # -- pages -------------------------------------------------------------------------------------------------------

    def add(self, entry: Entry, unpageable: str, *, is_found: bool = False) -> None:
        """``entry`` is a page of this device from now on: see ``Engine.created``."""
        self._entries[entry.page] = entry
        self.engine.created(entry.page, entry.nbytes, unpageable, is_found=is_found)

    def note_excess(self, operator: str) -> None:
        """``operator`` ends, and what it made is here; or the process forks."""
        pager = self.engine.pager
        nbytes = pager.book.ledger.device - pager.limit
        if nbytes > self.excess.nbytes:
            self.excess = Excess(nbytes, operator.split(".")[0])

    def reset_counts(self) -> None:
        """Start counting anew."""
        self.excess = Excess()
        self.engine.reset_counts()
        self.executor.stall_s = 0.0
        if self.plans is not None:
            self.plans.reset_counts()

    def found_in_file(self, entry: Entry, file: LoadedFile, offset: int) -> None:
        """``entry``, which has just been added, was loaded from ``file``, and is there from ``offset`` on."""
        self.executor.found_in_file(entry, file, offset)
        self.engine.found_in_file(entry.page)

    def remove(self, entry: Entry) -> None:
        """The storage of ``entry`` died, or is no page any more."""
        self.engine.died(entry.page)
        self.forget(entry)

    def know(self, entry: Entry) -> None:
        """``entry`` was born while a plan was followed; the engine hears of it when it hears what passed."""
        self._entries[entry.page] = entry

    def passed(self, passed: Passed, by_outlook: ByOutlook | None, stretch: Stretch) -> None:
        """See ``Engine``; without ``by_outlook`` they followed a plan."""
        if by_outlook is None:
            self.engine.passed(passed, stretch)
        else:
            self.engine.went_on(passed, by_outlook, stretch)
        for page in passed.deaths:
            self.forget(self._entries[page])

    def forget(self, entry: Entry) -> None:
        """Its storage died. Its engine has heard of that, or never of the page."""
        self.executor.forget(entry)
        self.recomputer.forget(entry.page)
        self._entries.pop(entry.page, None)

    def resize(self, entry: Entry) -> None:
        """The program gave the storage of ``entry`` another size, and with it other memory."""
        self.executor.forget(entry)
        self.engine.resized(entry.page, entry.nbytes)

    def writes_of(self, page: PageId) -> int:
        """How often the page was written so far, as its engine knows; -1 if it is none any more."""
        known = self.engine.pager.book.get(page)
        return -1 if known is None else known.writes

    def record(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], find: Find) -> Recorded:
        """See ``capture.call.Record``."""
        return self.recomputer.record(func, info, args, kwargs, find, self.writes_of)

    def close(self) -> None:
        """The session ends."""
        if self.plans is not None:
            self.plans.close()
        self.executor.close()

    def forget_calls(self) -> None:
        """A step ended."""
        self.recomputer.forget_calls()

    # -- as a backend ------------------------------------------------------------------------------------------------

    @property
    def overlap_penalty(self) -> float:
        """See ``engine.Backend``."""
        return self.executor.overlap_penalty

    @property
    def repeat_s(self) -> float:
        """See ``engine.Backend``."""
        return self.executor.repeat_s

    @property
    def launch_s(self) -> float:
        """See ``engine.Backend``. Nobody has measured it on this host: that is of the catalogue's machines."""
        cost = self.executor.host_cost
        return 0.0 if cost is None else (cost.launch_s or 0.0) + cost.short_op_s

    @property
    def action_s(self) -> float:
        """See ``engine.Backend``."""
        cost = self.executor.host_cost
        return 0.0 if cost is None else cost.action_s

    @property
    def disk_bytes_per_s(self) -> tuple[float, float]:
        """See ``engine.Backend``."""
        return self.executor.disk_bytes_per_s

    def perform(self, action: Action, spent: Spent) -> Exception | None:
        """See ``engine.Backend``."""
        entry = self._entries[action.page]
        try:
            match action:
                case StartEvict():
                    self.executor.start_evict(entry, action.tier, self.engine.pager.book[entry.page].last_use)
                case FinishEvict():
                    self.executor.finish_evict(entry)
                case Release():
                    self.executor.release(entry)
                case StartFetch():
                    self.executor.start_fetch(entry)
                case FinishFetch():
                    self.executor.finish_fetch(entry)
                case Discard():
                    self.executor.discard(entry)
                case Drop():
                    self.drop(entry, action.recipe, self.writes_of)
                case Recompute():
                    self.recompute(entry, spent)
        except StoreError as error:
            return error
        except (RuntimeError, MemoryError) as error:
            if isinstance(action, StartFetch | Recompute) and self.executor.is_out_of_memory(error):
                self.executor.trim()
                self.engine.page_found_no_memory()
                return error.with_traceback(None)
            raise
        return None

    def drop(self, entry: Entry, recipe: Recipe, writes_of: Callable[[PageId], int]) -> None:
        """Free the page's device bytes, once it is sure that ``recipe`` gives it again as it is.

        Raises:
            StoreError: it does not; nothing was freed.
        """
        self.recomputer.bind(recipe, writes_of)
        self.executor.drop(entry)

    def recompute(self, entry: Entry, spent: Spent) -> None:
        """Recompute the dropped page, from inputs that are on the device.

        Raises:
            RuntimeError: the device has no room for it.
        """
        spent("stall", 0, -1)
        inputs = self.recomputer.inputs(entry.page)
        try:
            with self.unobserved():
                self.executor.recompute(entry, inputs, lambda: self.recomputer.recompute(entry))
            spent("recompute", entry.nbytes, entry.page)
        except BaseException:  # also an interrupt once it was there: it counts as dropped
            storage = entry()
            if storage is not None and storage_nbytes(storage):
                self.executor.drop(entry)
            raise
        self.recomputer.forget(entry.page)

    def begin(self, op: Use, entries: list[Entry], new_bytes: int) -> None:
        """``op`` begins on its ``entries`` here: tell the engine, and capture the call if it may be repeated."""
        engine = self.engine
        pages = pages_of(entries)
        writes = pages_of(op.written(entries)) if engine.needs_writes else ()
        if not op.is_regular:
            engine.access_begins(pages, writes)
            return
        engine.op_begins(op, pages, new_bytes, writes)
        if (position := engine.position_to_repeat) < 0:
            return
        try:
            op.capture_call(self.record)
        except BaseException:
            engine.op_ends(pages, ())
            raise
        if op.call is not None:
            self.recomputer.keep(position, op.call)

    def unpinned_bytes(self, entries: list[Entry]) -> int:
        """Of those of ``entries`` that nothing keeps here."""
        book = self.engine.pager.book
        return sum(entry.nbytes for entry in entries if not book[entry.page].pins)

    def use(self, pages: Sequence[PageId]) -> None:
        """See ``engine.Backend``."""
        if self.executor.has_streams:
            self.executor.use([self._entries[page] for page in pages])

    def room_to_search(self, op_bytes: int) -> int:
        """Bytes to make free for an operation on ``op_bytes``: see ``PageOwner``."""
        if self.allocator is None:
            return 0
        pager = self.engine.pager
        beside = auto_limit(self.device).nbytes - pager.room
        return max(0, min(_WORKSPACE * op_bytes - beside, pager.limit - op_bytes))

    @contextmanager
    def searching(self, lock: AbstractContextManager[Any]) -> Iterator[None]:
        """Inside, such an operation runs. What it takes beside its pages is left free from now on."""
        if self.allocator is None:
            yield
            return
        before = self.allocator.counted()
        yield
        with lock:
            self.engine.leave_free(self.allocator.counted().most_taken_since(before))

    def mark(self) -> Mark:
        """See ``engine.Backend``."""
        return self.executor.mark(self.engine.pager.view.tick)

    def seconds(self, mark: Mark) -> float:
        """See ``engine.Backend``."""
        return self.executor.clock.when(mark)

    @property
    def transfers_made(self) -> int:
        """See ``engine.Backend``."""
        return self.executor.made

    def take_transfers(self) -> Copies:
        """See ``engine.Backend``."""
        return self.executor.ended()


def new_backend(
    device: torch.device,
    executor: Executor,
    recomputer: Recomputer,
    options: Options,
    before_moving: Callable[[], None],
    is_aside: Callable[[], bool],
) -> DeviceBackend:
    """The backend of ``device``, with its engine.

    Args:
        device: the device.
        executor: moves its bytes.
        recomputer: makes them anew.
        options: of the session.
        before_moving: called before any page may be evicted or fetched.
        is_aside: tells whether what the calling thread does is no part of a step.
    """
    backend = DeviceBackend(device, executor, recomputer)
    policy = options.new_policy()
    if isinstance(policy, Planned):
        backend.plans = PlanCache(new_planner(options.make_plan), backend.seconds)
    backend.engine = Engine(
        backend,
        policy,
        options.limit,
        plans=backend.plans,
        recompute=options.recompute and options.policy == "planned",
        ask_free=lambda workspace_bytes: auto_limit(device, workspace_bytes).nbytes,
        before_moving=before_moving,
        is_aside=is_aside,
    )
    return backend
