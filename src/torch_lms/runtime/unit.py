"""One device of a session: its pager, its executor, its limit."""

import time
from collections import deque
from collections.abc import Callable, Iterable

import torch

from torch_lms.capture.registry import Entry
from torch_lms.capture.told import Use
from torch_lms.errors import StoreError
from torch_lms.pager import (
    Action,
    Copied,
    Counters,
    Created,
    Died,
    Drop,
    Event,
    LimitChanged,
    OpBegins,
    OpEnds,
    Pager,
    Remake,
    Resized,
    StartFetch,
    StepEnded,
    drive,
)
from torch_lms.policy import Planned, Policy
from torch_lms.residency import PageId
from torch_lms.runtime.clock import Mark
from torch_lms.runtime.executor import Executor
from torch_lms.runtime.foresight import Foresight
from torch_lms.runtime.limits import auto_limit
from torch_lms.runtime.remake import Remaker
from torch_lms.timeline import Lane, Link, Log, Timeline
from torch_lms.trace import Living

REFRESH_EVERY_S = 0.05
"""Asking the kernel what is free takes a millisecond."""

_SHARE_AFTER_FAILURE = 0.95

_SHARE_OF_AUTO = 0.95
"""Plans leave some of a limit that is asked for anew at each step, or its next change would be their end."""

_MOST_SPANS = 4096
"""Copies to take note of at once."""

_STEPS_REMEMBERED = 16
"""Between two training steps there may be validation, which needs less."""

_SHORT_S = 50e-6
"""No pause to write down."""


class Unit:
    """Pages of one device. Not thread-safe: the session holds its lock around every call.

    Args:
        device: the device.
        executor: performs actions on it.
        policy: chooses victims.
        limit: bytes, or None for whatever the device can hold.
        recompute: whether pages may be made again instead of being moved.
        before_moving: called before any page may leave the device or come back.

    Attributes:
        recoveries: operations that ran out of memory and were run again.
        links: sums over all copies, by direction.
    """

    def __init__(
        self,
        device: torch.device,
        executor: Executor,
        policy: Policy,
        limit: int | None,
        recompute: bool,
        before_moving: Callable[[], None],
    ) -> None:
        self.device = device
        self.executor = executor
        self._before_moving = before_moving
        self.recoveries = 0
        self._is_auto = limit is None
        self._ceiling: int | None = None
        self._refreshed_at = 0.0
        self._entries: dict[PageId, Entry] = {}
        self._clock = executor.clock
        self.foresight = Foresight(policy, recompute, self._clock.when) if isinstance(policy, Planned) else None
        self._remaker = Remaker()
        self._demands: deque[int] = deque(maxlen=_STEPS_REMEMBERED)
        self.links = {Lane.OUT: Link(), Lane.IN: Link()}
        self._log: Log | None = Log(_SHORT_S)
        self._last_log: Log | None = None
        self._idle_since: Mark = None
        self.pager = Pager(0 if limit is None else limit, policy, executor.tiers)
        if self._is_auto:
            self.refresh_limit()

    def tell(self, event: Event) -> None:
        """Have the pager's answer to ``event`` performed."""
        actions = self.pager.handle(event)
        if actions:
            self._perform(actions)

    def add(self, entry: Entry, unpageable: str) -> None:
        """``entry`` is a page of this device from now on."""
        self._entries[entry.page] = entry
        if self.foresight is not None:
            self.foresight.created(Living(entry.page, entry.nbytes, unpageable))
        self.tell(Created(entry.page, entry.nbytes, unpageable))
        self.executor.use((entry,))

    def remove(self, entry: Entry) -> None:
        """The storage of ``entry`` died, or is no page any more."""
        if self.foresight is not None:
            self.foresight.died(entry.page)
        self.tell(Died(entry.page))
        self.executor.forget(entry)
        self._remaker.forget(entry.page)
        del self._entries[entry.page]

    def resize(self, entry: Entry) -> None:
        """The program gave the storage of ``entry`` another size, and with it other memory."""
        self.executor.forget(entry)
        self.executor.use((entry,))
        self.tell(Resized(entry.page, entry.nbytes))

    def begin(self, op: Use, entries: list[Entry], new_bytes: int) -> tuple[PageId, ...]:
        """``op`` on ``entries`` begins, and will create ``new_bytes``. Their pages."""
        pages = tuple(entry.page for entry in entries)
        if self._log is not None:
            now = self._clock.mark()
            self._log.op_ends(now)
            if self.foresight is not None and op.is_regular:
                self.foresight.begins(op, pages, new_bytes, now)
        if self.pager.has_copies_under_way:
            landed = self.executor.landed()
            if landed:
                self.tell(Copied(tuple(landed)))
        if self.executor.made > _MOST_SPANS:
            self.count_copies()
        if self._is_auto and self.pager.room < new_bytes:
            self.refresh_limit(at_most_every_s=REFRESH_EVERY_S)
        writes = tuple(entry.page for entry in op.written(entries)) if self.pager.has_dropped else ()
        self.tell(OpBegins(pages, new_bytes, writes))
        ledger = self.pager.book.ledger
        self.executor.grows(new_bytes, ledger.device, self.pager.limit)
        if self._log is not None:
            name = op.name if op.is_regular else "view"
            self._log.op_begins(name, self._clock.mark(), ledger.device, ledger.host, ledger.disk)
        return pages

    def write_down(self, op: Use) -> None:
        """Keep ``op``, whose pages are there, if a plan may have it repeated."""
        if self.foresight is not None and op.is_regular and (position := self.foresight.to_be_repeated) >= 0:
            op.write_down(lambda entry: self.pager.book[entry.page].writes)
            if op.call is not None:
                self._remaker.calls[position] = op.call

    def end(self, pages: tuple[PageId, ...], written: tuple[PageId, ...]) -> None:
        """The operation on ``pages`` ended; it wrote ``written``."""
        if self.foresight is not None:
            self.foresight.wrote(written)
        self.tell(OpEnds(pages, written))

    def end_step(self) -> None:
        """A step ended."""
        self.tell(StepEnded())
        self._demands.append(self.pager.step_demand_bytes)
        self.count_copies()

    def begin_step(self, is_short: bool) -> None:
        """Another begins, in which room may be short."""
        now = None
        if self._log is not None:
            now = self._clock.mark()
            self._log.op_ends(now)
            if len(self._log):
                self._last_log = self._log
        self._log = Log(_SHORT_S) if is_short else None
        self._remaker.calls.clear()
        if self.foresight is not None:
            self.foresight.end_step(
                now,
                self.pager.book,
                int(self.pager.limit * (_SHARE_OF_AUTO if self._is_auto else 1)),
                is_short,
                self.pager.counters.evicted_bytes,
                self.links,
                self.executor.lost,
            )

    @property
    def timeline(self) -> Timeline | None:
        """Of the last step in which room was short; None before. Waits until it is over on the device, too."""
        return None if self._last_log is None else self._last_log.timeline(self._clock.when)

    def count_copies(self) -> None:
        """Take note of the copies that have ended."""
        copies = self.executor.ended()
        for span in copies:
            self.links[span.lane].add(span)
        if self._log is not None:
            self._log.add(*copies)

    @property
    def busy_s(self) -> float:
        """Seconds in which copies were under way, either direction by itself."""
        return sum(link.busy_s for link in self.links.values())

    def reset_counts(self) -> None:
        """Start counting anew."""
        self.count_copies()
        self.pager.counters = Counters(demand_bytes=self.pager.step_demand_bytes)
        self.pager.book.ledger.peak_device = self.pager.book.ledger.device
        self.links = {Lane.OUT: Link(), Lane.IN: Link()}
        self.executor.stall_s, self.recoveries = 0.0, 0
        if self.foresight is not None:
            self.foresight.reset_counts()

    @property
    def is_roomy(self) -> bool:
        """Whether there is room for as much again as is there."""
        return self.pager.book.ledger.device * 2 < self.pager.limit

    @property
    def is_calm(self) -> bool:
        """Whether nothing is away, and nothing need leave in a step like one of the last."""
        ledger = self.pager.book.ledger
        is_away = ledger.host or ledger.disk or self.pager.has_dropped
        return self.is_roomy and not is_away and max(self._demands, default=0) <= self.pager.limit

    def refresh_limit(self, at_most_every_s: float = 0.0) -> None:
        """With limit "auto": what is on the device now and what it can still take, as far as is known (N7)."""
        now = time.monotonic()
        if self._is_auto and now - self._refreshed_at >= at_most_every_s:
            self._refreshed_at = now
            limit = self.pager.book.ledger.device + auto_limit(self.device).nbytes
            self.tell(LimitChanged(limit if self._ceiling is None else min(limit, self._ceiling)))

    def set_limit(self, nbytes: int) -> None:
        """From now on pages may occupy ``nbytes``, whatever was known or learned before."""
        self._is_auto, self._ceiling = False, None
        self.tell(LimitChanged(nbytes))

    def learn_from_failure(self, new_bytes: int) -> None:
        """Memory ran out within the limit: what is not a page needs more than the margin. Promise less from now on."""
        held = self.pager.book.ledger.device + new_bytes
        self._ceiling = int(_SHARE_AFTER_FAILURE * min(self.pager.limit, held))
        self.recoveries += 1
        self.tell(LimitChanged(self._ceiling))

    def _perform(self, actions: Iterable[Action]) -> None:
        if not isinstance(actions, tuple):
            self._before_moving()
        if self._log is None:
            self._drive(actions)
            return
        began = self._idle_since = self._clock.mark()
        try:
            self._drive(actions)
        finally:
            self._spent("stall")
            if self.foresight is not None:
                self.foresight.paused(began, self._idle_since)

    def _drive(self, actions: Iterable[Action]) -> None:
        with torch._C._DisableTorchDispatch(), torch.no_grad():  # copies are no operations of the user's
            drive(actions, self._outcome)

    def _spent(self, on: str, nbytes: int = 0, page: PageId = -1) -> None:
        """What came since the last time was ``on``."""
        if self._log is not None:
            now = self._clock.mark()
            self._log.spent(on, self._idle_since, now, nbytes, page)
            self._idle_since = now

    def _outcome(self, action: Action) -> Exception | None:
        entry = self._entries[action.page]
        try:
            if isinstance(action, Drop):
                self._remaker.bind(action.recipe, self.pager.book)
                self.executor.drop(entry)
            elif isinstance(action, Remake):
                self._remake(entry)
            else:
                self.executor.perform(action, entry)
        except StoreError as error:
            return error
        except (RuntimeError, MemoryError) as error:
            if isinstance(action, StartFetch | Remake) and self.executor.is_out_of_memory(error):
                self.executor.trim()
                return error.with_traceback(None)
            raise
        return None

    def _remake(self, entry: Entry) -> None:
        self._spent("stall")
        self.executor.remake(entry, self._remaker.inputs(entry.page), lambda: self._remaker.remake(entry))
        self._spent("recompute", entry.nbytes, entry.page)
