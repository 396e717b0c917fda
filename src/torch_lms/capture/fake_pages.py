"""The pages of a step on tensors without bytes, as tiles and pieces ask for them (N27)."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torch_lms.capture.page_owner import Use
from torch_lms.capture.pieces.table import TileTable
from torch_lms.capture.registry import Entry, Registry, storage_nbytes
from torch_lms.capture.tensors import untyped_storage
from torch_lms.trace import Living, Recorder, Work

_FAKE = torch._C._TorchDispatchModeKey.FAKE


class FakePages:
    """Numbers the storages that would be pages, and records when they are born and die.

    Args:
        min_size: smaller storages are no pages.
        free_bytes: that are assumed to be free beside the pages.

    Attributes:
        kind: of the device of the step's tensors.
        recorder: of the step.
        is_quiet: whether operations are nobody's: neither recorded, nor are their results pages.
        tiles: which tensors are in tiles.
    """

    tiles: TileTable

    def __init__(self, min_size: int, free_bytes: int) -> None:
        self.min_size = max(1, min_size)
        self._free_bytes = free_bytes
        self.kind = "cpu"
        self.recorder = Recorder(())
        self.is_quiet = False
        self._registry = Registry()

    def begin_step(self, living: Iterable[torch.Tensor]) -> None:
        """The next step begins. ``living``: the tensors that are there before."""
        tensors = list(living)
        self.kind = tensors[0].device.type if tensors else "cpu"
        self.recorder = Recorder(Living(entry.page, entry.nbytes) for entry in self.entries_of(tensors))

    def entries_of(self, values: Iterable[object]) -> list[Entry]:
        """The pages of the tensors among ``values``, each once."""
        found: dict[Entry, None] = {}
        for value in values:
            if isinstance(value, torch.Tensor) and value.device.type == self.kind:
                entry = self._entry(untyped_storage(value))
                if entry is not None:
                    found[entry] = None
        return list(found)

    def _entry(self, storage: torch.UntypedStorage) -> Entry | None:
        if storage in self.tiles:
            self.tiles.assemble(storage)
        entry = self.find(storage)
        if entry is None and storage_nbytes(storage) >= self.min_size:
            return self._registry.add(storage, None)
        return entry

    def reap(self) -> None:
        """Record the deaths of pages whose storages died since the last call."""
        for entry in self._registry.dead():
            self._died(entry)

    def _died(self, entry: Entry) -> None:
        if entry.page in self.recorder.numbers:
            self.recorder.died(entry.page)

    # -- as tiles and pieces ask: see ``PageOwner`` ------------------------------------------------------------------

    def find(self, storage: torch.UntypedStorage) -> Entry | None:
        return self._registry.find(storage)

    def register(self, storage: torch.UntypedStorage, _tensor: torch.Tensor) -> None:
        entry = self._registry.add(storage, None)
        self.recorder.created(Living(entry.page, entry.nbytes))

    def may_leave(self, _entry: Entry) -> bool:
        return True

    def invalidate(self, entries: list[Entry]) -> None:
        """Nothing is recomputed, and nothing copied."""

    def resized(self, entry: Entry, is_freed: bool = False) -> None:
        self._registry.drop(entry)
        self._died(entry)

    def in_pieces(self) -> None:
        return

    def begin(self, op: Use, entries: list[Entry], new_bytes: int) -> None:
        pages = [entry.page for entry in entries]
        self.recorder.begins(op.name, pages, new_bytes, 0.0, op.is_repeatable, Work("copy", "float32", 0, 0))

    def end(self, entries: list[Entry], written: list[Entry]) -> None:
        return

    def free_bytes(self, _device: torch.device) -> int:
        return self._free_bytes

    def is_out_of_memory(self, _error: BaseException) -> bool:
        return False

    def recover(self, entries: list[Entry], new_bytes: int) -> None:
        return

    def does_not_fit(self, _op: str, _entries: list[Entry], _new_bytes: int, error: BaseException) -> Exception:
        return error if isinstance(error, Exception) else RuntimeError(error)

    @contextmanager
    def unseen(self) -> Iterator[None]:
        mode: Any = torch._C._get_dispatch_mode(_FAKE)
        before = self.is_quiet, mode.cache_enabled
        self.is_quiet, mode.cache_enabled = True, False  # its cache would keep storages that it is given
        try:
            yield
        finally:
            self.is_quiet, mode.cache_enabled = before
