"""A step as it would be with ``fused=True`` for its optimizer: one operation for all that is done to a parameter."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch_lms.trace import Trace, TracedOp, TracedPage

_ELEMENTWISE = frozenset(
    {*("lerp_", "mul_", "addcmul_", "addcdiv_", "add_", "sub_", "div_", "neg_", "copy_")}
    | {*("mul", "add", "sub", "div", "sqrt", "neg", "pow", "maximum")}
)
"""What PyTorch's optimizers are made of where they take a parameter at a time."""

_LISTS = "_foreach_"
_PARTS_OF_LIMIT = 8
"""A fused operation works in runs of an eighth of the limit (N10)."""


def with_fused_optimizer(trace: Trace, limit: int) -> Trace | None:
    """``trace`` with its optimizer fused; None if it has none that could be, or is fused already.

    An elementwise operation takes as long as it moves bytes. So a fused one takes the time of those that it replaces,
    less what these read and wrote more than once.
    """
    first = _optimizer_begins(trace)
    tail = trace.ops[first:]
    if not any(trace.pages[page].born < 0 for op in tail for page in op.writes):
        return None
    groups = _groups(trace, tail)
    return _replaced(trace, first, list(_runs(trace.pages, groups, limit // _PARTS_OF_LIMIT)))


def _optimizer_begins(trace: Trace) -> int:
    first = len(trace.ops)
    while first > 0 and _is_optimizers(trace.ops[first - 1].name):
        first -= 1
    return first


def _is_optimizers(name: str) -> bool:
    short = name.removeprefix("aten::").split(".")[0]
    return short in _ELEMENTWISE or short.startswith(_LISTS)


@dataclass
class _Group:
    """What is done to one parameter, or to several: its pages, and the seconds of it."""

    pages: dict[int, None] = field(default_factory=dict)
    writes: dict[int, None] = field(default_factory=dict)
    temporaries: set[int] = field(default_factory=set)
    touched_bytes: int = 0
    seconds: float = 0.0

    def add(self, other: "_Group") -> None:
        self.pages |= other.pages
        self.writes |= other.writes
        self.temporaries |= other.temporaries
        self.touched_bytes += other.touched_bytes
        self.seconds += other.seconds


def _parts(op: TracedOp) -> Iterator[tuple[int, ...]]:
    """The pages of ``op`` that belong together: of lists, those at the same index."""
    count = max(len(op.creates), len(op.writes))
    pages = (*op.pages, *op.creates)
    if _LISTS not in op.name or count == 0 or len(pages) % count:
        yield pages
        return
    for index in range(count):
        yield pages[index::count]


def _groups(trace: Trace, tail: Sequence[TracedOp]) -> list[_Group]:
    """One for each parameter: operations that share a page belong together."""
    of_page: dict[int, _Group] = {}
    for op in tail:
        parts = list(_parts(op))
        for pages in parts:
            group = _Group(seconds=op.seconds / len(parts))
            for page in pages:
                group.pages[page] = None
                group.touched_bytes += trace.pages[page].nbytes
                if page in op.writes:
                    group.writes[page] = None
                if page in op.creates:
                    group.temporaries.add(page)
            for met in {id(of_page[page]): of_page[page] for page in pages if page in of_page}.values():
                met.add(group)
                group = met
            for page in group.pages:
                of_page[page] = group
    return list({id(group): group for group in of_page.values()}.values())


def _runs(pages: Sequence[TracedPage], groups: Sequence[_Group], most_bytes: int) -> Iterator[_Group]:
    """``groups``, several at a time up to ``most_bytes``."""
    run = _Group()
    for group in groups:
        kept = {*run.pages, *group.pages} - run.temporaries - group.temporaries
        nbytes = sum(pages[page].nbytes for page in kept)
        if run.pages and nbytes > most_bytes:
            yield run
            run = _Group()
        run.add(group)
    yield run


def _replaced(trace: Trace, first: int, runs: Sequence[_Group]) -> Trace:
    """``trace`` with ``runs`` in the place of what follows ``first``, and without the pages made in between."""
    gone = {page for run in runs for page in run.temporaries}
    kept = [number for number in range(len(trace.pages)) if number not in gone]
    numbers = {number: place for place, number in enumerate(kept)}
    last_use = {page: first + place for place, run in enumerate(runs) for page in run.pages}
    end = first + len(runs)

    def moved(number: int) -> TracedPage:
        page = trace.pages[number]
        dead = page.dead
        if dead >= len(trace.ops):
            dead = end
        elif dead >= first:
            dead = last_use.get(number, first)
        return page._replace(dead=dead, successor=numbers.get(page.successor, -1))

    head = [_renumbered(op, numbers) for op in trace.ops[:first]]
    return Trace(tuple(map(moved, kept)), (*head, *(_fused(trace, run, numbers) for run in runs)))


def _renumbered(op: TracedOp, numbers: dict[int, int]) -> TracedOp:
    pages, writes, creates = (tuple(numbers[page] for page in each) for each in (op.pages, op.writes, op.creates))
    return op._replace(pages=pages, writes=writes, creates=creates)


def _fused(trace: Trace, run: _Group, numbers: dict[int, int]) -> TracedOp:
    pages = [page for page in run.pages if page not in run.temporaries]
    share = sum(trace.pages[page].nbytes for page in pages) / max(1, run.touched_bytes)
    return TracedOp(
        "aten::_fused_optimizer",
        tuple(numbers[page] for page in pages),
        tuple(numbers[page] for page in run.writes if page in numbers),
        (),
        0,
        run.seconds * min(1.0, share),
    )
