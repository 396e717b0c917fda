"""Runs operations in pieces that need more than the limit by themselves (N27)."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from torch_lms.capture.page_owner import RawUse
from torch_lms.capture.pieces import copies, elements, losses, proof, slabs
from torch_lms.capture.pieces.call import as_results, bind, of_one_index, written_by
from torch_lms.capture.pieces.job import NOT_CUT, Execute, Job
from torch_lms.capture.pieces.owner import TileOwner
from torch_lms.capture.pieces.table import TileTable
from torch_lms.capture.schema import OpInfo
from torch_lms.capture.sizes import on_meta, result_device
from torch_lms.capture.tensors import is_bare, untyped_storage
from torch_lms.units import format_bytes

_log = logging.getLogger(__name__)

_MIN_PIECE = 64
"""Limits below so many times the size of the smallest page leave no room for pieces that are pages."""

_SEEDED_BY_DROPOUT = frozenset({"aten::_scaled_dot_product_flash_attention_for_cpu"})
"""Operators that draw random numbers for dropout alone. The table of cuts has them without."""

_MAX_ASKED = 10_000
"""Keys that are remembered: a program whose shapes never repeat must not grow."""


class Room(NamedTuple):
    """Bytes for one operation: how many it should touch at ``most``, and ``limit``, beyond which it must not go."""

    most: int
    limit: int


class Pieces:
    """Operations that need more than the limit by themselves, as far as pieces give the same bits.

    Args:
        owner: of the pages.
        table: of what is in tiles.
        execute: runs an operation that is a part of another.
        proofs: what has been tried so far.
        is_bare: whether a tensor is its storage, size, strides, offset and type, and nothing else.

    Attributes:
        operations: how many ran in pieces.
        unproved: operators that ran as a whole, since there was no memory to try whether pieces give the same bits.
        inexact: operators that ran in pieces though these were not seen to give the same bits.
    """

    def __init__(
        self,
        owner: TileOwner,
        table: TileTable,
        execute: Execute,
        proofs: proof.Proofs,
        is_bare: Callable[[torch.Tensor], bool] = is_bare,
    ) -> None:
        self.operations = 0
        self.unproved: set[str] = set()
        self.inexact: set[str] = set()
        self._owner = owner
        self._table = table
        self._execute = execute
        self._proofs = proofs
        self._asked: set[str] = set()
        self.is_bare = is_bare

    def reset_counts(self) -> None:
        """Start counting anew."""
        self.operations = 0
        self.unproved.clear()
        self.inexact.clear()

    def run(
        self,
        func: Any,
        info: OpInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        room: Room,
        new_bytes: int,
        shape_only: int = -1,
    ) -> Any:
        """Run an operation in pieces, if it needs more than ``room`` and can be cut; else give ``NOT_CUT``.

        Args:
            new_bytes: that it creates.
            shape_only: position of an argument of which nothing but the shape is asked; -1 if there is none.
        """
        if (
            (info.seeded and info.packet not in _SEEDED_BY_DROPOUT)
            or info.collective
            or not info.is_simple
            or self._table.is_working
        ):
            return NOT_CUT
        if room.limit < _MIN_PIECE * self._owner.min_size:
            return NOT_CUT
        tensors = [leaf for leaf in pytree.arg_tree_leaves(*args, **kwargs) if isinstance(leaf, torch.Tensor)]
        if not (tensors or info.packet in copies.CONSTANTS) or not all(map(self.is_bare, tensors)):
            return NOT_CUT
        target = result_device(args, kwargs)
        devices = {target, *(tensor.device for tensor in tensors if tensor.dim())}
        device = next((device for device in devices if device.type == self._owner.kind), None)
        if device is None or not self._table.can_alias(device) or (len(devices) > 1 and info.packet != copies.TO):
            return NOT_CUT
        unneeded = args[shape_only] if shape_only >= 0 else None
        storages = {untyped_storage(t) for t in tensors if t.device == device and t is not unneeded}
        needed = sum(map(self._room_for, storages)) + new_bytes
        if needed <= room.most:
            return NOT_CUT
        run = _way_of(func, info)
        if run is None:
            return NOT_CUT
        try:
            bound = bind(func, args, kwargs)
            given = of_one_index(func, bound) if info.list_args else bound
            if given is None:
                return NOT_CUT
            if len(devices) > 1:
                given["non_blocking"] = False  # pieces are copied on as soon as they are there
            if func._schema.returns:
                likes = as_results(on_meta(func, info, args, kwargs))
            else:
                likes = [torch.empty_like(tensor, device="meta") for tensor in written_by(func, given).values()]
        except Exception:  # no meta kernel, or an error that the operator itself will raise
            return NOT_CUT
        is_too_large = needed > room.limit
        holds = partial(self.holds, info.packet if is_too_large else "", device, tensors)
        with self._table.working():
            kind, least = self._owner.kind, self._owner.min_size
            job = Job(self._table, func, info, given, likes, target, kind, *room, least, self._execute, holds)
            result = run(job)
            if result is NOT_CUT and is_too_large and room.most < room.limit:
                job = replace(job, most=room.limit)
                result = run(job)
            if result is NOT_CUT and is_too_large and not self._must_be_exact():
                result = run(replace(job, holds=lambda *_: True))
                self.inexact |= set() if result is NOT_CUT else {info.packet}
        self.operations += result is not NOT_CUT
        return result

    def _must_be_exact(self) -> bool:
        return self._proofs.are_needed or torch.are_deterministic_algorithms_enabled()

    def _room_for(self, storage: torch.UntypedStorage) -> int:
        """Bytes that it takes to have ``storage`` as a whole: what is in tiles is there twice while it is assembled."""
        return self._table.size_of(storage) * (2 if storage in self._table else 1)

    def holds(
        self,
        packet: str,
        device: torch.device,
        tensors: list[torch.Tensor],
        key: str,
        nbytes: int,
        attempt: Callable[[], bool],
    ) -> bool:
        """See ``Holds``.

        Args:
            packet: the operator, which needs more than the limit; "" if it would rather run in pieces, and need not.
        """
        known = self._proofs.known(key)
        if known is not None:
            return known
        if not packet and not self._is_asked_again(key):
            return False
        if nbytes and nbytes > self._owner.free_bytes(device):
            self._tell_unproved(packet, nbytes)
            return False
        used = self._owner.entries_of(tensor for tensor in tensors if not proof.is_drawn(tensor)) if nbytes else []
        try:
            self._owner.begin(RawUse("a proof", is_regular=False), used, 0)
            try:
                with self._owner.unseen():
                    known = attempt()
            finally:
                self._owner.end(used, [])
        except Exception as error:
            if self._owner.is_out_of_memory(error):
                self._tell_unproved(packet, nbytes)
                return False
            known = False  # the operator refuses such pieces, or such numbers
        self._proofs.remember(key, known)
        return known

    def _is_asked_again(self, key: str) -> bool:
        """Whether ``key`` came before. Sizes that depend on data never do, and a try takes longer than it saves."""
        if len(self._asked) >= _MAX_ASKED:
            self._asked.clear()
        is_known = key in self._asked
        self._asked.add(key)
        return is_known

    def _tell_unproved(self, packet: str, nbytes: int) -> None:
        if packet and self._proofs.are_needed and packet not in self.unproved:
            self.unproved.add(packet)
            _log.warning(
                "%s runs as a whole, beyond the limit: to try whether it gives the same bits in pieces takes %s, which "
                "are not there. What was tried is remembered: run the same once where there is more memory, with the "
                "same limit",
                packet,
                format_bytes(nbytes),
            )


def _way_of(func: Any, info: OpInfo) -> Callable[[Job], Any] | None:
    """How an operator is run in pieces; None if it cannot be."""
    if any(argument.is_out for argument in func._schema.arguments):
        return None
    if info.packet in copies.CONSTANTS:
        return copies.constant
    if info.packet in copies.PLACED:
        return copies.placed
    if info.packet in copies.JOINS:
        return copies.JOINS[info.packet]
    if info.packet in losses.LOSSES:
        return losses.run
    if info.list_args:
        return elements.run if info.packet.startswith(elements.OF_LISTS) else None
    if info.pointwise or info.packet in copies.COPIES or info.packet in elements.UNTAGGED:
        return elements.run
    return slabs.run if slabs.can_cut(info) else None
