"""A file from which the program loaded tensors, as a tier: pages are read from it, and never written to it."""

import os
import weakref
from dataclasses import dataclass
from pathlib import Path

from torch_lms.errors import PageLostError
from torch_lms.stores.base import Slot
from torch_lms.stores.copies import CHUNK_BYTES, Copy, chunk_count
from torch_lms.stores.spill_file import Bytes, SpillFile, read_into
from torch_lms.units import format_bytes


class LoadedFile:
    """An open file. It stays readable when its name is gone, or another file's; that its bytes were changed is noticed.

    Args:
        path: of the file.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)  # with its last part
        self._was = self._looks()

    def read(self, chunk: Bytes, offset: int) -> None:
        """Fill ``chunk``.

        Raises:
            EOFError: the file ends before.
            ValueError: it was changed since it was opened.
            OSError: the system could not read it.
        """
        read_into(self._fd, chunk, offset)
        if self._looks() != self._was:
            raise ValueError("the file was changed since it was loaded")

    def _looks(self) -> tuple[int, int]:
        status = os.fstat(self._fd)
        return status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True, eq=False)
class LoadedPart(Slot):
    """Where a page is in the file that it was loaded from."""

    file: LoadedFile


class ReadLoaded(Copy):
    """A page on its way from the file that it was loaded from."""

    def __init__(self, part: LoadedPart, memory: Bytes) -> None:
        super().__init__(part, memory, [None] * chunk_count(part.nbytes), [])
        self._part = part

    def _move(self, index: int, part: Bytes, file: SpillFile, bounce: Bytes) -> None:
        self._part.file.read(part, self._part.offset + index * CHUNK_BYTES)

    def _explained(self, error: Exception, file: SpillFile) -> PageLostError:
        part = self._part
        story = PageLostError(
            f"could not read {format_bytes(part.nbytes)} at offset {part.offset} of {part.file.path}, from which they "
            f"were loaded: {error}. A file must stay as it is while a model that was loaded from it is in use; load "
            f"the model anew, or copy its tensors (`tensor.clone()`) before the file is changed"
        )
        story.__cause__ = error
        return story
