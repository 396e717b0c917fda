"""Operators that only fill or copy, in pieces (N27)."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from torch_lms.capture.pieces.cuts import Arguments
from torch_lms.capture.pieces.job import NOT_CUT, Job, can_be_read, refine, slabs_of, small_grid, taken_there
from torch_lms.capture.pieces.tiles import Region, copied, dense_strides, order_of, part, regions_of
from torch_lms.capture.pieces.views import NotInTiles

TO = "aten::_to_copy"

_OF_ONE_NUMBER: dict[str, Any] = {"zeros": 0, "ones": 1, "full": None}

COPIES = frozenset({TO, *(f"aten::{name}" for name in ("clone", "copy_", "fill_", "zero_"))})
"""Operators that treat each element by itself, though no tag says so. They compute nothing."""

CONSTANTS = {
    f"aten::{name}": number for kind, number in _OF_ONE_NUMBER.items() for name in (kind, f"{kind}_like", f"new_{kind}")
}
"""Operators that make a tensor of one number. None: it is an argument, ``fill_value``."""

_EMPTY_BY_TRADITION = (0,)
"""The shape of an empty tensor that ``cat`` takes beside tensors of any other shape."""


def constant(job: Job) -> Any:
    """The same number everywhere."""
    (like,) = job.likes
    given = job.given.get("self", like)
    if given.shape == like.shape and given.stride() != like.stride():
        return NOT_CUT  # tensors without bytes do not tell the strides of dimensions of size 1
    if like.layout is not torch.strided or job.given.get("pin_memory"):
        return NOT_CUT
    value = job.given.get("fill_value", CONSTANTS[job.info.packet])
    (gathered,) = job.gathered()
    with job.table.seen():
        for region in regions_of(slabs_of(like, job.target // like.itemsize)):
            gathered.put(region, _filled(job, region, value))
    return job.results([gathered])


def _filled(job: Job, region: Region, value: float) -> torch.Tensor:
    """That ``region`` of the result, full of ``value``."""
    (like,) = job.likes
    shape = [last - first for first, last in region]
    strides = dense_strides(shape, order_of(like))
    return torch.empty_strided(shape, strides, dtype=like.dtype, device=job.device).fill_(value)


def placed(job: Job) -> Any:
    """A tensor in the midst of a constant: padding, and gradients of slices."""
    (like,) = job.likes
    with job.table.seen():
        source, firsts, value = _PLACED[job.info.packet](job.given)
    sizes = zip(firsts, source.shape, like.shape, strict=True)
    if any(first < 0 or first + size > whole for first, size, whole in sizes):
        return NOT_CUT  # it is taken in steps
    try:
        view = job.table.view_of(source)
    except NotInTiles:
        return NOT_CUT
    most = job.target // like.itemsize
    grid = slabs_of(like, most)
    if view is not None:
        grid = []
        for dim, first in enumerate(firsts):
            inside = view.bounds(dim)[1:-1]
            grid.append((0, *(first + bound for bound in inside), like.shape[dim]))
        # Where it begins at another index, bounds of the result would be none of the tiles.
        may_be_cut = [dim for dim in order_of(like) if firsts[dim] % max(1, view.step(dim)) == 0]
        grid = small_grid(grid, may_be_cut, most, view.step)
    (gathered,) = job.gathered()
    for region in regions_of(grid):
        with job.table.seen():
            cell = _filled(job, region, value)
            ends = [first + size for first, size in zip(firsts, source.shape, strict=True)]
            inner = [(max(a, first), min(b, end)) for (a, b), first, end in zip(region, firsts, ends, strict=True)]
            if all(a < b for a, b in inner):
                own = tuple((a - first, b - first) for (a, b), first in zip(inner, firsts, strict=True))
                there = tuple((a - begin, b - begin) for (a, b), (begin, _) in zip(inner, region, strict=True))
                part(cell, there).copy_(taken_there(source, view, own))
            gathered.put(region, cell)
    return job.results([gathered])


Placed = tuple[torch.Tensor, list[int], float]
"""What is placed, at which index of each dimension of the result, and the constant around it."""


def _padded(given: Arguments) -> Placed:
    source, pad = given["self"], given["pad"]
    firsts = [0] * source.dim()
    for place in range(len(pad) // 2):
        before, after = pad[2 * place : 2 * place + 2]
        dim = source.dim() - 1 - place
        firsts[dim] = max(0, before)
        cropped = min(0, before) + min(0, after)
        if cropped:
            source = source.narrow(dim, max(0, -before), source.shape[dim] + cropped)
    return source, firsts, given["value"]


def _slice_of_gradient(given: Arguments) -> Placed:
    source, dim = given["grad_output"], given["dim"]
    size = given["input_sizes"][dim]
    first = min(size, max(0, given["start"] + (size if given["start"] < 0 else 0)))
    firsts = [0] * source.dim()
    firsts[dim] = first if given["step"] == 1 else -1
    return source, firsts, 0


def _selected_of_gradient(given: Arguments) -> Placed:
    dim = given["dim"] % len(given["input_sizes"])
    source = given["grad_output"].unsqueeze(dim)
    firsts = [0] * source.dim()
    firsts[dim] = given["index"] % given["input_sizes"][dim]
    return source, firsts, 0


_PLACED = {
    "aten::constant_pad_nd": _padded,
    "aten::slice_backward": _slice_of_gradient,
    "aten::select_backward": _selected_of_gradient,
}

PLACED = frozenset(_PLACED)
"""Operators that place a tensor in the midst of a constant."""


def _stacked(job: Job) -> Any:
    """Tensors one beside the other."""
    (like,) = job.likes
    dim = job.given["dim"] % like.dim()
    with job.table.seen():
        tensors = [tensor.unsqueeze(dim) for tensor in job.given["tensors"]]
    return _joined(replace(job, given={"tensors": tensors, "dim": dim}))


def _joined(job: Job) -> Any:
    """Tensors one after the other."""
    (like,) = job.likes
    tensors = [tensor for tensor in job.given["tensors"] if tensor.shape != _EMPTY_BY_TRADITION]
    if like.numel() == 0 or any(tensor.dtype != like.dtype for tensor in tensors):
        return NOT_CUT
    try:
        views = [job.table.view_of(tensor) for tensor in tensors]
    except NotInTiles:
        return NOT_CUT
    along = job.given["dim"] % like.dim()
    in_tiles = [view for view in views if view is not None]
    most = job.target // like.itemsize
    grid = slabs_of(like, most)
    if in_tiles:
        grid = in_tiles[0].grid()
        grid[along] = (0, max(tensor.shape[along] for tensor in tensors))
        grid = small_grid(grid, [dim for dim in order_of(like) if dim != along], most, in_tiles[0].step)
    (gathered,) = job.gathered()
    first = 0
    for tensor, view in zip(tensors, views, strict=True):
        bounds = list(grid)
        bounds[along] = (0, tensor.shape[along])
        view = job.table.still(view, tensor)
        if view is not None and not can_be_read(view, tensor, bounds):
            tensor, view = job.table.whole(tensor), None
        if view is not None:
            with job.table.seen():
                refine(view, tensor, bounds, job.least)
        own = slabs_of(tensor, most)[along] if view is None else view.bounds(along)
        shortest = (min(b - a for a, b in pairwise(its)) for dim, its in enumerate(bounds) if dim != along)
        bounds[along] = _coarser(own, -(-job.least // (math.prod(shortest) * like.itemsize)))
        for region in regions_of(bounds):
            place = list(region)
            place[along] = (first + region[along][0], first + region[along][1])
            with job.table.seen():
                gathered.put(tuple(place), copied(taken_there(tensor, view, region), order_of(like)))
        first += tensor.shape[along]
    return job.results([gathered])


def _coarser(bounds: tuple[int, ...], shortest: int) -> tuple[int, ...]:
    """Some of ``bounds``, at least ``shortest`` apart but for the last."""
    found = [bounds[0]]
    for bound in bounds[1:-1]:
        if bound - found[-1] >= shortest and bounds[-1] - bound >= shortest:
            found.append(bound)
    return (*found, bounds[-1])


JOINS = {"aten::cat": _joined, "aten::stack": _stacked}
"""How operators run in pieces that put tensors side by side."""
