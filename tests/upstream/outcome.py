"""What a worker answers."""

from dataclasses import dataclass, field

PLAIN, EMPTY_MODE = "plain", "empty mode"
"""The ways to run a test, beside the names of settings."""


@dataclass(slots=True)
class Outcome:
    """What became of one run of one test.

    Attributes:
        state: "passed", "failed", "skipped", "crashed" or "timed out".
        detail: the last line of the error, or of what the process said.
        digests: of all that the test compared, in order.
        evictions, fetches, recomputes, planned_steps: what LMS did (see ``torch_lms.Stats``).
        stuck: LMS could not be turned off.
        seconds: how long it took.
    """

    state: str
    detail: str = ""
    digests: list[str] = field(default_factory=list)
    evictions: int = 0
    fetches: int = 0
    recomputes: int = 0
    planned_steps: int = 0
    stuck: bool = False
    seconds: float = 0.0

    def equals(self, other: "Outcome") -> bool:
        """Whether both passed, on the same bits."""
        return self.state == other.state == "passed" and self.digests == other.digests

    def fails_as(self, other: "Outcome") -> bool:
        """Whether both failed, with the same kind of error."""
        kinds = {(outcome.state, outcome.detail.split(":")[0]) for outcome in (self, other)}
        return self.state != "passed" and len(kinds) == 1
