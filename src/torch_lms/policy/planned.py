"""With a step that repeats: what the plan has away leaves; else what is used last."""

from collections.abc import Iterator
from typing import Any

from torch_lms.policy.base import Ahead, Policy, Recipe, View
from torch_lms.policy.plan import Guide
from torch_lms.policy.reactive import Reactive
from torch_lms.residency import Page, PageId


class Planned(Policy):
    """Follows a guide while there is one, and is reactive otherwise.

    Attributes:
        guide: knows the step that runs; None if nobody does.
    """

    def __init__(self) -> None:
        self.guide: Guide | None = None
        self._otherwise = Reactive()

    @property
    def name(self) -> str:
        return "reactive" if self.guide is None else "planned"

    @property
    def knows_better(self) -> bool:
        return self.guide is not None

    def victims(self, view: View) -> Iterator[Page]:
        guide = self.guide
        if guide is None:
            yield from self._otherwise.victims(view)
            return
        for page in list(guide.due):
            found = _offered(view, page)
            if found is not None:
                yield found
        rest = [*view.clean.values(), *view.leaving.values(), *view.dirty.values()]
        yield from sorted(rest, key=lambda page: guide.next_use(page.id), reverse=True)

    def recipe(self, page: PageId) -> Recipe | None:
        return self.guide.recipes.get(page) if self.guide is not None else None

    def ahead(self, view: View) -> Ahead | None:
        guide = self.guide
        if guide is None or not (guide.leaving or guide.coming or guide.dropping):
            return None
        gone: dict[PageId, Any]
        for gone in (guide.leaving, guide.dropping):
            for page in [page for page in gone if _offered(view, page) is None]:
                del gone[page]
        return Ahead(list(guide.leaving), list(guide.coming), list(guide.dropping.values()))


def _offered(view: View, page: PageId) -> Page | None:
    return view.clean.get(page) or view.leaving.get(page) or view.dirty.get(page)
