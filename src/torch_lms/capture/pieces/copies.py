"""Operators that only fill or copy, in pieces (N27)."""

import math
from itertools import pairwise, product
from typing import Any

import torch

from torch_lms.capture.pieces.job import NOT_CUT, Job, can_be_read, slabs_of, taken_there
from torch_lms.capture.pieces.views import NotInTiles

TO = "aten::_to_copy"

COPIES = frozenset({TO, *(f"aten::{name}" for name in ("clone", "copy_", "fill_", "zero_"))})
"""Operators that treat each element by itself, though no tag says so. They compute nothing."""

CONSTANTS = {"aten::zeros_like": 0, "aten::new_zeros": 0, "aten::ones_like": 1, "aten::new_ones": 1}
"""What they are filled with."""

_EMPTY_BY_TRADITION = (0,)
"""The shape of an empty tensor that ``cat`` takes beside tensors of any other shape."""


def constant(job: Job) -> Any:
    """The same number everywhere."""
    (like,) = job.likes
    given = job.given["self"]
    if given.shape == like.shape and given.stride() != like.stride():
        return NOT_CUT  # tensors without bytes do not tell the strides of dimensions of size 1
    value = CONSTANTS[job.info.packet]
    (gathered,) = job.gathered()
    with job.table.seen():
        for region in product(*(list(pairwise(bounds)) for bounds in slabs_of(like, job.target // like.itemsize))):
            shape = [last - first for first, last in region]
            gathered.put(region, torch.full(shape, value, dtype=like.dtype, device=job.device))
    return job.results([gathered])


def cat(job: Job) -> Any:
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
    grid = slabs_of(like, job.target // like.itemsize)
    if in_tiles:
        grid = [in_tiles[0].bounds(dim) for dim in range(like.dim())]
    (gathered,) = job.gathered()
    first = 0
    for tensor, view in zip(tensors, views, strict=True):
        bounds = list(grid)
        bounds[along] = (0, tensor.shape[along])
        if view is not None and not can_be_read(view, tensor, bounds):
            tensor, view = job.table.whole(tensor), None
        own = slabs_of(tensor, job.target // like.itemsize)[along] if view is None else view.bounds(along)
        shortest = (min(b - a for a, b in pairwise(its)) for dim, its in enumerate(bounds) if dim != along)
        bounds[along] = _coarser(own, -(-job.least // (math.prod(shortest) * like.itemsize)))
        for region in product(*(list(pairwise(its)) for its in bounds)):
            place = list(region)
            place[along] = (first + region[along][0], first + region[along][1])
            with job.table.seen():
                gathered.put(tuple(place), taken_there(tensor, view, region).clone())
        first += tensor.shape[along]
    return job.results([gathered])


def _coarser(bounds: tuple[int, ...], shortest: int) -> tuple[int, ...]:
    """Some of ``bounds``, at least ``shortest`` apart but for the last."""
    found = [bounds[0]]
    for bound in bounds[1:-1]:
        if bound - found[-1] >= shortest and bounds[-1] - bound >= shortest:
            found.append(bound)
    return (*found, bounds[-1])
