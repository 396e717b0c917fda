"""Operations that need more than the limit by themselves, or have arguments in tiles (N10, N27)."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_lms.capture import split
from torch_lms.capture.inside import Inside
from torch_lms.capture.pieces.job import NOT_CUT, Execute
from torch_lms.capture.pieces.run import Pieces, Room
from torch_lms.capture.pieces.table import TileTable
from torch_lms.capture.placeholder import for_gradient_of_input
from torch_lms.capture.schema import OpInfo, describe
from torch_lms.capture.split import RUNS
from torch_lms.capture.tensors import untyped_storage

_SHARE = 2 / 3
"""Of the limit. With all of it, simulated steps of a 3D U-Net at a quarter of its demand took a third longer (H200)."""


class LargeOperations:
    """How such operations are run: in pieces, or split. ``NOT_CUT`` instead of a result where there is no way.

    An operation may touch all of the limit. But where one of the step, or of the step before, needs more than that, or
    finds tiles, room is always short. There it may touch ``_SHARE``, so that what comes next, and what leaves, has room
    beside it.

    Args:
        tiles: which tensors are in tiles.
        pieces: runs operations in pieces.
        seen: inside it, operations are seen as any of the program's.
        nbytes: of the pages of some values.
        new_bytes: that a call will create.
        execute: runs a call of an operator that does a part of the work of another.
        is_squeezed: whether the step before had such an operation.
    """

    def __init__(
        self,
        tiles: TileTable,
        pieces: Pieces,
        seen: Callable[[], AbstractContextManager[Any]],
        nbytes: Callable[[list[Any]], int],
        new_bytes: Callable[[Any, OpInfo, tuple[Any, ...], dict[str, Any]], int],
        execute: Execute,
        is_squeezed: bool = False,
    ) -> None:
        self._tiles = tiles
        self._pieces = pieces
        self._seen = seen
        self._nbytes = nbytes
        self._new_bytes = new_bytes
        self._execute = execute
        self._was_squeezed = is_squeezed
        self._is_squeezed = False
        self._keeps_whole = Inside()

    def kept_whole(self) -> AbstractContextManager[None]:
        """Inside, this thread's operations run as a whole: their results may be reached by addresses."""
        return self._keeps_whole.block()

    def step_ended(self) -> None:
        """The step is over."""
        self._was_squeezed, self._is_squeezed = self._is_squeezed, False

    def is_large(self, info: OpInfo, nbytes: int, limit: int) -> bool:
        """Whether an operation that is about to run, and needs ``nbytes``, is one of them.

        Args:
            info: about its operator.
            nbytes: of the pages that it uses and creates.
            limit: bytes that pages may occupy.
        """
        if info.list_args:
            return nbytes > limit // RUNS
        if nbytes > limit:
            self._is_squeezed = True
        return nbytes > self.most_at_once(limit)

    def most_at_once(self, limit: int) -> int:
        """Bytes that an operation may need, if it takes no lists, and is not to be one of them."""
        return self._room(limit).most

    def _room(self, limit: int) -> Room:
        return Room(int(limit * _SHARE) if self._was_squeezed or self._is_squeezed else limit, limit)

    def run(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> Any:
        """Run one of them."""
        if (result := self._in_pieces(func, info, args, kwargs, limit)) is not NOT_CUT:
            return result
        leaves = pytree.arg_tree_leaves(*args, **kwargs)
        are_bare = all(self._pieces.is_bare(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor))
        if not are_bare and not info.list_args:
            return NOT_CUT
        program = split.program(func, info, args, kwargs, self._nbytes, _most_of_run(info, limit))
        return NOT_CUT if program is None else self._perform(program, limit)

    def run_on_tiles(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> Any:
        """Run an operation of which some arguments are in tiles."""
        self._is_squeezed = True
        if info.list_args:
            program = split.program(func, info, args, kwargs, self._sizes_of, _most_of_run(info, limit))
        else:
            program = split.gradients(func, info, args, kwargs)
        if program is not None:
            return self._perform(program, limit)
        return self._in_pieces(func, info, args, kwargs, limit)

    def _in_pieces(
        self,
        func: Any,
        info: OpInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        limit: int,
        shape_only: int = -1,
    ) -> Any:
        if self._keeps_whole.now:
            return NOT_CUT
        new_bytes = self._new_bytes(func, info, args, kwargs)
        return self._pieces.run(func, info, args, kwargs, self._room(limit), new_bytes, shape_only)

    def _sizes_of(self, tensors: list[Any]) -> int:
        """Bytes of the storages of ``tensors``, wherever they are."""
        storages = {untyped_storage(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)}
        return sum(map(self._tiles.size_of, storages))

    def _perform(self, program: split.Program, limit: int) -> Any:
        def run(instruction: split.Instruction) -> Any:
            if isinstance(instruction, split.Part):
                return self._run_part(instruction, limit)
            with self._seen():  # an operation of its own
                return instruction.run()

        return split.perform(program, run)

    def _run_part(self, part: split.Part, limit: int) -> Any:
        func, args, kwargs, place = part.func, part.args, part.kwargs, part.shape_only
        info = describe(func)
        if (result := self._in_pieces(func, info, args, kwargs, limit, place)) is not NOT_CUT:
            return result
        if not info.writes:  # else the copies would be written
            args = self._tiles.parts_as_copies(args)
        if place >= 0 and (placeholder := for_gradient_of_input(args)) is not None:
            args = (*args[:place], placeholder, *args[place + 1 :])
            return self._execute(func, info, args, kwargs, place)
        return self._execute(func, info, args, kwargs, -1)


def _most_of_run(info: OpInfo, limit: int) -> int:
    """Bytes that a run of the lists of an operator may touch."""
    most = limit // RUNS if info.list_args else limit
    return most if info.writes else most // 2  # else its results need as much again
