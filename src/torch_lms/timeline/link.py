"""How busy one direction of a link was."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Link:
    """Counts the copies of one direction.

    Attributes:
        nbytes: copied so far.
        busy_s: seconds in which at least one copy was under way.
    """

    nbytes: int = 0
    busy_s: float = 0.0
    _until_s: float = 0.0

    def add(self, copies: Iterable[tuple[float, float, int]]) -> None:
        """Count ``copies``: when each began and ended, and its bytes, in the order in which they ended."""
        for start_s, end_s, nbytes in copies:
            self.nbytes += nbytes
            if end_s > self._until_s:
                self.busy_s += end_s - (start_s if start_s > self._until_s else self._until_s)
                self._until_s = end_s

    @property
    def bytes_per_s(self) -> float:
        """The speed that was reached while it was busy; 0 before anything was copied."""
        return self.nbytes / self.busy_s if self.busy_s else 0.0
