"""Which parts of one linear space are taken and which are free. Knows nothing of what the space is made of."""

from bisect import bisect_left, insort
from itertools import pairwise

from torch_lms.errors import InvariantError


class Extents:
    """Best-fit allocator of a space that starts empty and grows at its end. Not thread-safe: its store has the lock.

    Best fit, because a training step asks for the same few sizes again and again: a hole left by one page is the exact
    place for the next of its size.
    """

    def __init__(self, grain: int) -> None:
        self.grain = grain
        self._end = 0
        self._total = 0
        self._used = 0
        self._taken: dict[int, int] = {}  # offset -> length
        self._free: dict[int, int] = {}  # offset -> length
        self._free_ends: dict[int, int] = {}  # end -> offset: finds the left neighbour of what is given back
        self._by_size: list[tuple[int, int]] = []  # (length, offset) of the free extents, sorted

    @property
    def used_bytes(self) -> int:
        return self._used

    @property
    def total_bytes(self) -> int:
        return self._total

    @property
    def largest_free(self) -> int:
        """Bytes of the largest free extent: what one ``take`` can get at most."""
        return self._by_size[-1][0] if self._by_size else 0

    def rounded(self, nbytes: int) -> int:
        """``nbytes`` rounded up to the grain: the length that ``take(nbytes)`` takes."""
        return -(-nbytes // self.grain) * self.grain

    def take(self, nbytes: int) -> int | None:
        """Offset of ``rounded(nbytes)`` bytes (``nbytes`` > 0) in the smallest free extent that holds them, or None."""
        length = self.rounded(nbytes)
        place = bisect_left(self._by_size, (length, 0))
        if place == len(self._by_size):
            return None
        free_length, offset = self._by_size[place]
        self._forget_free(offset)
        if free_length > length:
            self._add_free(offset + length, free_length - length)
        self._taken[offset] = length
        self._used += length
        return offset

    def give(self, offset: int, length: int) -> None:
        """Free what ``take`` returned.

        Raises:
            InvariantError: this is not taken, or not with this length; nothing has changed.
        """
        if self._taken.get(offset) != length:
            raise InvariantError(f"gave back {length} bytes at {offset}; taken there: {self._taken.get(offset, 0)}")
        del self._taken[offset]
        self._used -= length
        self._add_free(offset, length)

    def grow(self, length: int, gap: int = 0) -> int:
        """Append ``length`` free bytes (a multiple of the grain) and return where they begin.

        A ``gap`` before them belongs to nobody: no extent will ever span both sides of it.
        """
        offset = self._end + gap
        self._end = offset + length
        self._total += length
        self._add_free(offset, length)
        return offset

    def is_free(self, offset: int, length: int) -> bool:
        """Whether exactly this is one free extent."""
        return self._free.get(offset) == length

    def retire(self, offset: int) -> None:
        """Take the free extent at ``offset`` out of the space for good; its offsets are never used again."""
        self._total -= self._forget_free(offset)

    def validate(self) -> None:
        """Check the books.

        Raises:
            InvariantError: they do not add up.
        """
        spans = sorted([*self._free.items(), *self._taken.items()])
        neighbours_of_free = (end for end in self._free_ends if end in self._free)
        checks = {
            "extents overlap": all(a + length <= b for (a, length), (b, _) in pairwise(spans)),
            "extents leave the space": all(a >= 0 and a + length <= self._end for a, length in spans),
            "an extent is empty or off the grain": all(n > 0 and n % self.grain == 0 for _, n in spans),
            "free neighbours are not joined": next(neighbours_of_free, None) is None,
            "the index by size is wrong": self._by_size == sorted((n, a) for a, n in self._free.items()),
            "the index by end is wrong": self._free_ends == {a + n: a for a, n in self._free.items()},
            "used bytes are wrong": self._used == sum(self._taken.values()),
            "total bytes are wrong": self._total == self._used + sum(self._free.values()),
        }
        if broken := [name for name, holds in checks.items() if not holds]:
            raise InvariantError("; ".join(broken))

    def _add_free(self, offset: int, length: int) -> None:
        left = self._free_ends.get(offset)
        if left is not None:
            length += self._forget_free(left)
            offset = left
        if offset + length in self._free:
            length += self._forget_free(offset + length)
        self._free[offset] = length
        self._free_ends[offset + length] = offset
        insort(self._by_size, (length, offset))

    def _forget_free(self, offset: int) -> int:
        length = self._free.pop(offset)
        del self._free_ends[offset + length]
        del self._by_size[bisect_left(self._by_size, (length, offset))]
        return length
