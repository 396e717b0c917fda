"""Recomputes pages where there is a native interposer: it records the calls, and repeats them."""

from collections.abc import Callable
from typing import Any

from torch_lms.capture.call import Find, Recorded, WritesOf
from torch_lms.capture.registry import Entry, storage_nbytes
from torch_lms.capture.schema import OpInfo
from torch_lms.errors import StoreError
from torch_lms.native import Native
from torch_lms.policy import Recipe
from torch_lms.residency import PageId
from torch_lms.runtime.recompute import Recomputer


class NativeRecomputer(Recomputer):
    """Has the interposer recompute pages, which does so also by itself while a plan is followed.

    Args:
        native: the interposer.
        entry_of: the page of a number, if Python knows of it.

    Attributes:
        calls: of this step. Those that pass natively are kept there by the interposer.
    """

    def __init__(self, native: Native, entry_of: Callable[[PageId], Entry | None]) -> None:
        super().__init__()
        self.calls = native.Calls()
        self._native = native
        self._entry_of = entry_of

    def record(
        self,
        func: Any,
        info: OpInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        find: Find,
        writes_of: WritesOf,
    ) -> Recorded:
        written = [position for position, _ in info.writes]
        overload = func._schema.overload_name
        return self._native.record(func._schema.name, overload, args, kwargs, written, writes_of)

    def keep(self, position: int, call: Any) -> None:
        self.calls.keep(position, call)

    def forget_calls(self) -> None:
        self.calls.clear()

    def bind(self, recipe: Recipe, writes_of: WritesOf) -> None:
        if not self.calls.bind(recipe.page, list(recipe.inputs), list(recipe.ops), writes_of):
            raise StoreError(f"the calls that were recorded do not make page {recipe.page} as it is")

    def inputs(self, page: PageId) -> list[Entry]:
        return [entry for number in self._native.inputs(page) if (entry := self._entry_of(number)) is not None]

    def recompute(self, entry: Entry) -> None:
        storage = entry()
        if storage is not None and not storage_nbytes(storage):
            self._native.recompute(entry.page, storage, entry.nbytes)

    def forget(self, page: PageId) -> None:
        self._native.unbind(page)
