"""The bytes of one storage in tiles: small tensors, each of which is a page of its own (N27)."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise, product

import torch

from torch_lms.capture.tensors import misalignment, untyped_storage
from torch_lms.errors import InvariantError

Range = tuple[int, int]
"""From the first index to the one after the last."""

Region = tuple[Range, ...]
"""A range of each dimension."""

Grid = list[tuple[int, ...]]
"""For each dimension the indices at which tiles or pieces begin, and its size at last."""


_MAX_COUNTS = 1024
"""So many parts are looked for, at most, that are all equal."""


def regions_of(grid: Grid) -> list[Region]:
    """What is between the bounds of ``grid``; the last dimension changes first."""
    return list(product(*map(pairwise, grid)))


def dense_strides(shape: Iterable[int], order: Iterable[int]) -> tuple[int, ...]:
    """Strides of a tensor without gaps. ``order``: its dimensions, the outermost first."""
    sizes = tuple(shape)
    strides = [0] * len(sizes)
    step = 1
    for dim in reversed(tuple(order)):
        strides[dim] = step
        step *= max(1, sizes[dim])
    return tuple(strides)


def order_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Its dimensions by their strides, the outermost first."""
    return tuple(sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride()[dim], -tensor.shape[dim], dim)))


def has_order(tensor: torch.Tensor, order: tuple[int, ...]) -> bool:
    """Whether it has no gaps, and its dimensions are in that ``order``; those of size 1 may be anywhere."""
    strides = dense_strides(tensor.shape, order)
    triples = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return all(stride == dense or size <= 1 for size, stride, dense in triples)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether it shows a storage's bytes from the first on without gaps, each once."""
    return tensor.storage_offset() == 0 and has_order(tensor, order_of(tensor))


def as_dense(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """``tensor``, or a copy of it, without gaps and in that ``order`` of dimensions.

    Kernels choose how they read memory by the strides of dimensions of size 1, too.
    """
    strides = dense_strides(tensor.shape, order)
    if tensor.stride() == strides:
        return tensor
    return tensor.as_strided(tensor.shape, strides) if has_order(tensor, order) else copied(tensor, order)


def aligned(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The same, that also begins where memory of its own would, as far as bits depend on that: MKL sums products in
    another order where a matrix begins at no multiple of 16 bytes.
    """
    dense = as_dense(tensor, order)
    return copied(dense, order) if misalignment(dense) else dense


def copied(view: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """A copy without gaps, with memory of its own: by one operation, which may be repeated to recompute it."""
    copy = view.permute(order).clone(memory_format=torch.contiguous_format)
    return copy.permute(sorted(range(len(order)), key=order.__getitem__))


def part(tensor: torch.Tensor, region: Region) -> torch.Tensor:
    """The view of that ``region``."""
    for dim, (first, last) in enumerate(region):
        if last - first < tensor.shape[dim]:
            tensor = tensor.narrow(dim, first, last - first)
    return tensor


def even(size: int, count: int, step: int) -> tuple[int, ...]:
    """Bounds of ``count`` parts of ``size``, or fewer: multiples of ``step``."""
    length = max(step, -(-size // (count * step)) * step)
    return (*range(0, size, length), size)


def at_most(size: int, longest: int, step: int = 1) -> tuple[int, ...]:
    """Bounds of equal parts of ``size``, as few as can be, but of half of ``longest`` at least; of parts that are about
    equal, where there are no such. Equal ones meet those of tensors that have the same elements in another shape.
    """
    fewest = -(-size // max(step, longest // step * step))
    for count in range(fewest, min(2 * fewest, _MAX_COUNTS) + 1):
        length, rest = divmod(size, count)
        if not rest and length % step == 0:
            return (*range(0, size, length), size)
    return even(size, fewest, step)


class Tiles:
    """A tensor in a grid of tiles. Its methods copy by operations that are seen as any of the program's.

    Args:
        like: the whole; only its shape, strides and type count.
        device: of the tiles.
        bounds: where the tiles begin.
        cells: the tiles, by their places in the grid, without gaps and in the order of dimensions of the whole.

    Raises:
        InvariantError: ``bounds`` are of another shape.
    """

    def __init__(
        self,
        like: torch.Tensor,
        device: torch.device,
        bounds: Grid,
        cells: dict[tuple[int, ...], torch.Tensor],
    ) -> None:
        self.sizes = tuple(like.shape)
        if [(its[0], its[-1]) for its in bounds] != [(0, size) for size in self.sizes]:
            raise InvariantError(f"tiles of a tensor of shape {self.sizes} cannot have the bounds {bounds}")
        self.order = order_of(like)
        self.strides = like.stride()
        self.dtype = like.dtype
        self.device = device
        self.bounds = list(bounds)  # refined in its own way
        self.cells = cells

    @property
    def nbytes(self) -> int:
        """Of the whole."""
        return math.prod(self.sizes) * self.dtype.itemsize

    @property
    def tile_nbytes(self) -> int:
        """Of a tile, on the average."""
        return self.nbytes // math.prod(len(bounds) - 1 for bounds in self.bounds)

    def regions(self) -> Iterator[tuple[tuple[int, ...], Region]]:
        """The places of all tiles, and what of the whole they are."""
        places = product(*(range(len(bounds) - 1) for bounds in self.bounds))
        return zip(places, regions_of(self.bounds), strict=True)

    def read(self, region: Region) -> torch.Tensor:
        """What is there, without gaps: a tile, if it is one, else a copy."""
        touched = list(self._touched(region))
        if len(touched) == 1:
            place, own, _ = touched[0]
            return as_dense(part(self.cells[place], own), self.order)
        shape = tuple(last - first for first, last in region)
        whole = torch.empty_strided(shape, dense_strides(shape, self.order), dtype=self.dtype, device=self.device)
        for place, own, theirs in touched:
            part(whole, theirs).copy_(part(self.cells[place], own))
        return whole

    def write(self, region: Region, value: torch.Tensor) -> None:
        """Let ``value`` be there. One that ``read`` gave, and that is no copy, is there already."""
        for place, own, theirs in self._touched(region):
            cell = self.cells[place]
            if untyped_storage(cell) is not untyped_storage(value):
                part(cell, own).copy_(part(value, theirs))

    def _touched(self, region: Region) -> Iterator[tuple[tuple[int, ...], Region, Region]]:
        """The tiles that have a part in ``region``: their places, that part in the tile, and in the region."""
        spans = []
        for (first, last), bounds in zip(region, self.bounds, strict=True):
            span = []
            at = bisect_right(bounds, first) - 1
            while at < len(bounds) - 1 and bounds[at] < last:
                begin = max(first, bounds[at])
                end = min(last, bounds[at + 1])
                span.append((at, (begin - bounds[at], end - bounds[at]), (begin - first, end - first)))
                at += 1
            spans.append(span)
        for chosen in product(*spans):
            yield tuple(at for at, _, _ in chosen), tuple(own for _, own, _ in chosen), tuple(t for _, _, t in chosen)

    def refine(self, dim: int, bounds: tuple[int, ...]) -> None:
        """Cut every tile along ``dim``, too, so that none reaches over one of ``bounds``.

        The old ones are kept until all new ones are there: whatever fails before, nothing is lost.
        """
        wanted = tuple(sorted({*self.bounds[dim], *bounds}))
        if wanted == self.bounds[dim]:
            return
        cells: dict[tuple[int, ...], torch.Tensor] = {}
        for place, region in self.regions():
            cell = self.cells[place]
            first, last = region[dim]
            inside = [bound for bound in wanted if first <= bound <= last]
            for begin, end in pairwise(inside):
                index = wanted.index(begin)
                view = cell.narrow(dim, begin - first, end - begin)
                if len(inside) > 2:
                    view = copied(view, self.order)
                cells[(*place[:dim], index, *place[dim + 1 :])] = view
        self.cells = cells
        self.bounds[dim] = wanted

    def assemble(self, whole: torch.Tensor) -> None:
        """Copy all tiles to their places in ``whole``. Each is given up once it is there."""
        for place, region in self.regions():
            if place not in self.cells:
                continue  # an attempt that failed came as far
            part(whole, region).copy_(self.cells[place])
            del self.cells[place]
