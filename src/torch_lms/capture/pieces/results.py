"""Gathers what the pieces of an operation gave: small results into one tensor, large ones as tiles (N27)."""

from collections.abc import Callable
from typing import Any

import torch

from torch_lms.capture.pieces.tiles import (
    Region,
    Tiles,
    as_dense,
    copied,
    dense_strides,
    has_order,
    is_dense,
    order_of,
    part,
)
from torch_lms.capture.tensors import untyped_storage

InTiles = Callable[[torch.Tensor, Tiles], torch.Tensor]
"""Makes a tensor, as the one on the meta device is, whose bytes are in these tiles."""


WHOLE = 1 << 62
"""Bytes: no result is larger."""


class Gathered:
    """One result of an operation, whose pieces come one by one.

    Args:
        like: the whole, on the meta device; None for a result that there is none of. Kernels choose the order of its
            dimensions in memory, and do not always tell: it is that of the pieces.
        device: where it is.
        most: bytes up to which it is one tensor.
        size_of: the bytes of a storage, wherever they are.
    """

    def __init__(
        self, like: Any, device: torch.device, most: int, size_of: Callable[[torch.UntypedStorage], int]
    ) -> None:
        self._like = like
        self._device = device
        self._most = most
        self._size_of = size_of
        self._order: tuple[int, ...] = ()
        self._has_begun = False
        self._cells: dict[Region, torch.Tensor] = {}
        self._whole: Any = None
        self._end = 0

    def append(self, piece: Any) -> None:
        """The next one, along the one dimension in which it is smaller than the whole."""
        if not isinstance(piece, torch.Tensor) or piece.numel() == 0:
            self._whole = piece
            return
        dims = [dim for dim, size in enumerate(self._like.shape) if piece.shape[dim] != size]
        region = [(0, size) for size in self._like.shape]
        if dims:
            (dim,) = dims
            region[dim] = (self._end, self._end + piece.shape[dim])
            self._end = region[dim][1]
        self.put(tuple(region), piece)

    def put(self, region: Region, piece: torch.Tensor) -> None:
        """What is in ``region``."""
        if not self._has_begun:
            self._begin(piece)
        if self._whole is not None:
            part(self._whole, region).copy_(piece)
            return
        cell = as_dense(piece, self._order)
        is_own = is_dense(cell) and self._size_of(untyped_storage(cell)) == cell.numel() * cell.itemsize
        self._cells[region] = cell if is_own else copied(piece, self._order)

    def _begin(self, piece: torch.Tensor) -> None:
        like = self._like
        order = order_of(like)
        if not has_order(piece, order):
            order = order_of(piece)
            self._like = torch.empty_strided(
                like.shape, dense_strides(like.shape, order), dtype=like.dtype, device="meta"
            )
        if like.numel() * like.itemsize <= self._most:
            self._whole = torch.empty_strided(like.shape, self._like.stride(), dtype=like.dtype, device=self._device)
        self._order = order
        self._has_begun = True

    def take(self, in_tiles: InTiles) -> Any:
        """The result."""
        if not self._cells:
            return self._whole
        bounds = []
        for dim in range(self._like.dim()):
            bounds.append(tuple(sorted({bound for region in self._cells for bound in region[dim]})))
        cells = {
            tuple(bounds[dim].index(first) for dim, (first, _) in enumerate(region)): cell
            for region, cell in self._cells.items()
        }
        return in_tiles(self._like, Tiles(self._like, self._device, bounds, cells))
