"""Where in a tensor in tiles a view of it lies (N27)."""

import math
from collections.abc import Mapping

import torch

from torch_lms.capture.pieces.tiles import Grid, Range, Region, Tiles, even


class NotInTiles(ValueError):
    """A tensor shows what is in tiles in such a way that no tiles are to be found for it."""


class _Group:
    """Dimensions of the view, and those of the whole that have the same elements in the same order.

    Attributes:
        dims: of the view, the outermost first.
        bases: of the whole: number, first index, extent; the outermost first.
    """

    def __init__(self) -> None:
        self.dims: list[tuple[int, int]] = []
        self.bases: list[tuple[int, int, int]] = []

    @property
    def rest(self) -> int:
        """Elements for each index of the first of ``dims``."""
        return math.prod(size for _, size in self.dims[1:])

    @property
    def inner(self) -> int:
        """Elements for each index of the first of ``bases``."""
        return math.prod(extent for _, _, extent in self.bases[1:])

    def base_index(self, index: int) -> int:
        """In the first of ``bases``, where ``index`` in the first of ``dims`` is."""
        return self.bases[0][1] + index * self.rest // self.inner


class View:
    """A tensor that shows a part of another, which is in tiles: without gaps, in whatever shape.

    Attributes:
        is_all: whether it shows all of it.

    Raises:
        NotInTiles: ``tensor`` shows it in another way.
    """

    def __init__(self, tensor: torch.Tensor, tiles: Tiles) -> None:
        if tensor.dtype != tiles.dtype:
            raise NotInTiles
        self.is_all = tensor.nbytes == tiles.nbytes
        self._tiles = tiles
        self._sizes = tuple(tensor.shape)
        sorted_bases = [dim for dim in tiles.order if tiles.sizes[dim] > 1]
        firsts = _coordinates(int(tensor.storage_offset()), sorted_bases, tiles)
        extents = dict.fromkeys(sorted_bases, 1)
        self._dims = sorted(
            (dim for dim in range(tensor.dim()) if tensor.shape[dim] > 1), key=lambda dim: -tensor.stride()[dim]
        )
        for dim in self._dims:
            _extend(extents, firsts, sorted_bases, tiles, tensor.shape[dim], tensor.stride(dim))
        if math.prod(extents.values()) != tensor.numel():
            raise NotInTiles
        self._region = {dim: (firsts[dim], firsts[dim] + extents[dim]) for dim in sorted_bases}
        self._groups = _groups(
            [(dim, tensor.shape[dim]) for dim in self._dims],
            [(dim, firsts[dim], extents[dim]) for dim in sorted_bases if extents[dim] > 1],
        )

    @classmethod
    def or_none(cls, tensor: torch.Tensor, tiles: Tiles | None) -> "View | None":
        """None if ``tensor`` is in no tiles, or not to be found there."""
        try:
            return None if tiles is None else cls(tensor, tiles)
        except NotInTiles:
            return None

    def step(self, dim: int) -> int:
        """What bounds along ``dim`` have to be multiples of; 0 if it cannot be cut there."""
        group = self._group(dim)
        return 0 if group is None else group.inner // math.gcd(group.inner, group.rest)

    def bounds(self, dim: int) -> tuple[int, ...]:
        """Where tiles begin along ``dim``, and its size; nothing between if it cannot be cut there."""
        size = self._sizes[dim]
        group = self._group(dim)
        if group is None:
            return (0, size)
        base, first, extent = group.bases[0]
        inside = [(bound - first) * group.inner for bound in self._tiles.bounds[base] if first < bound < first + extent]
        if any(flat % group.rest for flat in inside):
            return (0, size)
        return (0, *(flat // group.rest for flat in inside), size)

    def refine_into(self, dim: int, parts: int, least: int) -> None:
        """Have tiles that are not cut along ``dim`` cut into so many parts, or as many as have ``least`` bytes each."""
        parts = min(parts, self._tiles.tile_nbytes // least)
        group = self._group(dim)
        if parts > 1 and group is not None and len(self.bounds(dim)) <= 2:
            bounds = even(self._sizes[dim], parts, self.step(dim))
            self._tiles.refine(group.bases[0][0], tuple(map(group.base_index, bounds)))

    def tile_nbytes(self, parts: int) -> int:
        """Of a tile, on the average, if each is cut into so many."""
        return self._tiles.tile_nbytes // parts

    def grid(self) -> Grid:
        """The same of all dimensions."""
        return [self.bounds(dim) for dim in range(len(self._sizes))]

    def _group(self, dim: int) -> _Group | None:
        """That begins with ``dim``."""
        return next((group for group in self._groups if group.dims[0][0] == dim), None)

    def _locate(self, cuts: Mapping[int, Range]) -> Region:
        """Where in the whole the part of the view between ``cuts`` is."""
        region = dict(self._region)
        for group in self._groups:
            cut = cuts.get(group.dims[0][0])
            if cut is not None:
                region[group.bases[0][0]] = (group.base_index(cut[0]), group.base_index(cut[1]))
        return tuple(region.get(dim, (0, 1)) for dim in range(len(self._tiles.sizes)))

    def read(self, cuts: Mapping[int, Range]) -> torch.Tensor:
        """The part between ``cuts``, by dimensions of the view."""
        shape = [cuts[dim][1] - cuts[dim][0] if dim in cuts else size for dim, size in enumerate(self._sizes)]
        found = self._tiles.read(self._locate(cuts)).permute(self._tiles.order)
        found = found.reshape([shape[dim] for dim in self._dims])
        if not self._dims:
            return found.reshape(shape)
        places = sorted(range(len(self._dims)), key=lambda place: self._dims[place])
        return found.permute(places).reshape(shape)

    def write(self, cuts: Mapping[int, Range], value: torch.Tensor) -> None:
        """Let ``value`` be there, if ``read`` gave a copy."""
        region = self._locate(cuts)
        order = self._tiles.order
        shape = [region[dim][1] - region[dim][0] for dim in order]
        others = [dim for dim in range(value.dim()) if dim not in self._dims]
        sorted_value = value.permute([*self._dims, *others]).reshape(shape)
        self._tiles.write(region, sorted_value.permute(sorted(range(len(order)), key=order.__getitem__)))


def _coordinates(offset: int, bases: list[int], tiles: Tiles) -> dict[int, int]:
    found = {}
    for dim in bases:
        found[dim], offset = divmod(offset, tiles.strides[dim])
    return found


def _extend(
    extents: dict[int, int], firsts: dict[int, int], bases: list[int], tiles: Tiles, size: int, stride: int
) -> None:
    """Count a dimension of the view, of that ``size`` and ``stride``, to those of the whole."""
    for place, base in enumerate(bases):
        step, rest = divmod(stride, tiles.strides[base])
        if step == 0:
            continue
        if rest:
            raise NotInTiles
        extent = tiles.sizes[base]
        if firsts[base] + extents[base] + (size - 1) * step <= extent:
            extents[base] += (size - 1) * step
            return
        if step != 1 or firsts[base] or extents[base] != 1 or size % extent or place == 0:
            raise NotInTiles
        extents[base] = extent
        outer = bases[place - 1]
        _extend(extents, firsts, bases, tiles, size // extent, tiles.strides[outer])
        return
    raise NotInTiles


def _groups(dims: list[tuple[int, int]], bases: list[tuple[int, int, int]]) -> list[_Group]:
    """Which of them have the same elements."""
    groups = []
    dims, bases = list(dims), list(bases)
    while dims:
        group = _Group()
        ours, theirs = 1, 1
        while ours != theirs or ours == 1:
            if not (dims if ours <= theirs else bases):
                raise NotInTiles
            if ours <= theirs:
                group.dims.append(dims.pop(0))
                ours *= group.dims[-1][1]
            else:
                group.bases.append(bases.pop(0))
                theirs *= group.bases[-1][2]
        groups.append(group)
    return groups
