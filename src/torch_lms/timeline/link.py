"""How busy one direction of a link was."""

from dataclasses import dataclass

from torch_lms.timeline.record import Span


@dataclass(slots=True)
class Link:
    """Counts the copies of one direction, which come in the order in which they ended.

    Attributes:
        nbytes: copied so far.
        busy_s: seconds in which at least one copy was under way.
    """

    nbytes: int = 0
    busy_s: float = 0.0
    _until_s: float = 0.0

    def add(self, span: Span) -> None:
        """Count a copy."""
        self.nbytes += span.nbytes
        self.busy_s += max(0.0, span.end_s - max(span.start_s, self._until_s))
        self._until_s = max(self._until_s, span.end_s)

    @property
    def bytes_per_s(self) -> float:
        """The speed that was reached while it was busy; 0 before anything was copied."""
        return self.nbytes / self.busy_s if self.busy_s else 0.0
