"""Without knowledge of the future: the longest inactive and largest page leaves, clean ones first."""

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from torch_lms.policy.base import FirstUse, Outlook, Policy, Prefetch, View
from torch_lms.policy.prefetcher import Prefetcher, is_idle, last_use, not_in_use
from torch_lms.residency import Page

_WINDOW = 32
"""How many of the longest inactive pages are weighed against each other: no sweep over all pages per operation."""

_LISTED = 128
"""So many victims are named in advance."""


class Reactive(Policy):
    """Clean pages not used lately; those being evicted; dirty ones by inactivity times size; the clean ones just
    used.
    """

    def __init__(self) -> None:
        self._prefetcher = Prefetcher()

    @property
    def name(self) -> str:
        return "reactive"

    def victims(self, view: View) -> Iterator[Page]:
        self._prefetcher.ran_short()
        clean = not_in_use(view.clean, view.tick)
        if self._prefetcher.goes_round(view):
            clean.sort(key=last_use, reverse=True)
        yield from clean
        yield from list(view.evicting.values())
        yield from _dirty(list(view.dirty.values()), view.tick)
        yield from list(view.clean.values())

    def prefetch(self, view: View) -> Prefetch | None:
        return self._prefetcher.choose(view, _dirty(view.dirty.values(), view.tick))

    def outlook(self, view: View) -> Outlook | None:
        victims = chain(view.clean.values(), view.evicting.values(), _dirty(view.dirty.values(), view.tick))
        idle = (page.id for page in victims if is_idle(page, view.tick))
        return self._prefetcher.outlook(view, list(islice(idle, _LISTED)))

    def went_on(self, view: View, uses: Iterable[FirstUse], ran_short: bool) -> None:
        self._prefetcher.went_on(view, uses)
        if ran_short:
            self._prefetcher.ran_short()


def _dirty(pages: Iterable[Page], tick: int) -> Iterator[Page]:
    """Dirty pages, those first that have been inactive long and are large."""
    rest = iter(pages)
    while window := list(islice(rest, _WINDOW)):
        worth = [(tick - page.last_use) * page.nbytes for page in window]
        for place in sorted(range(len(window)), key=worth.__getitem__, reverse=True):
            yield window[place]
