"""A copy between a page and the spill file, chunk by chunk."""

import threading
import time
from abc import abstractmethod

import xxhash

from torch_lms.errors import PageLostError, StoreError
from torch_lms.stores.base import Pending, Slot
from torch_lms.stores.spill_file import ALIGNMENT, FULL_ERRNOS, Bytes, SpillFile
from torch_lms.units import format_bytes

CHUNK_BYTES = 1 << 20
"""What one I/O thread moves at a time. Small enough for the checksum to find it in cache, large enough for a disk."""


def chunk_count(nbytes: int) -> int:
    return -(-nbytes // CHUNK_BYTES)


def checksum(chunk: Bytes) -> int:
    """64 bits over ``chunk``, by XXH3: the time of a core that this takes is lost to the program."""
    return xxhash.xxh3_64_intdigest(chunk.data)


class Copy(Pending):
    """One page on its way to or from its slot. Any I/O thread may perform any chunk, in any order.

    Args:
        memory: the page's bytes, ``slot.nbytes`` of them. The copy lets go of them before ``wait`` returns: whoever
            waits may free the page at once.
        checksums: one per chunk, None until it was written: a ``Write`` fills them in, a ``Read`` checks them.
        after: earlier copies of the same slot. Each stands further ahead in its queue than this one in its own, so an
            I/O thread that waits for them never waits, by whatever way, for a chunk behind its own.

    Attributes:
        began_s, ended_s: when, by ``time.perf_counter``.
    """

    def __init__(self, slot: Slot, memory: Bytes, checksums: list[int | None], after: list["Copy"]) -> None:
        self.chunks = len(checksums)
        self._slot = slot
        self._memory: Bytes | None = memory
        self._checksums = checksums
        self._after = after
        self._chunks_left = self.chunks
        self._error: StoreError | None = None
        self._lock = threading.Lock()
        self._is_done = False
        self.began_s = self.ended_s = 0.0
        # not an Event: an interrupt inside its wait leaves its lock locked
        self._under_way = threading.Lock()
        self._under_way.acquire()

    def wait(self) -> None:
        self.settle()
        if self._error is not None:
            # a fresh one each time: a raised exception keeps the frames of whoever caught it, and their tensors (N21)
            raise type(self._error)(*self._error.args) from self._error.__cause__

    def done(self) -> bool:
        return self._is_done

    def settle(self) -> None:
        """Wait for the end, however it turns out."""
        with self._under_way:
            pass

    @property
    def moved_bytes(self) -> int:
        """Of a copy that has ended: 0 if it failed."""
        return 0 if self._error is not None else self._slot.nbytes

    def perform(self, index: int, file: SpillFile, bounce: Bytes) -> bool:
        """Move chunk ``index`` by way of ``bounce``: the page's own memory is not aligned enough for direct I/O.

        Returns:
            Whether the copy has ended with it.
        """
        try:
            self._try(index, file, bounce)
        finally:
            is_last = self._end_chunk()  # not before the frame has ended that holds a part of the page
        return is_last

    def _try(self, index: int, file: SpillFile, bounce: Bytes) -> None:
        try:
            for earlier in self._after:
                earlier.settle()
            self.began_s = self.began_s or time.perf_counter()
            # after one failed chunk the others are pointless
            if self._memory is not None and self._error is None:
                begin = index * CHUNK_BYTES
                part = self._memory[begin : begin + CHUNK_BYTES]
                self._move(index, part, file, bounce[: -(-part.nbytes // ALIGNMENT) * ALIGNMENT])
        except Exception as error:
            # without its traceback, whose frames hold the page
            self._error = self._explained(error.with_traceback(None), file)

    @abstractmethod
    def _move(self, index: int, part: Bytes, file: SpillFile, bounce: Bytes) -> None:
        """Move ``part``, chunk ``index`` of the page; ``bounce`` is its length rounded up to the alignment."""

    @abstractmethod
    def _explained(self, error: Exception, file: SpillFile) -> StoreError:
        """What to tell whoever waits."""

    def _offset(self, index: int) -> int:
        return self._slot.offset + index * CHUNK_BYTES

    def _end_chunk(self) -> bool:
        with self._lock:
            self._chunks_left -= 1
            if self._chunks_left:
                return False
        self.ended_s = time.perf_counter()
        self._memory = None
        self._after = []
        self._is_done = True
        self._under_way.release()
        return True


class Write(Copy):
    def _move(self, index: int, part: Bytes, file: SpillFile, bounce: Bytes) -> None:
        bounce[: part.nbytes] = part
        bounce[part.nbytes :] = 0
        found = checksum(bounce)
        file.write(bounce, self._offset(index))
        self._checksums[index] = found

    def _explained(self, error: Exception, file: SpillFile) -> StoreError:
        return not_written(error, self._slot.nbytes, self._slot.offset, file)


class Read(Copy):
    def _move(self, index: int, part: Bytes, file: SpillFile, bounce: Bytes) -> None:
        expected = self._checksums[index]
        if expected is None:
            raise EOFError("it was never written as a whole")
        file.read(bounce, self._offset(index))
        if checksum(bounce) != expected:
            raise ValueError(f"damaged: {part.nbytes} bytes at offset {self._offset(index)} are not those written")
        part[:] = bounce[: part.nbytes]

    def _explained(self, error: Exception, file: SpillFile) -> StoreError:
        return not_read(error, self._slot.nbytes, self._slot.offset, file)


def not_written(error: Exception, nbytes: int, offset: int, file: SpillFile) -> StoreError:
    """What to tell whoever waits for a page of ``nbytes`` to be written at ``offset``."""
    story: StoreError
    if isinstance(error, OSError) and error.errno in FULL_ERRNOS:
        story = file.full(nbytes, f"it was promised {format_bytes(file.size)}")
    else:
        page = f"a page of {format_bytes(nbytes)} at offset {offset}"
        story = StoreError(f"could not write {page} of the spill file in {file.directory}: {error}")
    story.__cause__ = error
    return story


def not_read(error: Exception, nbytes: int, offset: int, file: SpillFile) -> PageLostError:
    """The same for one that is read."""
    page = f"a page of {format_bytes(nbytes)} at offset {offset}"
    story = PageLostError(f"could not read back {page} of the spill file in {file.directory}: {error}")
    story.__cause__ = error
    return story
