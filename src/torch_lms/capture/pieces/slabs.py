"""Operators that the table of cuts tells how to cut (N27)."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_lms.capture.pieces import proof
from torch_lms.capture.pieces.call import as_results, called, tensors_of
from torch_lms.capture.pieces.cuts import OPERATORS, Cut, Slab, cuts_of
from torch_lms.capture.pieces.job import NOT_CUT, Job, put_in_tiles
from torch_lms.capture.pieces.results import WHOLE, Gathered
from torch_lms.capture.pieces.tiles import Grid, aligned, at_most, dense_strides, even, order_of
from torch_lms.capture.pieces.views import NotInTiles, View
from torch_lms.capture.placeholder import of_shape
from torch_lms.capture.registry import storage_nbytes
from torch_lms.capture.schema import OpInfo
from torch_lms.capture.tensors import untyped_storage

_PARTS = (3, 2, 6, 4, 12, 8, 1)
"""Of what an operation may touch: how large pieces may be, the best first. The largest come last: beside a copy of what
such a piece takes there may be no room."""

_MAX_PARTS = 64
"""Into which an operation is cut though none of them fits."""

Bounds = tuple[int, ...]


def can_cut(info: OpInfo) -> bool:
    """Whether the table has the operator. Pieces may be copies, so that it may write nothing but statistics."""
    name = info.packet.removeprefix("aten::")
    return name in OPERATORS and (not info.writes or "batch_norm" in name)


def run(job: Job) -> Any:
    """By the best cut of those that give the same bits."""
    for _, cut, bounds in sorted(_ways(job), key=lambda way: way[0]):
        if cut.is_proven or _is_proven(job, cut, bounds):
            return _run(job, cut, bounds)
    return NOT_CUT


def _ways(job: Job) -> Iterator[tuple[tuple[int, int, int], Cut, Bounds]]:
    """Cuts whose pieces fit, and their bounds. First how good each is, smaller is better: how many arguments would be
    read once for each piece, since smaller tiles would be no pages; how many have to be cut anew; and into how many
    parts: large pieces are copied together less often, and lead to other kernels less often. Where the smallest pieces
    exceed the limit, these come last: they exceed it by less than the whole.
    """
    tensors = dict(tensors_of(job.given))
    for cut in cuts_of(job.info.packet, job.given):
        slabs = {name: slab for name, slab in cut.takes(0, cut.step).items() if isinstance(slab, Slab)}
        held = sum(tensor.nbytes for name, tensor in tensors.items() if name not in slabs)
        flowing = job.made_nbytes + sum(tensors[name].nbytes for name, slab in slabs.items() if not slab.shape_only)
        views = [_view_of(job, tensors[name], slab) for name, slab in slabs.items()]
        in_tiles = [(view, dim) for view, dim in views if view is not None]
        uncut = [view for view, dim in in_tiles if len(view.bounds(dim)) <= 2]
        anew = sum(dim < 0 for _, dim in views) + len(uncut)
        step = math.lcm(cut.step, *(view.step(dim) for view, dim in in_tiles))
        smallest = flowing * step // cut.extent
        if job.most >= job.limit < held + smallest and 4 * held <= job.limit and 1 < cut.extent // step <= _MAX_PARTS:
            yield (len(tensors) + 1, smallest, 0), cut, at_most(cut.extent, step, step)
        for rank, parts in enumerate(_PARTS):
            longest = job.most // parts * cut.extent // max(1, flowing)
            bounds = _bounds(cut, max(step, longest // step * step), step, in_tiles)
            largest = max(last - first for first, last in pairwise(bounds))
            if len(bounds) > 2 and held + flowing * largest // cut.extent <= job.most:
                too_small = sum(view.tile_nbytes(len(bounds) - 1) < job.least for view in uncut)
                yield (too_small, anew, rank), cut, bounds


def _view_of(job: Job, tensor: torch.Tensor, slab: Slab) -> tuple[View | None, int]:
    """Where in its tiles ``tensor`` is, and the dimension that is to be cut; -1 if it cannot be."""
    if slab.shape_only:
        return None, slab.dim
    try:
        view = job.table.view_of(tensor)
    except NotInTiles:
        return None, -1
    return (view, slab.dim) if view is None or view.step(slab.dim) else (None, -1)


def _bounds(cut: Cut, longest: int, step: int, in_tiles: list[tuple[View, int]]) -> Bounds:
    """Those of the first argument whose tiles are about as long; else pieces of about the same size."""
    for view, dim in in_tiles:
        bounds = view.bounds(dim)
        are_steps = bounds[-1] == cut.extent and not any(bound % cut.step for bound in bounds[:-1])
        if are_steps and longest // 2 < max(b - a for a, b in pairwise(bounds)) <= longest:
            return bounds
    return at_most(cut.extent, longest, step)


# -- proved ----------------------------------------------------------------------------------------------------------


def _is_proven(job: Job, cut: Cut, bounds: Bounds) -> bool:
    nbytes = 2 * sum(tensor.nbytes for _, tensor in tensors_of(job.given)) + 3 * job.made_nbytes
    key = f"{cut.kind} {bounds} {proof.signature(job.func, job.given)}"

    def attempt() -> bool:
        return proof.gives_the_same(job.func, job.given, lambda tried: _tried(job, cut, bounds, tried))

    return job.holds(key, nbytes, attempt)


def _tried(job: Job, cut: Cut, bounds: Bounds, tried: dict[str, Any]) -> list[Any]:
    """Whole results of pieces of ``tried``, which is in no tiles."""
    gathered = [Gathered(like, job.device, WHOLE, storage_nbytes) for like in job.likes]
    for first, last in pairwise(bounds):
        pieces = called(job.func, {**tried, **_taken(cut, first, last, tried, {})})
        for result, piece in zip(gathered, pieces, strict=True):
            result.append(_kept(cut, first, last, piece))
    return [result.take(job.table.in_tiles) for result in gathered]


# -- run -------------------------------------------------------------------------------------------------------------


def _run(job: Job, cut: Cut, bounds: Bounds) -> Any:
    table, given = job.table, dict(job.given)
    for leaf in pytree.arg_tree_leaves(*(value for value in given.values() if isinstance(value, list | tuple))):
        if isinstance(leaf, torch.Tensor):
            table.assemble(untyped_storage(leaf))
    slabs = {name: slab for name, slab in cut.takes(0, bounds[1]).items() if isinstance(slab, Slab)}
    placeholder = next((name for name, slab in slabs.items() if slab.shape_only), "")
    for name, tensor in tensors_of(job.given):
        if name != placeholder and not _can_be_read(job, tensor, slabs.get(name)):
            given[name] = table.whole(tensor)
    views = _views(job, {name: slab for name, slab in slabs.items() if name != placeholder}, bounds, given)
    gathered = job.gathered()
    for first, last in pairwise(bounds):
        with table.seen():
            taken = _taken(cut, first, last, given, views)
        found = as_results(job.run_piece({**given, **taken}, placeholder))
        del taken  # else it would live while the next one is made
        with table.seen():
            for result in gathered:
                result.append(_kept(cut, first, last, found.pop(0)))
    return job.results(gathered)


def _can_be_read(job: Job, tensor: torch.Tensor, slab: Slab | None) -> bool:
    """Whether all that pieces take of ``tensor`` can be read where it is. None: they take all of it."""
    return slab is not None and not slab.is_written and _view_of(job, tensor, slab)[1] >= 0


def _views(job: Job, slabs: Mapping[str, Slab], bounds: Bounds, given: Mapping[str, Any]) -> dict[str, View]:
    """Where slabs of arguments are in tiles, into which these are cut if they are large. Who shares its storage with
    another argument is not: that one may be needed whole.
    """
    tensors = dict(tensors_of(given))
    users = Counter(map(untyped_storage, tensors.values()))
    found = {name: _view_of(job, tensors[name], slab) for name, slab in slabs.items()}
    views = {name: view for name, (view, _) in found.items() if view is not None}
    for name, view in views.items():
        with job.table.seen():
            view.refine_into(found[name][1], len(bounds) - 1, job.least)

    def grid_of(name: str) -> Grid | None:
        tensor, slab = tensors[name], slabs[name]
        if slab.is_written or users[untyped_storage(tensor)] > 1:
            return None
        size = tensor.shape[slab.dim]
        grid: Grid = [(0, size) for size in tensor.shape]
        grid[slab.dim] = bounds if bounds[-1] == size else even(size, len(bounds) - 1, 1)
        return grid

    whole = {name: tensor for name, tensor in tensors.items() if name in slabs and name not in views}
    held = sum(tensor.nbytes for name, tensor in tensors.items() if name not in slabs)
    flowing = sum(tensors[name].nbytes for name in slabs) + job.made_nbytes
    largest = max(last - first for first, last in pairwise(bounds))
    piece = held + flowing * largest // bounds[-1]
    return views | put_in_tiles(job, whole, piece, grid_of, most=job.most // 2)


def _taken(cut: Cut, first: int, last: int, given: Mapping[str, Any], views: Mapping[str, View]) -> dict[str, Any]:
    """What the piece from ``first`` to ``last`` is given in place of the whole's arguments."""
    return {
        name: _slab(given[name], value, views.get(name)) if isinstance(value, Slab) else value
        for name, value in cut.takes(first, last).items()
    }


def _slab(tensor: torch.Tensor, slab: Slab, view: View | None) -> torch.Tensor:
    order = order_of(tensor)
    if slab.shape_only:
        shape = list(tensor.shape)
        shape[slab.dim] = slab.last - slab.first
        return of_shape(shape, dense_strides(shape, order), tensor.dtype, tensor.device)
    if view is not None:
        found = view.read({slab.dim: (slab.first, slab.last)})
    else:
        found = tensor.narrow(slab.dim, slab.first, slab.last - slab.first)
    if slab.before or slab.after:
        rest = tensor.dim() - 1 - slab.dim
        found = torch.constant_pad_nd(found, [0, 0] * rest + [slab.before, slab.after])
    return found if slab.is_written else aligned(found, order)


def _kept(cut: Cut, first: int, last: int, piece: Any) -> Any:
    """What of a piece's result counts."""
    if cut.keeps is None or not isinstance(piece, torch.Tensor):
        return piece
    dim, begin, end = cut.keeps(first, last)
    return piece.narrow(dim, begin, end - begin)
