"""How to recompute the pages that are dropped, and which pages that takes (N16)."""

from collections.abc import Iterable

from torch_lms.errors import InvariantError
from torch_lms.policy import Recipe
from torch_lms.residency import Book, PageId, State


class Recipes(dict[PageId, Recipe]):
    """One recipe for each dropped page. Everybody else looks here: nobody keeps one of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._dependents: dict[PageId, dict[PageId, None]] = {}

    def add(self, recipe: Recipe) -> None:
        """Its page was dropped."""
        self[recipe.page] = recipe
        for page in recipe.inputs:
            self._dependents.setdefault(page, {})[recipe.page] = None

    def remove(self, page: PageId) -> None:
        """``page`` was recomputed, or died."""
        for input_page in self.pop(page).inputs:
            dependents = self._dependents[input_page]
            del dependents[page]
            if not dependents:
                del self._dependents[input_page]

    def dependents(self, pages: Iterable[PageId]) -> list[PageId]:
        """The dropped pages for which one of ``pages`` is needed as it is now."""
        return [dependent for page in pages for dependent in self._dependents.get(page, ())]

    def validate(self, book: Book) -> None:
        """Check that exactly the dropped pages have recipes, and that all their inputs live.

        Raises:
            InvariantError: that is not so.
        """
        dropped = {page.id for page in book if page.state is State.DROPPED}
        inputs = {page for recipe in self.values() for page in recipe.inputs}
        if dropped != self.keys() or inputs != self._dependents.keys():
            raise InvariantError(f"dropped: {sorted(dropped)}; there are recipes for: {sorted(self)}")
        dead = sorted(page for page in inputs if page not in book)
        if dead:
            raise InvariantError(f"needed to recompute others, but dead: {dead}")
