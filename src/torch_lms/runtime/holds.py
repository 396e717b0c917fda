"""Pages that stay on their devices longer than one operation: lent, used by collectives, held by a thread."""

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any

from torch_lms.capture.registry import pages_of
from torch_lms.engine import Engine
from torch_lms.residency import PageId
from torch_lms.runtime.page_table import Group


class Loan(weakref.ref[Any]):
    """Pages of ``engine`` whose memory somebody shares, referenced weakly: they stay until whoever that is has died."""

    __slots__ = ("engine", "pages")
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    engine: Engine
    pages: tuple[PageId, ...]


@dataclass(frozen=True)
class _Hold:
    """``pages`` of ``engine`` stay until ``is_over()``; then ``written`` may have been."""

    is_over: Callable[[], bool]
    engine: Engine
    pages: tuple[PageId, ...]
    written: tuple[PageId, ...]


@dataclass(slots=True)
class _Keeping:
    """A block of one thread in which what it makes stays on the device, until the block is over."""

    may_write: bool
    is_over: bool = False


class Holds:
    """All of a session. Whoever calls holds its lock, but for ``keeping``, which concerns the calling thread alone.

    Attributes:
        loans: that have not ended.
        keepers: the threads that are inside ``keeping``.
    """

    def __init__(self) -> None:
        self.loans: set[Loan] = set()
        self._returned: deque[Loan] = deque()
        self._holds: list[_Hold] = []
        self.keepers: dict[int, _Keeping] = {}

    def hold(self, group: Group, is_over: Callable[[], bool], may_write: bool = True) -> None:
        """The pages stay until ``is_over()``, and may be written until then."""
        backend, entries = group
        pages = pages_of(entries)
        backend.engine.pinned(pages)
        self._holds.append(_Hold(is_over, backend.engine, pages, pages if may_write else ()))

    def lend(self, group: Group, borrower: object) -> None:
        """The pages stay until ``borrower`` has died, and may be written until then."""
        backend, entries = group
        loan = Loan(borrower, self._returned.append)  # the callback may run anywhere: it only appends (N2)
        loan.engine = backend.engine
        loan.pages = pages_of(entries)
        backend.engine.pinned(loan.pages)
        self.loans.add(loan)

    @contextmanager
    def keeping(self, may_write: bool) -> Iterator[None]:
        """Inside, what this thread makes stays on its device (see ``keep_if_asked``), and may be written if it says."""
        thread = get_ident()
        inside = _Keeping(may_write)
        before = self.keepers.get(thread)
        self.keepers[thread] = inside
        try:
            yield
        finally:
            inside.is_over = True
            del self.keepers[thread]
            if before is not None:
                self.keepers[thread] = before

    def keep_if_asked(self, group: Group) -> None:
        """The calling thread has made the pages: hold them if it is inside ``keeping``."""
        inside = self.keepers.get(get_ident())
        if inside is not None:
            self.hold(group, lambda: inside.is_over, inside.may_write)

    def release(self) -> None:
        """Let go of what nobody needs any more."""
        while self._returned:
            loan = self._returned.popleft()
            self.loans.discard(loan)
            loan.engine.unpinned(loan.pages, loan.pages)
        if self._holds:
            ended = [hold for hold in self._holds if hold.is_over()]
            self._holds = [hold for hold in self._holds if hold not in ended]
            for hold in ended:
                hold.engine.unpinned(hold.pages, hold.written)
