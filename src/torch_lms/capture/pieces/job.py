"""One operation that is to be run in pieces, and what it takes to do so (N27)."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from torch_lms.capture.pieces.call import unbind
from torch_lms.capture.pieces.results import WHOLE, Gathered
from torch_lms.capture.pieces.table import TileTable
from torch_lms.capture.pieces.tiles import Grid, Range, Region, as_dense, at_most, is_dense, order_of, part
from torch_lms.capture.pieces.views import View
from torch_lms.capture.schema import OpInfo
from torch_lms.capture.tensors import untyped_storage

_PARTS = 4
"""Of what an operation may touch. A piece of single elements touches no more, and results of no more are no tiles."""

_MAX_TILES = 64
"""So many may a page be cut into, where larger ones would suffice for the pieces."""

NOT_CUT: Any = object()
"""Given instead of a result where an operation is not run in pieces."""

Execute = Callable[[Any, OpInfo, tuple[Any, ...], dict[str, Any], int], Any]
"""Runs an operation that is a part of another. Last, the position of an argument that is a placeholder, or -1."""

Holds = Callable[[str, int, Callable[[], bool]], bool]
"""Whether pieces may be used: what is to be proved, the bytes that takes, and how it is tried."""


@dataclass(frozen=True, slots=True)
class Job:
    """One call of an operator.

    Attributes:
        table: of what is in tiles.
        func: the operator, and ``info`` about it.
        given: its arguments by name.
        likes: its results, on the meta device.
        device: of the results. Arguments are elsewhere only if they are copied.
        kind: of devices whose tensors may be in tiles.
        most: bytes that it should not exceed, and ``limit``, those that it must not.
        least: bytes from which on a tensor is a page: smaller tiles would never leave.
        execute: see ``Execute``.
        holds: see ``Holds``.
    """

    table: TileTable
    func: Any
    info: OpInfo
    given: dict[str, Any]
    likes: list[Any]
    device: torch.device
    kind: str
    most: int
    limit: int
    least: int
    execute: Execute
    holds: Holds

    @property
    def target(self) -> int:
        """Bytes that a piece should touch."""
        return self.most // _PARTS

    @property
    def made_nbytes(self) -> int:
        """Of its results."""
        return sum(like.nbytes for like in self.likes if isinstance(like, torch.Tensor))

    def gathered(self) -> list[Gathered]:
        """To gather pieces of its results in."""
        most = self.target if self.device.type == self.kind else WHOLE
        with self.table.seen():
            return [Gathered(like, self.device, most, self.table.size_of) for like in self.likes]

    def results(self, gathered: list[Gathered]) -> Any:
        """As the operator would give them."""
        results = [result.take(self.table.in_tiles) for result in gathered]
        if self.info.list_args:
            return results
        return tuple(results) if len(self.func._schema.returns) > 1 else results[0]

    def run_piece(self, taken: Mapping[str, Any], placeholder: str = "") -> Any:
        """Run a piece.

        Args:
            taken: arguments instead of the whole's.
            placeholder: the name of one of which nothing but the shape is asked.
        """
        args, kwargs = unbind(self.func, {**self.given, **taken})
        place = list(self.given).index(placeholder) if placeholder else -1
        return self.execute(self.func, self.info, args, kwargs, place)


# -- what belongs to a region of the result --------------------------------------------------------------------------


def slabs_of(tensor: torch.Tensor, most: int, multiple: int = 1) -> Grid:
    """Bounds in each dimension, so that pieces have at most ``most`` elements, and are in one piece in memory.

    Args:
        tensor: what is cut; only its shape and strides count.
        most: see above.
        multiple: of which the elements of a piece are one, if that can be. What is left over, the last piece has.
    """
    bounds: Grid = [(0, size) for size in tensor.shape]
    left = tensor.numel()
    for dim in order_of(tensor):
        size = tensor.shape[dim]
        if left <= most or size == 0:
            break
        left //= size
        bounds[dim] = at_most(size, max(1, most // left), multiple // math.gcd(multiple, left))
    return bounds


def longest(grid: Grid) -> int:
    """The most elements between bounds of ``grid``."""
    return math.prod(max(last - first for first, last in pairwise(bounds)) for bounds in grid)


def small_grid(grid: Grid, order: Iterable[int], most: int, step_of: Callable[[int], int] = lambda _: 1) -> Grid:
    """``grid``. Where more than ``most`` elements are between its bounds, it is also cut where it is not and can be.

    Args:
        grid: see above.
        order: dimensions that may be cut, the first ones rather.
        most: see above.
        step_of: what bounds along a dimension have to be multiples of; 0 if it cannot be cut there.
    """
    found = list(grid)
    for dim in order:
        length = longest(found)
        if length <= most:
            break
        step, size = step_of(dim), grid[dim][-1]
        if step and len(grid[dim]) <= 2:
            found[dim] = at_most(size, max(step, most * size // length // step * step), step)
    return found


def taken_there(tensor: torch.Tensor, view: View | None, region: Region, in_place: bool = False) -> torch.Tensor:
    """What of an argument belongs to ``region`` of the result, to whose shape it may be expanded.

    Args:
        view: where it is in its tiles; None if it is in none.
        in_place: whether it is written, so that no copy will do.
    """
    cuts = cuts_for(tensor, region)
    if view is not None:
        return view.read(cuts)
    piece = part(tensor, tuple(cuts.get(dim, (0, size)) for dim, size in enumerate(tensor.shape)))
    return piece if in_place or not is_dense(tensor) else as_dense(piece, order_of(tensor))


def cuts_for(tensor: torch.Tensor, region: Region) -> dict[int, Range]:
    """The same by dimensions of the argument, as far as it is cut there."""
    offset = len(region) - tensor.dim()
    cuts = {}
    for dim, size in enumerate(tensor.shape):
        first, last = region[dim + offset]
        if size > 1 and last - first < size:
            cuts[dim] = (first, last)
    return cuts


def put_in_tiles(
    job: Job, whole: Mapping[str, torch.Tensor], other_nbytes: int, grid_of: Callable[[str], Grid | None], most: int
) -> dict[str, View]:
    """Where arguments are in tiles that were in none, and would be there as wholes for each piece: those larger than
    ``most``, and the largest, as long as all together exceed the limit.

    Args:
        job: the operation.
        whole: arguments that are in no tiles.
        other_nbytes: what a piece touches besides.
        grid_of: tells how to cut an argument; None if it must stay whole.
        most: bytes that one may have.
    """
    nbytes = {name: job.table.size_of(untyped_storage(tensor)) for name, tensor in whole.items()}
    left = job.limit - other_nbytes - sum(nbytes.values())
    views = {}
    for name in sorted(whole, key=lambda name: -nbytes[name]):
        is_too_large = left < 0 or nbytes[name] > most
        grid = grid_of(name) if is_too_large else None
        view = None if grid is None else job.table.tile(whole[name], _beside_it(job, whole[name], grid))
        if view is not None:
            views[name] = view
            left += nbytes[name]
    return views


def _beside_it(job: Job, whole: torch.Tensor, grid: Grid) -> Grid:
    """``grid``, of tiles so small that there is room for one beside ``whole``, as far as these are not too many."""
    most = max(job.limit - whole.nbytes, whole.nbytes // _MAX_TILES, job.least) // whole.itemsize
    return small_grid(grid, order_of(whole), most)


def refine(view: View, tensor: torch.Tensor, grid: Grid, least: int) -> None:
    """Cut the tiles of an argument along what ``grid`` cuts and they do not, as far as they are pages then. Else each
    would come for each piece.
    """
    offset = len(grid) - tensor.dim()
    for dim, size in enumerate(tensor.shape):
        if size > 1:
            view.refine_into(dim, len(grid[dim + offset]) - 1, least)


def can_be_read(view: View, tensor: torch.Tensor, grid: Grid) -> bool:
    """Whether all that belongs to the pieces between the bounds of ``grid`` can be taken from tiles."""
    offset = len(grid) - tensor.dim()
    for dim, size in enumerate(tensor.shape):
        bounds = grid[dim + offset]
        step = view.step(dim)
        if size > 1 and len(bounds) > 2 and (step == 0 or any(bound % step for bound in bounds[:-1])):
            return False
    return True
