"""Composite functions call other operators on a GPU than on the CPU: a mode that makes them call those of a GPU.

``tests/cpu/test_as_on_cuda.py`` compares it with a build of PyTorch for CUDA, and names what differs.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torch_lms.capture.autocast_as_on_cuda import as_autocast_on_cuda

_F: Any = torch.nn.functional
_VF: Any = torch._VF
_RELU, _TANH, _LSTM, _GRU = range(4)
"""PyTorch's numbers of kinds of recurrent networks."""

_HAS_GRU_CELL = torch._C._dispatch_has_kernel_for_dispatch_key("aten::_thnn_fused_gru_cell", "Meta")
"""Whether this PyTorch (from 2.15 on) knows the sizes of what a GPU's cell of a GRU gives."""


class AsOnCuda(TorchFunctionMode):
    """Calls what a GPU would run.

    Dropout keeps a mask of bytes there. Attention with dropout has a kernel of its own, and so has RMSNorm; a recurrent
    layer has one for all time steps, and a recurrent cell one for all gates.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func``, or what stands for it."""
        given = dict(kwargs or {})
        if torch.is_autocast_enabled("cpu"):
            func = as_autocast_on_cuda(func)
        if func is _F.dropout:
            return _dropout(*args, **given)
        if func is _F.scaled_dot_product_attention:
            return _attention(*args, **given)
        if func is _F.multi_head_attention_forward:
            return _of_several_heads(func)(*args, **given)
        if func is _VF.lstm_cell:
            return _lstm_cell(*args, **given)
        if func is _VF.gru_cell and _HAS_GRU_CELL:
            return _gru_cell(*args, **given)
        if func is _F.rms_norm:
            return _rms_norm(*args, **given)
        if func in _RECURRENT and isinstance(args[2], list) and not _is_projected(args[1]):
            return _recurrent(_RECURRENT[func], *args)
        return func(*args, **given)


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    if inplace:
        return torch.dropout_(input, p, training)
    if not training or not 0 < p < 1:
        return torch.dropout(input, p, training)
    return torch.native_dropout(input, p, True)[0]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    *rest: Any,
    **given: Any,
) -> torch.Tensor:
    """Without dropout, for which the CPU has no kernel: it would take attention apart."""
    result: torch.Tensor = _F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, *rest, **given)
    return result


def _of_several_heads(func: FunctionType) -> FunctionType:
    """``func`` with ours instead of the functions that it calls: the mode does not see what a function calls."""
    seen_by_it = {**func.__globals__, "dropout": _dropout, "scaled_dot_product_attention": _attention}
    if torch.is_autocast_enabled("cpu"):
        seen_by_it["softmax"] = as_autocast_on_cuda(_F.softmax)
    ours = FunctionType(func.__code__, seen_by_it, func.__name__, func.__defaults__, func.__closure__)
    ours.__kwdefaults__ = func.__kwdefaults__
    return ours


def _lstm_cell(
    input: torch.Tensor,
    state: tuple[torch.Tensor, torch.Tensor],
    of_input: torch.Tensor,
    of_hidden: torch.Tensor,
    *biases: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    hidden, cells = state
    gates = torch.mm(input, of_input.t()), torch.mm(hidden, of_hidden.t())
    results: tuple[torch.Tensor, ...] = torch.ops.aten._thnn_fused_lstm_cell(*gates, cells, *biases)
    return results[0], results[1]


def _gru_cell(
    input: torch.Tensor,
    hidden: torch.Tensor,
    of_input: torch.Tensor,
    of_hidden: torch.Tensor,
    *biases: torch.Tensor | None,
) -> torch.Tensor:
    gates = torch.mm(input, of_input.t()), torch.mm(hidden, of_hidden.t())
    new_hidden: torch.Tensor = torch.ops.aten._thnn_fused_gru_cell(*gates, hidden, *biases)[0]
    return new_hidden


def _rms_norm(
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    result: torch.Tensor = _RmsNorm.apply(input, weight, list(normalized_shape), eps)
    return result


class _RmsNorm(torch.autograd.Function):
    """One operation in each direction. The CPU's autograd takes the operator apart before anybody sees it."""

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor | None, shape: list[int], eps: float | None
    ) -> torch.Tensor:
        """Normalize ``input`` over its last dimensions."""
        with torch._C._AutoDispatchBelowAutograd():
            made: tuple[torch.Tensor, ...] = torch.ops.aten._fused_rms_norm(input, shape, weight, eps)
        result, scale = made
        ctx.save_for_backward(input, scale, weight)
        ctx.shape = shape
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of the input and of the weight."""
        input, scale, weight = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:2])
        made = torch.ops.aten._fused_rms_norm_backward(gradient, input, ctx.shape, scale, weight, wanted)
        return (*made, None, None)


def _is_projected(state: torch.Tensor | tuple[torch.Tensor, torch.Tensor]) -> bool:
    """Whether it is the state of an LSTM whose hidden state is smaller than its cell state."""
    return isinstance(state, tuple) and state[0].shape[-1] != state[1].shape[-1]


def _recurrent(
    kind: int,
    input: torch.Tensor,
    state: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    weights: list[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """One operation for each layer and direction. It is oneDNN's, of whatever kind."""
    x = input.transpose(0, 1) if batch_first else input
    hidden, cells = state if isinstance(state, tuple) else (state, state)
    directions = 2 if bidirectional else 1
    weights_each = 4 if has_biases else 2
    ends = []
    for layer in range(num_layers):
        outputs = []
        for number in range(layer * directions, (layer + 1) * directions):
            of_input, of_hidden, *biases = weights[number * weights_each : (number + 1) * weights_each]
            if not biases:  # the operation takes them all the same
                biases = [of_input.new_zeros(of_input.shape[0])] * 2
            output, *end, _ = torch.ops.aten.mkldnn_rnn_layer(
                x,
                of_input,
                of_hidden,
                *biases,
                hidden[number],
                cells[number],
                reverse=number % directions == 1,
                batch_sizes=[],
                mode=kind,
                hidden_size=of_hidden.shape[1],
                num_layers=num_layers,
                has_biases=has_biases,
                bidirectional=bidirectional,
                batch_first=batch_first,
                train=train,
            )
            outputs.append(output)
            ends.append(end)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        is_last = layer + 1 == num_layers
        x = _dropout(x, dropout, train and not is_last)
    last_hidden, last_cells = (torch.stack(of_all) for of_all in zip(*ends, strict=True))
    if batch_first:
        x = x.transpose(0, 1)
    if kind == _LSTM:
        return x, last_hidden, last_cells
    return x, last_hidden


_RECURRENT: dict[Callable[..., Any], int] = {_VF.rnn_relu: _RELU, _VF.rnn_tanh: _TANH, _VF.lstm: _LSTM, _VF.gru: _GRU}
