"""The records that a trace is made of."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from torch_lms.renamed import warn_of_old_name

CONVOLUTIONS = ("convolution", "convolution3d")
"""The kinds of work that are convolutions, over images and over volumes, but for depthwise ones."""


class TracedPage(NamedTuple):
    """A page of the step. Its number is its index in the trace.

    Attributes:
        nbytes: bytes of its storage.
        born: the operation that created it; -1 if it lived before the step.
        dead: the operation after which it died; the number of operations if it outlived the step.
        unpageable: why it must stay on the device, "" if it may leave.
        successor: if it outlives the step, the number that such a page has at the start of the next; -1 if not known.
    """

    nbytes: int
    born: int
    dead: int
    unpageable: str = ""
    successor: int = -1

    @property
    def becomes(self) -> int:
        """The old name of ``successor``."""
        warn_of_old_name(self, "becomes", "successor")
        return self.successor


class Work(NamedTuple):
    """What an operation has to do, on whatever machine.

    Attributes:
        kind: "matrix", "convolution", "convolution3d" (over volumes), "depthwise", "pooling" (up and down, by windows),
            "normalization", "elementwise" or "copy".
        dtype: the type in which it computes, as in "float32".
        flops: floating-point operations; a multiplication with its addition counts as two.
        nbytes: bytes that it reads and writes.
        workspace_bytes: device memory that it takes meanwhile, beside its pages.
        launches: kernels that it launches, with those of the small operations up to the next.
    """

    kind: str
    dtype: str
    flops: int
    nbytes: int
    workspace_bytes: int = 0
    launches: int = 1


class TracedOp(NamedTuple):
    """An operation that used pages.

    Attributes:
        name: as in "aten::mm"; "access" if bytes were touched outside any operation.
        pages: those that had to be resident, in the order of the arguments.
        writes: those among them that it wrote.
        creates: those that it created, in order.
        new_bytes: the bytes that it said beforehand it would create.
        seconds: from its start to the start of the next: with the program's own time, without waits for copies.
        is_repeatable: whether it would give the same bits if it were called again with the same arguments.
        work: what it has to do, where the step was not run but traced on tensors without bytes.
    """

    name: str
    pages: tuple[int, ...]
    writes: tuple[int, ...]
    creates: tuple[int, ...]
    new_bytes: int
    seconds: float
    is_repeatable: bool = False
    work: Work | None = None

    @property
    def launches(self) -> int:
        """Kernels that it launches, with those of the small operations up to the next; 1 if that is not known."""
        return 1 if self.work is None else self.work.launches


def places_of(ops: Iterable[TracedOp]) -> dict[int, int]:
    """For each page that the operations of a step use or create, its place in the order of their first uses."""
    places: dict[int, int] = {}
    for op in ops:
        for page in (*op.pages, *op.creates):
            places.setdefault(page, len(places))
    return places


def structure_of(ops: Iterable[TracedOp], places: dict[int, int]) -> int:
    """A number that is equal for steps of the same operations on the same pages, whatever their sizes.

    Args:
        ops: of a step.
        places: of its pages, see ``places_of``.
    """
    return hash(tuple((op.name, *(places[page] for page in op.pages), -1, len(op.creates)) for op in ops))


@dataclass(frozen=True)
class Trace:
    """What one step did.

    Attributes:
        pages: all pages that lived during the step, those not used in it included.
        ops: all operations that used a page, in order.
        in_pieces: how many operations run in pieces; files do not keep it.
        retraced: traces the step once more, as ``under`` has it; None if it was not traced on tensors without bytes.
            Files do not keep it.
        recorded_nbytes: bytes of ``pages`` in the step that was recorded, where ``pages`` have others, for steps of
            other sizes; else empty. Files do not keep it.
    """

    pages: tuple[TracedPage, ...]
    ops: tuple[TracedOp, ...]
    in_pieces: int = field(default=0, compare=False)
    retraced: "Callable[[int, int], Trace] | None" = field(default=None, compare=False, repr=False)
    recorded_nbytes: tuple[int, ...] = field(default=(), compare=False, repr=False)

    def under(self, limit: int, free_bytes: int = 0) -> "Trace":
        """The step as LMS runs it where pages may occupy ``limit`` bytes.

        Operations that need more by themselves run in pieces, or are split. That is known only of a step that was
        traced on tensors without bytes: any other is given as it is.

        Args:
            limit: bytes that pages may occupy.
            free_bytes: bytes of the device beside them. Pieces that have to be tried first are taken for equal to the
                bit, if there is room to try.
        """
        if self.retraced is None or self.working_set_bytes <= limit:
            return self
        return self.retraced(limit, free_bytes)

    def refined_by(self, followed: "Trace") -> "Trace":
        """The step, which followed a plan for ``followed``, a step of the same operations.

        Each operation takes the shorter of its times there and here. What the longer one has more is most likely not
        the operation's: a device that waited for its host, say. And operations that were not looked at, since they
        followed the plan, are recorded with the bytes that the plan has them create.
        """

        def new_bytes(op: TracedOp, same: TracedOp) -> int:
            return self.created_bytes(op) + max(0, same.new_bytes - followed.created_bytes(same))

        both = zip(self.ops, followed.ops, strict=True)
        return replace(
            self,
            ops=tuple(
                op._replace(seconds=min(op.seconds, same.seconds), new_bytes=new_bytes(op, same)) for op, same in both
            ),
        )

    def created_bytes(self, op: TracedOp) -> int:
        """Bytes of the pages that ``op`` creates."""
        return sum(self.pages[page].nbytes for page in op.creates)

    @cached_property
    def places(self) -> dict[int, int]:
        """See ``places_of``."""
        return places_of(self.ops)

    @cached_property
    def structure(self) -> int:
        """See ``structure_of``."""
        return structure_of(self.ops, self.places)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of the pages that operations use or create, in the order of their first uses."""
        return tuple(self.pages[page].nbytes for page in self.places)

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """For each page, the operations that used or created it, in order."""
        found: list[list[int]] = [[] for _ in self.pages]
        for number, op in enumerate(self.ops):
            for page in {*op.pages, *op.creates}:
                found[page].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def starts_s(self) -> tuple[float, ...]:
        """When each operation begins, and when the step ends, in seconds after its beginning."""
        return tuple(accumulate((op.seconds for op in self.ops), initial=0.0))

    @cached_property
    def working_set_bytes(self) -> int:
        """The working set (W) of the largest operation: what it has to have on the device at once."""
        sizes = (sum(self.pages[page].nbytes for page in {*op.pages, *op.creates}) for op in self.ops)
        return max(sizes, default=0)

    @property
    def seconds(self) -> float:
        """The seconds of the whole step, without waits for copies."""
        return sum(op.seconds for op in self.ops)
