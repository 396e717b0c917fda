"""Without knowledge of the future: the longest inactive and largest page leaves, clean ones first."""

from collections.abc import Iterable, Iterator
from itertools import islice

from torch_lms.policy.base import Policy, Prefetch, View
from torch_lms.policy.prefetcher import Prefetcher, last_use, not_in_use
from torch_lms.residency import Page

_WINDOW = 32
"""How many of the longest inactive pages are weighed against each other: no sweep over all pages per operation."""


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


def _dirty(pages: Iterable[Page], tick: int) -> Iterator[Page]:
    """Dirty pages, those first that have been inactive long and are large."""
    rest = iter(pages)
    while window := list(islice(rest, _WINDOW)):
        worth = [(tick - page.last_use) * page.nbytes for page in window]
        for place in sorted(range(len(window)), key=worth.__getitem__, reverse=True):
            yield window[place]
