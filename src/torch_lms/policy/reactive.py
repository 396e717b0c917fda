"""Without knowledge of the future: the longest inactive and largest page leaves, clean ones first."""

from collections.abc import Iterator

from torch_lms.policy.base import Policy, Prefetch, View
from torch_lms.policy.prefetcher import Prefetcher
from torch_lms.residency import Page

_RECENT = 16
"""Operations for which a clean page is spared: one just fetched is about to be used (a view of it was taken, or its
operation is one of a few on the same tensor), and would only be fetched again."""

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
        yield from [page for page in view.clean.values() if view.tick - page.last_use >= _RECENT]
        yield from list(view.evicting.values())
        yield from _dirty(view)
        yield from list(view.clean.values())

    def prefetch(self, view: View) -> Prefetch | None:
        return self._prefetcher.choose(view, _dirty(view))


def _dirty(view: View) -> Iterator[Page]:
    """Dirty pages, those first that have been inactive long and are large."""
    dirty = list(view.dirty.values())
    for first in range(0, len(dirty), _WINDOW):
        window = dirty[first : first + _WINDOW]
        worth = [(view.tick - page.last_use) * page.nbytes for page in window]
        for place in sorted(range(len(window)), key=worth.__getitem__, reverse=True):
            yield window[place]
