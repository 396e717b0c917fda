"""One device of a session: its pager, its executor, its limit."""

import time
from collections.abc import Callable, Iterable

import torch

from torch_lms.capture.registry import Entry
from torch_lms.errors import StoreError
from torch_lms.pager import Action, Created, Died, Event, LimitChanged, OpBegins, Pager, Resized, StartFetch, drive
from torch_lms.policy import Policy
from torch_lms.residency import PageId
from torch_lms.runtime.executor import Executor
from torch_lms.runtime.limits import auto_limit

REFRESH_EVERY_S = 0.05
"""Asking the kernel what is free takes a millisecond."""

_SHARE_AFTER_FAILURE = 0.95


class Unit:
    """Pages of one device. Not thread-safe: the session holds its lock around every call.

    Args:
        device: the device.
        executor: performs actions on it.
        policy: chooses victims.
        limit: bytes, or None for whatever the device can hold.
        before_moving: called before any page may leave the device or come back.

    Attributes:
        recoveries: operations that ran out of memory and were run again.
    """

    def __init__(
        self,
        device: torch.device,
        executor: Executor,
        policy: Policy,
        limit: int | None,
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
        self.tell(Created(entry.page, entry.nbytes, unpageable))
        self.executor.use((entry,))

    def remove(self, entry: Entry) -> None:
        """The storage of ``entry`` died, or is no page any more."""
        self.tell(Died(entry.page))
        self.executor.forget(entry)
        del self._entries[entry.page]

    def resize(self, entry: Entry) -> None:
        """The program gave the storage of ``entry`` another size, and with it other memory."""
        self.executor.forget(entry)
        self.executor.use((entry,))
        self.tell(Resized(entry.page, entry.nbytes))

    def begin(self, pages: tuple[PageId, ...], new_bytes: int) -> None:
        """An operation on ``pages`` begins, and will create ``new_bytes``."""
        if self._is_auto and self.pager.room < new_bytes:
            self.refresh_limit(at_most_every_s=REFRESH_EVERY_S)
        self.tell(OpBegins(pages, new_bytes))

    @property
    def is_roomy(self) -> bool:
        """Whether there is room for as much again as is there."""
        return self.pager.book.ledger.device * 2 < self.pager.limit

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
        with torch._C._DisableTorchDispatch(), torch.no_grad():  # copies are no operations of the user's
            drive(actions, self._outcome)

    def _outcome(self, action: Action) -> Exception | None:
        try:
            self.executor.perform(action, self._entries[action.page])
        except StoreError as error:
            return error
        except (RuntimeError, MemoryError) as error:
            if isinstance(action, StartFetch) and self.executor.is_out_of_memory(error):
                self.executor.trim()
                return error.with_traceback(None)
            raise
        return None
