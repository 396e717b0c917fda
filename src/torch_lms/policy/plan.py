"""A plan for one kind of step: which pages are away, and when (N15)."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch_lms.renamed import warn_of_old_name
from torch_lms.residency import PageId
from torch_lms.trace import Trace


class Recomputation(NamedTuple):
    """A page that is dropped and recomputed; pages and operations are named by their numbers in the trace.

    Attributes:
        page: the page.
        after: the operation after which it is dropped.
        before: the operation that needs it again; -1 if nobody will.
        ops: the operations that compute it, in order.
        inputs: pages that these read, as they are before ``before``; as long as the page lives, if nobody will need it.
        extra_bytes: by which the intermediate results, while they are there, exceed the page.
    """

    page: int
    after: int
    before: int
    ops: tuple[int, ...]
    inputs: tuple[int, ...]
    extra_bytes: int


@dataclass(frozen=True)
class Plan:
    """Which pages of a step are away, and when.

    Attributes:
        trace: the step; pages are named by their numbers there.
        limit: bytes that it keeps to.
        evicts: for each operation, the pages that may be evicted after it, since they are away until their next use.
        fetches: for each operation, the pages whose fetch may start when it begins, the first needed first.
        away: pages that are away when the step begins.
        known: numbers of pages that live from step to step, by their id.
        recomputations: pages that are not evicted but recomputed.
        waits_for_evictions: whether the program waits for each copy that the plan starts from the device.
    """

    trace: Trace
    limit: int
    evicts: tuple[tuple[int, ...], ...]
    fetches: tuple[tuple[int, ...], ...]
    away: frozenset[int]
    known: Mapping[PageId, int]
    recomputations: tuple[Recomputation, ...] = ()
    waits_for_evictions: bool = False

    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """The old name of ``evicts``."""
        warn_of_old_name(self, "leaves", "evicts")
        return self.evicts

    @property
    def comes(self) -> tuple[tuple[int, ...], ...]:
        """The old name of ``fetches``."""
        warn_of_old_name(self, "comes", "fetches")
        return self.fetches

    @property
    def remade(self) -> tuple[Recomputation, ...]:
        """The old name of ``recomputations``."""
        warn_of_old_name(self, "remade", "recomputations")
        return self.recomputations

    def moves_before(self, position: int) -> bool:
        """Whether pages move when the operation at ``position`` begins."""
        are_due = position > 0 and (self.evicts[position - 1] or position - 1 in self.dropped_after)
        return bool(are_due or self.fetches[position]) or position in self.recomputed_before

    @cached_property
    def moves_anything(self) -> bool:
        """Whether any page is away at any time."""
        return bool(self.away or self.recomputations or any(self.evicts))

    @cached_property
    def repeated_ops(self) -> frozenset[int]:
        """The operations that recomputations run again."""
        return frozenset(op for recomputation in self.recomputations for op in recomputation.ops)

    @cached_property
    def numbers(self) -> Mapping[Recomputation, int]:
        """Where each of ``recomputations`` stands there."""
        return {recomputation: number for number, recomputation in enumerate(self.recomputations)}

    @cached_property
    def dropped_after(self) -> Mapping[int, tuple[Recomputation, ...]]:
        """``recomputations``, by the operation after which the page is dropped."""
        found: dict[int, list[Recomputation]] = defaultdict(list)
        for recomputation in self.recomputations:
            found[recomputation.after].append(recomputation)
        return {op: tuple(its) for op, its in found.items()}

    @cached_property
    def recomputed_before(self) -> Mapping[int, tuple[Recomputation, ...]]:
        """``recomputations``, by the operation that needs the page again."""
        found: dict[int, list[Recomputation]] = defaultdict(list)
        for recomputation in self.recomputations:
            found[recomputation.before].append(recomputation)
        return {op: tuple(its) for op, its in found.items()}
