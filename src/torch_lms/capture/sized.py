"""Operations on tensors without bytes, and what they make as large as it is of tensors that have them (N8)."""

from collections.abc import Callable
from typing import Any

import torch

from torch_lms.capture.schema import OpInfo

_ALIGNED = 4096
_LINE = 64
"""Bytes: of a part of a workspace, and of a row in it, oneDNN makes a multiple of these."""


def sized(func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], device: str = "cpu") -> Any:
    """What ``func`` gives on ``device``, "cpu" or "cuda", where PyTorch itself tells of less, or of nothing."""
    name = info.packet
    if name in _UNTOLD:
        return _UNTOLD[name](args)
    result = func(*args, **kwargs)
    return _ENLARGED[name](result, args, device) if name in _ENLARGED else result


def _loss(result: torch.Tensor, args: tuple[Any, ...], device: str) -> torch.Tensor:
    """It is as large as what is compared before it becomes one number, and keeps the storage."""
    if result.dim():
        return result
    return result.new_empty(torch.broadcast_shapes(args[0].shape, args[1].shape)).resize_(())


def _recurrent_layer(result: tuple[torch.Tensor, ...], args: tuple[Any, ...], device: str) -> tuple[torch.Tensor, ...]:
    """It keeps a workspace for the gradient. cuDNN's is not told: taken for it are gates and cell states."""
    if not torch.is_grad_enabled():
        return result
    (steps, batch, width), hidden, itemsize = args[0].shape, args[10], args[0].element_size()
    if device == "cpu":
        nbytes = onednn_workspace(steps, batch, width, hidden, itemsize)
    else:
        nbytes = steps * batch * (len(args[1]) + hidden) * itemsize
    *states, workspace = result
    return (*states, workspace.new_empty(nbytes))


def onednn_workspace(steps: int, batch: int, width: int, hidden: int, itemsize: int) -> int:
    """Bytes that oneDNN keeps for the gradient of a layer of an LSTM, ``width`` and ``hidden`` elements in and out.

    Gates and outputs of each step; states and cell states, in pairs, and room for their gradients, always float32.
    As counted on version 3.12, a test compares.
    """
    cells, widest = 2 * (steps + 1) * batch, max(width, hidden)
    parts = (
        steps * batch * _row(4 * hidden, itemsize),
        steps * batch * _row(hidden, itemsize),
        cells * _row(widest, itemsize),
        cells * hidden * itemsize,
        cells * _row(widest, 4),
        cells * _row(widest, 4),
        cells * hidden * 4,
    )
    return sum(-(-part // _ALIGNED) * _ALIGNED for part in parts)


def _row(elements: int, itemsize: int) -> int:
    """Bytes. Rows of a multiple of 256 elements get a line more, lest they meet in the cache."""
    per_line = _LINE // itemsize
    padded = -(-elements // per_line) * per_line
    return (padded + per_line if padded % 256 == 0 else padded) * itemsize


def _ctc_loss(args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """A loss for each sequence, and its logarithms of probabilities by time and place among labels and blanks."""
    scores, targets, _, lengths = args[:4]
    (steps, batch, _), padded = scores.shape, targets.dim() > 1
    longest = targets.shape[1] if padded else -(-targets.numel() // batch)  # as if all were alike
    places = 2 * (max(lengths) if isinstance(lengths, list | tuple) else longest) + 1
    return scores.new_empty(batch), scores.new_empty((batch, steps, places))


def _grouped_mm(args: tuple[Any, ...]) -> torch.Tensor:
    """PyTorch tells of bfloat16 alone, and of no more than the rows need, which begin at multiples of 16 bytes."""
    left, right, offsets, _, dtype = (*args, *[None] * 5)[:5]
    size = [left.shape[-2], right.shape[-1]]
    if left.dim() == right.dim():
        size.insert(0, len(left) if offsets is None else len(offsets))
    dtype = dtype or left.dtype
    row = -(-size[-1] * dtype.itemsize // 16) * 16 // dtype.itemsize
    return torch.empty_strided(size, [size[-2] * row, row, 1][-len(size) :], dtype=dtype, device=left.device)


_UNTOLD: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "aten::_ctc_loss": _ctc_loss,
    "aten::_grouped_mm": _grouped_mm,
    "aten::_ctc_loss_backward": lambda args: args[1].new_empty(args[1].shape),
    "aten::mkldnn_rnn_layer_backward": lambda args: tuple(given.new_empty(given.shape) for given in args[:7]),
}

_ENLARGED: dict[str, Callable[[Any, tuple[Any, ...], str], Any]] = {
    "aten::binary_cross_entropy": _loss,
    "aten::mse_loss": _loss,
    "aten::smooth_l1_loss": _loss,
    "aten::soft_margin_loss": _loss,
    "aten::mkldnn_rnn_layer": _recurrent_layer,
}
