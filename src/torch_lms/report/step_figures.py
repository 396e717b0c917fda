"""What a timeline comes to: seconds, bytes, waits, the largest tensors."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch_lms.report.contents import Step
from torch_lms.timeline import Lane, Life, Span

STALL = "stall"
NOT_OPERATIONS = frozenset({STALL, "evict", "fetch", "recompute", "copying", "plan", "all-reduce"})


@dataclass(frozen=True)
class StepFigures:
    """The figures of one step."""

    step: Step

    @property
    def spans(self) -> Sequence[Span]:
        """All of them."""
        return self.step.file.timeline.spans

    @property
    def lives(self) -> Sequence[Life]:
        """Of all pages."""
        return self.step.file.timeline.lives

    @cached_property
    def end_s(self) -> float:
        """When the step was over. It begins at 0."""
        return max((span.end_s for span in self.spans if span.lane is Lane.COMPUTE), default=0.0)

    @cached_property
    def operations(self) -> Sequence[Span]:
        """Those of the program, in order."""
        found = [span for span in self.spans if span.lane is Lane.COMPUTE and span.name not in NOT_OPERATIONS]
        return sorted(found, key=lambda span: span.start_s)

    @cached_property
    def stalls(self) -> Sequence[Span]:
        """Waits of the program."""
        return [span for span in self.spans if span.name == STALL]

    def named_s(self, name: str) -> float:
        """Seconds of all spans of that name."""
        return sum(span.end_s - span.start_s for span in self.spans if span.name == name)

    def busy_s(self, lane: Lane) -> float:
        """Seconds in which a lane was at work."""
        return _covered_s(span for span in self.spans if span.lane is lane)

    def moved_bytes(self, lane: Lane) -> int:
        """Bytes that a lane copied."""
        return sum(span.nbytes for span in self.spans if span.lane is lane)

    @property
    def recomputed_bytes(self) -> int:
        """Bytes of pages that were recomputed."""
        return sum(span.nbytes for span in self.spans if span.name == "recompute")

    @cached_property
    def demand(self) -> tuple[Sequence[float], Sequence[int]]:
        """The bytes that would be alive without a limit: moments at which they change, and how many from then on."""
        changes: defaultdict[float, int] = defaultdict(int)
        for life in self.lives:
            changes[0.0 if life.born_s is None else life.born_s] += life.nbytes
            if life.dead_s is not None:
                changes[max(0.0, life.dead_s)] -= life.nbytes
        held = 0
        moments = sorted(changes)
        alive = []
        for moment in moments:
            held += changes[moment]
            alive.append(held)
        return moments, alive

    @property
    def demand_bytes(self) -> int:
        """The most of these."""
        return max(self.demand[1], default=0)

    @cached_property
    def life_of(self) -> dict[int, Life]:
        """By page."""
        return {life.page: life for life in self.lives}

    @cached_property
    def times_moved(self) -> dict[tuple[int, str], int]:
        """How often each page was evicted, fetched or recomputed: by page and name."""
        times: defaultdict[tuple[int, str], int] = defaultdict(int)
        for span in self.spans:
            if span.page >= 0 and span.lane is not Lane.DISK:
                times[span.page, span.name] += 1
        return times

    def largest(self, count: int) -> Sequence[Life]:
        """The largest pages, the largest first."""
        return sorted(self.lives, key=lambda life: life.nbytes, reverse=True)[:count]

    @cached_property
    def waited_for(self) -> Sequence[tuple[int, float, int, float]]:
        """For each page that the program waited for: the page (-1: not known), seconds, how often, first when."""
        seconds: defaultdict[int, float] = defaultdict(float)
        times: defaultdict[int, int] = defaultdict(int)
        first_s: dict[int, float] = {}
        for span in self.stalls:
            seconds[span.page] += span.end_s - span.start_s
            times[span.page] += 1
            first_s.setdefault(span.page, span.start_s)
        return [(page, seconds[page], times[page], first_s[page]) for page in sorted(seconds, key=seconds.__getitem__)][
            ::-1
        ]


def key_of(life: Life) -> str:
    """Equal for the same tensor of steps alike, on whatever machine."""
    op, place = life.born_at
    return f"{op}.{place}"


def _covered_s(spans: Iterable[Span]) -> float:
    covered_s = 0.0
    until_s = 0.0
    for span in sorted(spans, key=lambda span: span.start_s):
        covered_s += max(0.0, span.end_s - max(span.start_s, until_s))
        until_s = max(until_s, span.end_s)
    return covered_s
