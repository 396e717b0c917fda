"""When pages are not in use: what a plan may choose from."""

from dataclasses import dataclass
from itertools import pairwise

from torch_lms.trace import Trace

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Gap:
    """The time between two uses of a page, in which it may be away.

    Attributes:
        page: its number in the trace.
        after: the operation after which it begins; -1 if it goes on from the step before, unknown since when.
        before: the operation that needs the page next, of the following step if the gap wraps; -1 if nobody will.
        spans: the operations during which it may be away, first and last; two if the gap wraps around the step's end.
        nbytes: size of the page.
        version: a number for the content that it has meanwhile. Gaps of one version share one copy.
        is_copied: whether a lower tier has a copy of that content from an earlier step, since nothing in the step
            changes it.
    """

    page: int
    after: int
    before: int
    spans: tuple[Span, ...]
    nbytes: int
    version: int
    is_copied: bool

    @property
    def is_whole_step(self) -> bool:
        """Whether no operation of the step uses the page. It left long ago, and to have it away costs nothing."""
        return self.after < 0

    @property
    def wraps(self) -> bool:
        """Whether the page is still away when the next step begins, where it is its successor. That may be needed later
        in a step than the page itself was used: so ``before`` may exceed ``after`` all the same.
        """
        return self.after >= 0 and self.spans[-1][0] == 0

    def times_away(self, position: int) -> int:
        """How many pages are away during the operation at ``position``: none, one, or the page and its successor."""
        return sum(first <= position <= last for first, last in self.spans)


def gaps_of(trace: Trace) -> list[Gap]:
    """All gaps of all pages that may leave, in order of page and time. A step is assumed to follow one of its kind."""
    return [gap for page in range(len(trace.pages)) for gap in _gaps_of_page(trace, page)]


def actions_of(gap: Gap) -> int:
    """How many actions it takes to have the page away meanwhile (``pager.Action``), unless its copy is made anew."""
    evict = 1 if gap.is_copied else 3  # a page with a copy is only freed; else the copy begins and ends, too
    return evict + (2 if gap.before >= 0 else 0)


def written(trace: Trace, gap: Gap) -> int:
    """The operation that wrote what ``gap.page`` holds meanwhile; of the step before if it comes after the gap; -1 if
    no operation of the step writes it.
    """
    return gap.version % (len(trace.ops) + 2) - 1


def _gaps_of_page(trace: Trace, number: int) -> list[Gap]:
    page = trace.pages[number]
    uses = trace.uses[number]
    if page.unpageable:
        return []
    end = len(trace.ops)
    successor = page.successor if page.dead == end else -1
    if not uses:
        if page.born < 0 and successor == number:  # no step uses it: it left long ago
            return [Gap(number, -1, -1, _spans((0, end - 1)), page.nbytes, _version(number, 0, end), True)]
        return []  # its gap began in the step before, and is one of its predecessor's

    writes = [use for use in uses if use == page.born or number in trace.ops[use].writes]
    is_constant = successor == number and not writes
    last_write = -1
    if page.born < 0 and writes:
        last_write = writes[-1]  # steps repeat: that of the step before
    found = []
    for use, following in pairwise(uses):
        if use in writes:
            last_write = use
        spans = _spans((use + 1, following - 1))
        if spans:
            version = _version(number, last_write + 1, end)
            found.append(Gap(number, use, following, spans, page.nbytes, version, is_constant))

    if uses[-1] in writes:
        last_write = uses[-1]
    before = -1
    if page.dead < end:
        spans = _spans((uses[-1] + 1, page.dead))
    elif successor < 0:
        spans = _spans((uses[-1] + 1, end - 1))
    elif trace.uses[successor]:
        before = trace.uses[successor][0]
        spans = _spans((uses[-1] + 1, end - 1), (0, before - 1))
    else:
        spans = _spans((uses[-1] + 1, end - 1), (0, min(trace.pages[successor].dead, end - 1)))
    if spans:
        version = _version(number, last_write + 1, end)
        found.append(Gap(number, uses[-1], before, spans, page.nbytes, version, is_constant))
    return found


def _spans(*given: Span) -> tuple[Span, ...]:
    """Those of the spans that are not empty."""
    return tuple(span for span in given if span[0] <= span[1])


def _version(page: int, write: int, ops: int) -> int:
    """A number for what ``page`` holds after the operation ``write - 1`` wrote it; 0: before any operation did."""
    return page * (ops + 2) + write
