"""Losses that use one number of each row (N27)."""

from typing import Any

import torch

from torch_lms.capture.pieces import proof
from torch_lms.capture.pieces.call import called
from torch_lms.capture.pieces.job import NOT_CUT, Job, can_be_read, slabs_of, taken_there
from torch_lms.capture.pieces.tiles import part, regions_of
from torch_lms.capture.pieces.views import NotInTiles, View

LOSSES = frozenset({"aten::nll_loss_forward", "aten::nll_loss2d_forward"})

_CLASSES = 1
"""The dimension of classes."""

_IGNORED = -100
"""A target that is no class."""


def run(job: Job) -> Any:
    """The number at the target of each row is picked, and the loss is of these alone, in the same order."""
    scores = job.given["self"]
    if scores.dim() < 2 or job.given["weight"] is not None:
        return NOT_CUT
    try:
        view = job.table.view_of(scores)
    except NotInTiles:
        return NOT_CUT
    key = f"picked {proof.signature(job.func, job.given)}"
    if not job.holds(key, 3 * scores.nbytes, lambda: _is_loss_of_picked(job)):
        return NOT_CUT
    with job.table.seen():
        picked = _picked(job, scores, view)
    return job.run_piece(picked)


def _is_loss_of_picked(job: Job) -> bool:
    tried = proof.random_like(job.given)
    picked = _picked(job, tried["self"], None)
    one, other = (called(job.func, given) for given in (tried, {**tried, **picked}))
    return all(proof.is_same(a, b) for a, b in zip(one, other, strict=True))


def _picked(job: Job, scores: torch.Tensor, view: View | None) -> dict[str, Any]:
    """The arguments instead of the whole's: scores of one class, which is each target, unless that is ignored."""
    grid = slabs_of(scores, job.target // scores.itemsize)
    if view is not None:
        grid = view.grid()
    grid[_CLASSES] = (0, scores.shape[_CLASSES])
    if view is not None and not can_be_read(view, scores, grid):
        scores, view = job.table.whole(scores), None
    target = job.given["target"]
    is_ignored = target == job.given["ignore_index"]
    classes = target.masked_fill(is_ignored, 0).unsqueeze(_CLASSES)
    found = torch.empty(classes.shape, dtype=scores.dtype, device=scores.device)
    for region in regions_of(grid):
        place = (region[0], (0, 1), *region[2:])
        rows = taken_there(scores, view, region)
        part(found, place).copy_(rows.gather(_CLASSES, part(classes, place)))
    return {
        "self": found,
        "target": torch.zeros_like(target).masked_fill(is_ignored, _IGNORED),
        "ignore_index": _IGNORED,
    }
