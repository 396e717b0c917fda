"""The fast path: how operations pass while everything fits (N3)."""

from collections.abc import Callable
from threading import RLock, get_ident
from typing import NamedTuple

from torch_lms.capture.registry import Entry, pages_of
from torch_lms.engine import Engine
from torch_lms.policy import Counts
from torch_lms.residency import PageId
from torch_lms.runtime.page_table import PageTable, has_any_other_size


class Progress(NamedTuple):
    """Moves that the books do not know of yet.

    Attributes:
        resident, host, disk, file: bytes of pages in each tier now.
        counts: of the moves.
    """

    resident: int
    host: int
    disk: int
    file: int
    counts: Counts


class Running(NamedTuple):
    """An operation that runs now.

    Attributes:
        thread: the identity of its thread.
        pages: that it uses.
        new_bytes: that it is about to create, as far as is known.
    """

    thread: int
    pages: list[Entry]
    new_bytes: int


class FastPath:
    """While it is open, operations pin nothing: they only enter, and exit.

    It is closed before any page is evicted or fetched. Whoever closes it pins the pages of the operations that are on
    it on other threads; each undoes that when it exits. It opens again at the end of a step in which nothing is away.

    Args:
        table: of the pages.
        lock: the session's, held by whoever opens or closes it.
        reap: brings the books up to date.
        notice_size: looks whether the program gave the storage of a page another size.

    Attributes:
        is_open: read without the lock; ``enter`` looks again.
        entered: how many operations took it.
    """

    def __init__(
        self, table: PageTable, lock: RLock, reap: Callable[[], None], notice_size: Callable[[Entry], None]
    ) -> None:
        self.is_open = False
        self.entered = 0
        self._table = table
        self._lock = lock
        self._reap = reap
        self._notice_size = notice_size
        self._on_it: dict[int, list[Entry]] = {}
        self._pinned_for: dict[int, list[tuple[Engine, tuple[PageId, ...]]]] = {}

    def enter(self, entries: list[Entry]) -> bool:
        """See ``PageOwner``."""
        self.entered += 1
        self._on_it[get_ident()] = entries
        if not self.is_open:  # asked again, now that whoever closes it would see this operation
            self.exit(entries, wrote=False)
            return False
        if self._table.default.executor.has_streams:
            with self._lock:
                for backend, its in self._table.group(entries):
                    backend.executor.use(its)
        return True

    def exit(self, entries: list[Entry], wrote: bool) -> None:
        """See ``PageOwner``."""
        thread = get_ident()
        self._on_it.pop(thread, None)
        if wrote and has_any_other_size(entries):
            with self._lock:
                for entry in entries:
                    self._notice_size(entry)
        if self._pinned_for or not self.is_open:
            with self._lock:  # whoever closed it, though it may be open again, may be about to pin these
                self._unpin(thread, wrote)

    def was_split(self, name: str, entries: list[Entry]) -> None:
        """See ``PageOwner``."""

    @property
    def operations(self) -> int:
        """How many operations took it that used pages."""
        return self.entered

    def open_if_all_fits(self) -> None:
        """A step ended: open if every page is on the device, and a step like the last would fit; else close."""
        if all(backend.engine.can_take_fast_path(self.fills_limit) for backend in self._table.backends):
            for backend in self._table.backends:
                backend.engine.forget_files()
            self.is_open = True
            self._has_opened()
        else:
            self.close()

    @property
    def fills_limit(self) -> bool:
        """See ``can_take_fast_path``. On an accelerator what is left of the limit is for workspaces, too."""
        return not self._table.default.executor.has_streams

    def has_room(self, engine: Engine, nbytes: int = 0) -> bool:
        """Whether it is closed, or may stay open with ``nbytes`` more."""
        if not self.is_open:
            return True
        most = engine.pager.limit if self.fills_limit else engine.fast_path_bytes
        return self._table.live_bytes(engine) + nbytes <= most

    def is_roomy(self, engine: Engine) -> bool:
        """Whether it is open, and there is room for as much again as is there."""
        return self.is_open and 2 * self._table.live_bytes(engine) <= engine.pager.limit

    def close(self) -> None:
        """Pages are about to move: pin those of the operations that are on the fast path on other threads.

        All of a device at once: to pin some may itself make others leave.
        """
        if not self.is_open:
            return
        self.is_open = False
        running = self._has_closed()
        for backend in self._table.backends:
            backend.executor.forget_marks()
        self._pin([*running, *(Running(thread, entries, 0) for thread, entries in list(self._on_it.items()))])

    def _pin(self, running: list[Running]) -> None:
        """Pin the pages of operations that run now, and keep room for what they create."""
        to_pin: dict[Engine, tuple[PageId, ...]] = {}
        for thread, entries, new_bytes in running:
            groups = self._table.group(entries)
            groups[0][0].engine.promises.give(new_bytes, thread)
            for backend, its in groups:
                engine = backend.engine
                pages = tuple({page for page in pages_of(its) if page in engine.pager.book})
                self._pinned_for.setdefault(thread, []).append((engine, pages))
                to_pin[engine] = to_pin.get(engine, ()) + pages
        for engine, pages in to_pin.items():
            engine.pinned(pages)

    def limits_have_changed(self) -> None:
        """Pages may occupy more or less than when it was opened: the next birth closes it, if it must be."""
        if self.is_open:
            self._has_opened()

    def hand_over(self) -> None:
        """An operation ended: those to come may pass unseen until the plan of the step has something to do."""

    def take_over(self) -> bool:
        """From now on no operation passes unseen. Whether some could until now: then the books are up to date."""
        return False

    def progress(self) -> Progress | None:
        """What has become of it since the books were last brought up to date; None if they are."""
        return None

    def abandon(self) -> None:
        """The session is over, or this is a forked child: it is closed, and nobody is on it."""
        self.is_open = False

    def _has_opened(self) -> None:
        """It is open from now on."""

    def _has_closed(self) -> list[Running]:
        """It is closed from now on. Operations that are on it unknown to ``enter``."""
        self._reap()
        return []

    def _unpin(self, thread: int, wrote: bool) -> None:
        """The operation of ``thread`` ended: undo what whoever closed it has pinned."""
        for engine, pages in self._pinned_for.pop(thread, ()):
            engine.promises.end()
            engine.unpinned(pages, pages if wrote else ())
