"""Operators that treat each element by itself, in pieces (N27)."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from torch_lms.capture.pieces import proof
from torch_lms.capture.pieces.call import as_results, called, tensors_of, written_by
from torch_lms.capture.pieces.copies import COPIES
from torch_lms.capture.pieces.job import (
    NOT_CUT,
    Job,
    can_be_read,
    cuts_for,
    longest,
    put_in_tiles,
    refine,
    slabs_of,
    small_grid,
    taken_there,
)
from torch_lms.capture.pieces.results import WHOLE, Gathered
from torch_lms.capture.pieces.tiles import Grid, has_order, order_of, part, regions_of
from torch_lms.capture.pieces.views import NotInTiles, View
from torch_lms.capture.registry import storage_nbytes
from torch_lms.capture.tensors import span, untyped_storage

_LOSSES = ("huber_loss", "mse_loss", "smooth_l1_loss")

UNTAGGED = frozenset(
    {
        *(
            f"aten::{name}_backward"
            for name in ("elu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish", "softplus", *_LOSSES)
        ),
        *(f"aten::{name}" for name in ("_prelu_kernel_backward", *_LOSSES)),
    }
)
"""Gradients of activations, and losses, of which no tag says that they treat each element by itself."""

OF_LISTS = ("aten::_foreach_", "aten::_fused_ada", "aten::_fused_sgd")
"""Operators on lists that treat each element of an index by itself begin so, but for some that reduce."""

_CHANGING = ("lr", "scalars")
"""Numbers that differ from step to step: for which of them it was tried, does not matter."""

_MEAN = 1
"""How a loss is reduced: by the number of elements, of which a piece has fewer."""


def run(job: Job) -> Any:
    """Any regions will do: those of the tiles of an argument, or as many as have to be."""
    given = job.given
    tensors = dict(tensors_of(given))
    written = list(written_by(job.func, given))
    if (len(written) > 1 and not job.info.list_args) or given.get("reduction") == _MEAN:
        return NOT_CUT
    target = given[written[0]] if written else job.likes[0]
    if not all(isinstance(like, torch.Tensor) and like.shape == target.shape for like in job.likes):
        return NOT_CUT
    if target.numel() == 0 or target.shape != torch.broadcast_shapes(*(tensor.shape for tensor in tensors.values())):
        return NOT_CUT
    if any(_overlap(tensors[name], tensors) for name in written):
        return NOT_CUT
    is_of_lists = bool(job.info.list_args)
    if is_of_lists and not all(tensor.is_contiguous() for tensor in tensors.values()):
        return NOT_CUT  # some kernels take memory as it comes, whatever strides say
    views = {name: _view_of(job, tensor) for name, tensor in tensors.items()}
    itemsize = sum(like.itemsize for like in (*job.likes, *(tensor for tensor in tensors.values() if tensor.dim())))
    if is_of_lists:
        grid = _slabs_of_rows(target, job.target // itemsize, views)
    else:
        grid = _grid(job, target, itemsize, tensors, views, written)
    if job.info.packet not in COPIES and not _gives_the_same(job, tensors, target, grid):
        grid = slabs_of(target, job.target // itemsize, proof.ALIGNED)
        if not _gives_the_same(job, tensors, target, grid):
            return NOT_CUT
    regions = regions_of(grid)
    for name, view in views.items():
        if view is not None and not can_be_read(view, tensors[name], grid):
            if name in written:
                job.table.assemble(untyped_storage(tensors[name]))
            else:
                tensors[name] = job.table.whole(tensors[name])
    views = {name: job.table.still(view, tensors[name]) for name, view in views.items()}
    for name, view in views.items():
        if view is not None:
            with job.table.seen():
                refine(view, tensors[name], grid, job.least)
    whole = {name: tensor for name, tensor in tensors.items() if views[name] is None and tensor.device.type == job.kind}
    views |= _put_in_tiles(job, whole, grid, itemsize)
    gathered = [] if written else job.gathered()
    for region in regions:
        with job.table.seen():
            taken = {
                name: taken_there(tensor, views[name], region, name in written) for name, tensor in tensors.items()
            }
            if is_of_lists:
                taken = {name: piece.contiguous() for name, piece in taken.items()}
        result = job.run_piece(taken)
        with job.table.seen():
            if not written:
                for its, piece in zip(gathered, as_results(result), strict=True):
                    its.put(region, piece)
                    del piece
            else:
                for name in written:
                    if (view := views[name]) is not None:
                        view.write(cuts_for(target, region), taken[name])
        del taken, result  # else they would live while the next ones are made
    if written:
        return target if job.func._schema.returns else None
    return job.results(gathered)


def _overlap(target: torch.Tensor, tensors: dict[str, torch.Tensor]) -> bool:
    """Whether a part of what is written is read elsewhere, which PyTorch refuses."""
    own = _place(target)
    others = [_place(tensor) for tensor in tensors.values()]
    return any(other[0] is own[0] and other[1:] != own[1:] for other in others)


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return untyped_storage(tensor), tensor.shape, tensor.stride(), tensor.storage_offset()


def _view_of(job: Job, tensor: torch.Tensor) -> View | None:
    try:
        return job.table.view_of(tensor)
    except NotInTiles:
        job.table.assemble(untyped_storage(tensor))
        return None


def _grid(
    job: Job,
    target: torch.Tensor,
    itemsize: int,
    tensors: dict[str, torch.Tensor],
    views: dict[str, View | None],
    written: list[str],
) -> Grid:
    slabs = slabs_of(target, job.target // itemsize)
    for name in sorted(tensors, key=lambda name: name not in written):
        view = views[name]
        if view is not None and tensors[name].shape == target.shape:
            return small_grid(view.grid(), order_of(target), job.most // itemsize, view.step)
    return slabs


def _slabs_of_rows(target: torch.Tensor, most: int, views: dict[str, View | None]) -> Grid:
    """Slabs that are in one piece in memory, and whose bounds can be read from tiles."""
    dim = order_of(target)[0]
    rows = math.lcm(*(view.step(dim) or 1 for view in views.values() if view is not None))
    return slabs_of(target, most, rows * (target.numel() // target.shape[dim]))


def _put_in_tiles(job: Job, whole: dict[str, torch.Tensor], grid: Grid, itemsize: int) -> dict[str, View]:
    users = Counter(map(untyped_storage, whole.values()))
    shape = tuple(bounds[-1] for bounds in grid)

    def grid_of(name: str) -> Grid | None:
        tensor = whole[name]
        return grid if tensor.shape == shape and users[untyped_storage(tensor)] == 1 else None

    return put_in_tiles(job, whole, itemsize * longest(grid), grid_of, most=job.limit)


def _gives_the_same(job: Job, tensors: dict[str, torch.Tensor], target: torch.Tensor, grid: Grid) -> bool:
    """Whether pieces give the same bits wherever their bounds are, or those of ``grid`` do."""
    given = job.given
    likes = {name: tensor for name, tensor in tensors.items() if tensor.dim()}
    types = {name: str(tensor.dtype) for name, tensor in likes.items()}
    unlisted = {*likes, *(_CHANGING if job.info.list_args else ())}
    values = {name: str(value) for name, value in given.items() if name not in unlisted}
    key = " ".join(("elements", str(job.func), str(types), str(values), *proof.place(job.device)))
    whole = torch.empty_strided(target.shape, target.stride(), device="meta")
    pieces = [part(whole, region) for region in regions_of(grid)]
    are_alike = all(_layout(like) == _layout(target) for like in likes.values())

    def is_proven() -> bool:
        are_full = _are_full_vectors(whole, pieces) if are_alike else _are_full_rows(likes.values(), whole, pieces)
        return job.device.type == "cpu" and are_full and _is_proven(job, grid, tensors)

    is_free_of_place = proof.is_free_of_place
    if not job.holds(f"layout of {key}", 0, lambda: proof.is_free_of_layout(job.func, given)):
        are_contiguous = {each.is_contiguous() and each.numel() > 1 for each in (whole, *pieces)}
        if not are_alike:
            return is_proven()
        if not has_order(whole, order_of(whole)) or len(are_contiguous) > 1:
            return False
        if are_contiguous == {False}:
            key, is_free_of_place = f"columns of {key}", proof.is_free_of_place_in_columns
    return job.holds(key, 0, lambda: is_free_of_place(job.func, given)) or is_proven()


def _are_full_rows(likes: Iterable[torch.Tensor], whole: torch.Tensor, pieces: list[torch.Tensor]) -> bool:
    """Whether arguments are broadcast along leading dimensions alone, and what is behind these is treated in full
    vectors, when ``whole`` is and when ``pieces`` are.
    """
    first = max(_first_of_row(like, whole) for like in likes)
    return all(
        each.is_contiguous() and proof.is_aligned(each.numel()) and math.prod(each.shape[first:]) % proof.ALIGNED == 0
        for each in (whole, *pieces)
    )


def _first_of_row(like: torch.Tensor, whole: torch.Tensor) -> int:
    """The dimension from which on ``like`` lies in memory as ``whole``, which is contiguous."""
    for dim in range(1, like.dim() + 1):
        if like.shape[-dim] != whole.shape[-dim] or like.stride(-dim) != whole.stride(-dim):
            return whole.dim() - dim + 1
    return whole.dim() - like.dim()


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Its shape and strides, but for those of dimensions of size 1."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.shape, [stride for size, stride in strides if size > 1]


def _is_proven(job: Job, grid: Grid, tensors: dict[str, torch.Tensor]) -> bool:
    """Tried on the operation's own shapes: some kernels choose by themselves how many threads share the elements."""
    nbytes = 2 * sum(tensor.nbytes for tensor in tensors.values()) + 2 * job.made_nbytes

    def in_pieces(tried: dict[str, Any]) -> list[Any]:
        gathered = [Gathered(like, job.device, WHOLE, storage_nbytes) for like in job.likes]
        for region in regions_of(grid):
            taken = {name: taken_there(tensor, None, region) for name, tensor in tensors_of(tried)}
            for its, piece in zip(gathered, called(job.func, {**tried, **taken}), strict=True):
                its.put(region, piece)
        return [result.take(job.table.in_tiles) for result in gathered]

    key = f"elements {grid} {proof.signature(job.func, job.given)}"
    return job.holds(key, nbytes, lambda: proof.gives_the_same(job.func, job.given, in_pieces))


def _are_full_vectors(whole: torch.Tensor, pieces: list[torch.Tensor]) -> bool:
    """Whether the same elements are left over when ``whole`` is treated in vectors and when ``pieces`` are: none, or
    the last ones, where pieces are one after the other in memory.
    """
    if all(map(proof.is_aligned, (whole.numel(), *(piece.numel() for piece in pieces)))):
        return True
    *others, last = sorted(pieces, key=lambda piece: piece.storage_offset())
    return (
        all(span(piece) == piece.numel() for piece in pieces)
        and all(proof.is_aligned(piece.numel()) for piece in others)
        and all(proof.is_aligned(each.numel(), is_last=True) for each in (whole, last))
    )
