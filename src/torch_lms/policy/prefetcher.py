"""What may move before it must, without a plan: a step goes forward, and then backward."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice, pairwise
from math import inf
from operator import attrgetter

from torch_lms.policy.base import FirstUse, Outlook, Prefetch, View
from torch_lms.residency import Page, PageId

_RESERVE = 1 / 8
"""Of the limit: for so much there shall be room, or pages that can leave without a wait. With a quarter, simulated
steps take about as long, but move more; with a sixteenth they take longer."""

_SPARED = 1 / 4
"""Of the limit: so much room is left for what the program creates. Were pages fetched into it, others would leave."""

LONG_AGO = 16
"""Operations after which a page is not in use any more: its next use shows where in its step the program is."""

_REMEMBERED = 4
"""So many of these uses show in which direction it goes."""

_SOON = 32
"""Operations until a page is needed for which others leave that have been used in this round."""

_SELDOM = 1 / 8
"""Of the bytes that come back: if no more do so within the same step, the program goes in rounds."""

_WINDOW = 256
"""Of the pages that are away, so many are looked at."""


last_use = attrgetter("last_use")
"""Tells when a page was used last."""


class _Course:
    """A program that comes back to its pages in the order in which it used them, or in the reverse.

    Args:
        is_backward: which of the two.
    """

    def __init__(self, is_backward: bool) -> None:
        self._is_backward = is_backward
        self.nbytes = 0
        self._position = 0
        self._uses: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)

    def came_to(self, last_use: int, nbytes: int) -> None:
        """The program uses a page once more that was used at ``last_use``."""
        if self._uses and self._goes_on(self._uses[-1][0], last_use):
            self._position = last_use
        self._uses.append((last_use, nbytes))
        self.nbytes += nbytes

    def forget(self) -> None:
        """What was so far does not count any more."""
        self._uses.clear()
        self.nbytes = 0

    @property
    def is_taken(self) -> bool:
        """Whether two thirds of the bytes were used in that order lately."""
        along = 0
        against = 0
        for (before, nbytes), (after, other_nbytes) in pairwise(self._uses):
            moved = min(nbytes, other_nbytes)
            if self._goes_on(before, after):
                along += moved
            else:
                against += moved
        return along > 0 and along >= 2 * against

    def next_of(self, away: dict[PageId, Page], since: float = -inf, until: float = inf) -> list[Page]:
        """Pages of ``away``, the first to be used first. In ``away`` those that left first come first.

        Args:
            away: pages.
            since: only those used after that tick,
            until: and at that tick or before.
        """
        pages: Iterable[Page]
        if self._is_backward:
            pages = reversed(away.values())
            until = min(until, self._position)
        else:
            pages = away.values()
            since = max(since, self._position - 1)
        to_come = [page for page in islice(pages, _WINDOW) if since < page.last_use <= until]
        return sorted(to_come, key=last_use, reverse=self._is_backward)

    def is_soon(self, page: Page) -> bool:
        """Whether the program comes to ``page`` within a few operations, if it goes on as the last time."""
        return abs(page.last_use - self._position) <= _SOON

    def _goes_on(self, before: int, after: int) -> bool:
        return after < before if self._is_backward else after > before


class Prefetcher:
    """Evicts and fetches ahead.

    What was used in this step comes back in reverse: so autograd goes. What was used in the step before comes back in
    the order in which it was used, as weights and an optimizer's state do. As far as the program goes by that, pages
    are fetched while there is room.

    The next victims are copied down beside the operations, so that they leave without a wait. But as long as nobody has
    asked for room, in this step or the one before, all may fit, and nothing is copied.

    A program goes in rounds if it comes back to its pages once a step, as inference does to weights. What it has just
    used is needed last then, and may leave for what is needed soon.
    """

    def __init__(self) -> None:
        self._is_short = False
        self._was_short = False
        self._was_round = False
        self._backward = _Course(is_backward=True)
        self._forward = _Course(is_backward=False)
        self._step_began = 0
        self._rooms: deque[int] = deque(maxlen=LONG_AGO)

    def ran_short(self) -> None:
        """Somebody asks for room."""
        self._is_short = True

    def choose(self, view: View, dirty: Iterable[Page]) -> Prefetch | None:
        """What to start beside the operation that begins.

        Args:
            view: of all pages.
            dirty: those that have to be copied before they leave, the next victim first.
        """
        if not view.away:
            return None
        self._follow(view)
        if self.goes_round(view):
            evict, fetch = self._in_round(view)
        else:
            evict = list(_to_copy(view, dirty)) if self._is_short or self._was_short else []
            fetch = list(self._to_fetch(view))
        return Prefetch(_ids(evict), _ids(fetch)) if evict or fetch else None

    def outlook(self, view: View, idle: list[PageId]) -> Outlook | None:
        """What the operations to come may go by, which evict ``idle`` pages in this order. None in rounds: there it
        depends on what is needed next.
        """
        self._note_step(view)
        if self.goes_round(view):
            return None
        coming = [page for course in self._to_come(view) for page in course]
        is_short = bool(view.away) and (self._is_short or self._was_short)
        reserve = int(_RESERVE * view.limit) if is_short else 0
        return Outlook(idle, _ids(coming), reserve, int(_SPARED * view.limit))

    def went_on(self, view: View, uses: Iterable[FirstUse]) -> None:
        """Operations went by that."""
        if view.away:
            self._rooms.append(view.room)
            for use in uses:
                self._came_to(*use)

    def _follow(self, view: View) -> None:
        """Note what the program uses now."""
        self._note_step(view)
        self._rooms.append(view.room)
        for page in view.used:
            self._came_to(view.tick, page.last_use, page.nbytes)

    def _note_step(self, view: View) -> None:
        if self._step_began != view.step_began:
            self._step_began = view.step_began
            self._was_short, self._is_short = self._is_short, False
            self._was_round = self._backward.nbytes <= _SELDOM * self._forward.nbytes > 0
            self._backward.forget()
            self._forward.forget()

    def _came_to(self, tick: int, last_use: int, nbytes: int) -> None:
        if tick - last_use >= LONG_AGO:
            course = self._backward if self._is_of_this_step(last_use) else self._forward
            course.came_to(last_use, nbytes)

    def goes_round(self, view: View) -> bool:
        """Whether the program goes in rounds: so did the step before, and this one so far."""
        return self._was_round and self._backward.nbytes <= _SELDOM * view.limit

    def _in_round(self, view: View) -> tuple[list[Page], list[Page]]:
        """Pages that have been used in this round, and those that are needed soon in their place."""
        leaving: list[Page] = []
        coming: list[Page] = []
        soon = [page for page in self._forward.next_of(view.away) if self._forward.is_soon(page)]
        if not soon:
            return leaving, coming
        idle = not_in_use(view.clean, view.tick)
        used = [page for page in idle if self._is_of_this_step(page.last_use) and not self._forward.is_soon(page)]
        used.sort(key=last_use)
        room = max(0, min(self._rooms))
        for page in soon:
            while room < page.nbytes and used:
                leaving.append(used.pop())
                room += leaving[-1].nbytes
            if room < page.nbytes:
                break
            room -= page.nbytes
            coming.append(page)
        return leaving, coming

    def _is_of_this_step(self, last_use: int) -> bool:
        return last_use > self._step_began

    def _to_fetch(self, view: View) -> Iterator[Page]:
        """Pages that are needed next."""
        room = view.room - _SPARED * view.limit
        if room <= 0:
            return
        for pages in self._to_come(view):
            for page in pages:
                if page.nbytes > room:
                    break
                room -= page.nbytes
                yield page

    def _to_come(self, view: View) -> Iterator[list[Page]]:
        """Pages that are away, on either course that the program takes, the first to be used first."""
        began = self._step_began
        for course, since, until in ((self._backward, began, inf), (self._forward, -inf, began)):
            if course.is_taken:
                yield course.next_of(view.away, since, until)


def _ids(pages: list[Page]) -> list[PageId]:
    return [page.id for page in pages]


def not_in_use(pages: Mapping[PageId, Page], tick: int) -> list[Page]:
    """Those not used lately."""
    return list(_idle(pages, tick))


def is_idle(page: Page, tick: int) -> bool:
    """Whether it was not used lately."""
    return tick - page.last_use >= LONG_AGO


def _idle(pages: Mapping[PageId, Page], tick: int) -> Iterator[Page]:
    return (page for page in pages.values() if is_idle(page, tick))


def _to_copy(view: View, dirty: Iterable[Page]) -> Iterator[Page]:
    """The next victims, until there is the reserve, to the nearest page. What was used lately is none of either."""
    missing = _RESERVE * view.limit - view.room
    if missing <= 0:
        return
    for page in chain(view.evicting.values(), _idle(view.clean, view.tick)):
        missing -= page.nbytes
        if missing <= 0:
            return
    for page in dirty:
        if missing < page.nbytes / 2:
            return
        if view.tick - page.last_use >= LONG_AGO:
            missing -= page.nbytes
            yield page
