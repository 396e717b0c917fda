"""Recomputes pages instead of fetching them (N16)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from torch_lms.capture.call import Call, Recorded, WritesOf, capture_call
from torch_lms.capture.registry import STORAGE, Entry, storage_nbytes
from torch_lms.errors import StoreError
from torch_lms.policy import Recipe
from torch_lms.residency import PageId
from torch_lms.runtime.executor import CAN_SWAP, bytes_of, fill_storage


@dataclass(slots=True)
class _Program:
    """Calls that recompute ``target``, in order.

    Attributes:
        inputs: the pages that they read.
        storages: of these. Held: if the program deletes one meanwhile, its bytes are still needed.
    """

    target: PageId
    calls: list[Call]
    inputs: list[Entry]
    storages: dict[PageId, torch.UntypedStorage]

    def run(self) -> torch.UntypedStorage:
        """The page's content, in memory of its own. What is made on the way is freed after its last use."""
        last_use: dict[PageId, int] = {}
        for position, call in enumerate(self.calls):
            last_use.update((entry.page, position) for entry in call.pages)
            last_use.update((view.entry.page, position) for _, view in call.results)
        storages = dict(self.storages)
        for position, call in enumerate(self.calls):
            call.repeat(storages)
            for page in [page for page, last in last_use.items() if last == position and page != self.target]:
                del storages[page]
        return storages[self.target]


class Recomputer:
    """Recomputes the pages of one device. Not thread-safe."""

    record: ClassVar[Callable[..., Recorded]] = staticmethod(capture_call)
    """Records a call that may have to be repeated: see there."""

    def __init__(self) -> None:
        self._calls: dict[int, Any] = {}
        self._programs: dict[PageId, _Program] = {}

    def keep(self, position: int, call: Recorded) -> None:
        """The operation at ``position`` of this step may have to be repeated."""
        self._calls[position] = call

    def forget_calls(self) -> None:
        """The step ended."""
        self._calls.clear()

    def bind(self, recipe: Recipe, writes_of: WritesOf) -> None:
        """Get ready to recompute a page, by ``recipe``, from pages as they are now.

        Raises:
            StoreError: that would not give what it holds now.
        """
        calls = [self._calls[position] for position in recipe.ops if position in self._calls]
        if len(calls) < len(recipe.ops):
            raise StoreError("a call was not captured")
        made: dict[PageId, int] = {}
        inputs: dict[PageId, Entry] = {}
        for call in calls:
            for entry in call.pages:
                page = entry.page
                is_made = page in made
                now = made[page] if is_made else writes_of(page)
                if now != call.reads[page] or (page in call.writes and not is_made):
                    raise StoreError(f"page {page} has changed")
                if not is_made:
                    inputs[page] = entry
            for page in call.writes:
                made[page] += 1
            made.update((view.entry.page, 0) for _, view in call.results)
        storages = {page: storage for page, entry in inputs.items() if (storage := entry()) is not None}
        if made.get(recipe.page) != writes_of(recipe.page) or set(recipe.inputs) != storages.keys():
            raise StoreError("the calls do not make it as it is")
        self._programs[recipe.page] = _Program(recipe.page, calls, list(inputs.values()), storages)

    def inputs(self, page: PageId) -> list[Entry]:
        """What ``page`` is recomputed from; nothing if it is there, but an interrupt hid that."""
        return self._programs[page].inputs if page in self._programs else []

    def recompute(self, entry: Entry) -> None:
        """Recompute the page, from inputs that are on the device. Nothing to do if it was never freed. What that takes
        is held until somebody calls ``forget``.

        Raises:
            RuntimeError: the device has no room for it.
        """
        storage = entry()
        if storage is not None and not storage_nbytes(storage):
            made = self._programs[entry.page].run()
            if CAN_SWAP:
                STORAGE._swap_data_ptr_(storage, made)
            else:
                fill_storage(storage, entry.nbytes)
                bytes_of(storage).copy_(bytes_of(made))

    def forget(self, page: PageId) -> None:
        """Let go of what it takes to recompute ``page``: it is there, or dead."""
        self._programs.pop(page, None)
