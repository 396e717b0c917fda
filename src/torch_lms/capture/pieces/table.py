"""Which tensors are in tiles, and how they become whole once more (N27)."""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_lms.capture.call import Record
from torch_lms.capture.inside import Inside
from torch_lms.capture.page_owner import Use
from torch_lms.capture.pieces.owner import TileOwner
from torch_lms.capture.pieces.tiles import Grid, Tiles, copied, has_order, is_dense, order_of, part
from torch_lms.capture.pieces.views import View
from torch_lms.capture.registry import STORAGE, storage_nbytes
from torch_lms.capture.schema import describe
from torch_lms.capture.tensors import has_storage, is_unadorned, misalignment, set_view, span, untyped_storage

Alias = Callable[[torch.Tensor, tuple[int, ...], tuple[int, ...], int], torch.Tensor]
"""Gives another tensor of the same storage, of any size, strides and offset: the storage may be too small for it."""


def alias_by_memory(
    tensor: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> torch.Tensor:
    """See ``Alias``. Without the native interposer the storage is large enough for a moment, though nobody touches it.

    On a CPU that costs addresses, but no memory.
    """
    storage = untyped_storage(tensor)
    nbytes = storage_nbytes(storage)
    like = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device="meta")
    needed_bytes = (offset + span(like)) * tensor.element_size()
    # Resized, it moves, be it to the size that it has: what another thread has just brought back may be in use.
    is_too_small = nbytes < needed_bytes
    if is_too_small:
        STORAGE.resize_(storage, needed_bytes)
    is_inference = tensor.is_inference()  # as views of it are
    is_now = torch.is_inference_mode_enabled()
    with torch.inference_mode(is_inference) if is_inference != is_now else nullcontext():
        try:
            bare = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            made: torch.Tensor = set_view(bare, storage, offset, sizes, strides)
        finally:
            if is_too_small:
                STORAGE.resize_(storage, nbytes)
        made = made.conj() if tensor.is_conj() else made
        return torch._neg_view(made) if tensor.is_neg() else made


_EMPTY = torch.ops.aten.empty_strided.default


class _Assembling(Use):
    """A tensor in tiles becomes one whole. To repeat that is to allocate its memory: the copies of tiles follow."""

    name = "lms::assemble"
    is_repeatable = True

    def __init__(self, tiles: Tiles) -> None:
        self._tiles = tiles

    @property
    def device(self) -> torch.device:
        return self._tiles.device

    def capture_call(self, record: Record) -> None:
        """See ``Use``."""
        args = (self._tiles.sizes, self._tiles.strides)
        kwargs = {"dtype": self._tiles.dtype, "device": self._tiles.device}
        self.call = record(_EMPTY, describe(_EMPTY), args, kwargs, lambda _: None)

    def __str__(self) -> str:
        return "the use as a whole of a tensor that was computed in pieces"


class TileTable:
    """Tensors whose storage is empty, and whose bytes are in small pages.

    Who knows how to take tiles asks for a ``view_of`` them. Whoever else asks for such a storage has it ``assembled``.

    Args:
        owner: of the pages.
        seen: inside it, operations are seen as any of the program's.
        alias: see ``Alias``.
    """

    def __init__(self, owner: TileOwner, seen: Callable[[], AbstractContextManager[Any]], alias: Alias) -> None:
        self.seen = seen
        self._owner = owner
        self._alias = alias
        self._tiles: weakref.WeakKeyDictionary[torch.UntypedStorage, Tiles] = weakref.WeakKeyDictionary()
        self._moving: set[torch.UntypedStorage] = set()
        self._lock = threading.RLock()
        self._working = Inside()

    def can_alias(self, device: torch.device) -> bool:
        """Whether tensors of ``device`` can be made whose storage is empty, so that they can be in tiles."""
        return device.type == "cpu" or self._alias is not alias_by_memory

    def __bool__(self) -> bool:
        return bool(self._tiles or self._moving)

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        """Whether it is in tiles, or another thread takes it apart now, or puts it together."""
        if self._tiles and storage in self._tiles:
            return True
        return storage in self._moving and not self.is_working

    def are_among(self, tensors: Iterable[Any]) -> bool:
        """Whether any of ``tensors`` is."""
        return bool(self) and any(
            isinstance(tensor, torch.Tensor) and untyped_storage(tensor) in self for tensor in tensors
        )

    def size_of(self, storage: torch.UntypedStorage) -> int:
        """Bytes of ``storage``, wherever they are."""
        tiles = self._tiles.get(storage)
        if tiles is not None:
            return tiles.nbytes
        page = self._owner.find(storage)
        return storage_nbytes(storage) if page is None else page.nbytes

    @property
    def is_working(self) -> bool:
        """Whether the calling thread works for the table: what it does then is not cut once more."""
        return self._working.now

    @contextmanager
    def working(self) -> Iterator[None]:
        """Inside, the calling thread does."""
        with self._lock, torch.no_grad(), self._working.block():
            yield

    @property
    def settled(self) -> AbstractContextManager[Any]:
        """Inside, no other thread takes anything apart, or puts it together."""
        return self._lock

    @contextmanager
    def _moves(self, storage: torch.UntypedStorage) -> Iterator[None]:
        """Inside, the calling thread, which works for the table, does. Others that ask for ``storage`` wait."""
        self._moving.add(storage)
        try:
            yield
        finally:
            self._moving.discard(storage)

    # -- whole once more ---------------------------------------------------------------------------------------------

    def assemble(self, storage: torch.UntypedStorage) -> None:
        """Give ``storage`` memory, and the bytes that are in tiles: it becomes a page as any other."""
        with self.working(), self._moves(storage):
            tiles = self._tiles.pop(storage, None)
            if tiles is None:
                return
            try:
                if self._owner.find(storage) is None:
                    self._give_memory(storage, tiles)
                whole = self._whole_of(storage, tiles)
                with self.seen():
                    tiles.assemble(whole)
            except BaseException:
                self._tiles[storage] = tiles  # what is not there yet must not be taken for there
                raise

    def assemble_all(self) -> None:
        """Nothing is in tiles from now on."""
        for storage in list(self._tiles):
            self.assemble(storage)

    def _give_memory(self, storage: torch.UntypedStorage, tiles: Tiles) -> None:
        use = _Assembling(tiles)
        self._owner.begin(use, [], tiles.nbytes)
        try:
            self._resize(storage, tiles.nbytes, str(use))
            whole = self._whole_of(storage, tiles)
            self._owner.register(storage, whole)
            if use.call is not None:
                use.call.made(whole, self._owner.find)
        finally:
            self._owner.end([], [])

    def _resize(self, storage: torch.UntypedStorage, nbytes: int, use: str) -> None:
        """If memory runs out, once more with everything else gone (N9)."""
        try:
            STORAGE.resize_(storage, nbytes)
            return
        except (RuntimeError, MemoryError) as error:
            if not self._owner.is_out_of_memory(error):
                raise
        self._owner.recover([], nbytes)
        try:
            STORAGE.resize_(storage, nbytes)
        except (RuntimeError, MemoryError) as error:
            if not self._owner.is_out_of_memory(error):
                raise
            raise self._owner.does_not_fit(use, [], nbytes, error) from error

    def _whole_of(self, storage: torch.UntypedStorage, tiles: Tiles) -> torch.Tensor:
        with self._owner.unseen():
            whole = torch.empty(0, dtype=tiles.dtype, device=tiles.device)
            return set_view(whole, storage, 0, tiles.sizes, tiles.strides)

    # -- views -------------------------------------------------------------------------------------------------------

    def make_view(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What ``func`` gives, that makes views of one tensor, which is in tiles, or whose page is away.

        PyTorch refuses to make those of an empty storage.

        Raises:
            RuntimeError: that refuses, or a view would leave the storage.
        """
        (tensor,) = (leaf for leaf in pytree.arg_tree_leaves(*args, **kwargs) if isinstance(leaf, torch.Tensor))
        nbytes = self.size_of(untyped_storage(tensor))

        def to_meta(value: torch.Tensor) -> torch.Tensor:
            base = torch.empty(nbytes // value.itemsize, dtype=value.dtype, device="meta")
            return base.as_strided(value.shape, value.stride(), value.storage_offset())

        def to_alias(shown: torch.Tensor) -> torch.Tensor:
            offset = int(shown.storage_offset())
            if (offset + span(shown)) * shown.itemsize > nbytes:  # nobody checks that on the meta device
                raise RuntimeError(f"a view of {tuple(shown.shape)} leaves a storage of {nbytes} bytes")
            return self._alias(tensor, tuple(shown.shape), shown.stride(), offset)

        with self._owner.unseen():
            shown = func(*pytree.tree_map_only(torch.Tensor, to_meta, args), **kwargs)
            return pytree.tree_map_only(torch.Tensor, to_alias, shown)

    def view_of(self, tensor: torch.Tensor) -> View | None:
        """Where in its tiles ``tensor`` is; None if it has none.

        Raises:
            NotInTiles: it is in tiles, and not to be found there.
        """
        storage = untyped_storage(tensor)
        return View(tensor, self._tiles[storage]) if storage in self else None

    def still(self, view: View | None, tensor: torch.Tensor) -> View | None:
        """``view`` of ``tensor``; None if its tiles have been assembled since, for another argument with them."""
        return view if untyped_storage(tensor) in self else None

    def part_as_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` itself; a copy, if it shows a part of what is in tiles, so that the rest need not come.

        A copy begins as far behind what memory is aligned to as ``tensor``: bits may depend on that. It is neither
        conjugated nor negated lazily; where ``tensor`` is, all comes.
        """
        with self.settled:
            tiles = self._tiles.get(untyped_storage(tensor)) if has_storage(tensor) else None
            view = View.or_none(tensor, tiles)
            if view is None or view.is_all or not is_unadorned(tensor):
                return tensor
            with self.working(), self.seen():
                copy = view.read({})
                if has_order(tensor, order_of(tensor)):
                    copy = copy.as_strided(tensor.shape, tensor.stride())
                begin = misalignment(tensor)
                if misalignment(copy) == begin:
                    return copy
                memory = torch.empty(begin + span(copy), dtype=copy.dtype, device=copy.device)
                return memory.as_strided(copy.shape, copy.stride(), begin).copy_(copy)

    def parts_as_copies(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """``args``, of which each tensor is taken as ``part_as_copy``."""
        found: tuple[Any, ...] = pytree.tree_map_only(torch.Tensor, self.part_as_copy, args)
        return found

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` or a copy of it, in no tiles."""
        tensor = self.part_as_copy(tensor)
        self.assemble(untyped_storage(tensor))
        return tensor

    # -- into tiles --------------------------------------------------------------------------------------------------

    def in_tiles(self, like: torch.Tensor, tiles: Tiles) -> torch.Tensor:
        """A new tensor, as ``like`` is, whose bytes are in ``tiles``."""
        with self._owner.unseen():
            bare = torch.empty(0, dtype=like.dtype, device=tiles.device)
            made = self._alias(bare, tuple(like.shape), like.stride(), 0)
        self._tiles[untyped_storage(made)] = tiles
        self._owner.in_pieces()
        return made

    def tile(self, tensor: torch.Tensor, grid: Grid) -> View | None:
        """Cut a page into tiles, so that it need not come as a whole for each piece. None if it stays whole."""
        storage = untyped_storage(tensor)
        page = self._owner.find(storage)
        if page is None or not is_dense(tensor) or tensor.nbytes != page.nbytes or not self._owner.may_leave(page):
            return None
        tiles = Tiles(tensor, tensor.device, grid, {})
        with self._moves(storage):
            self._owner.in_pieces()
            if not self._owner.may_leave(page):  # asked once more, now that whoever begins to use it waits
                return None
            with self.seen():
                whole = tensor.detach()
                for place, region in tiles.regions():
                    tiles.cells[place] = copied(part(whole, region), tiles.order)
            self._owner.invalidate([page])  # tiles may have been dropped meanwhile, to be recomputed from it
            self._tiles[storage] = tiles
            STORAGE.resize_(storage, 0)
            self._owner.resized(page, is_freed=True)  # it may be away itself
        return View(tensor, tiles)
