"""Composite functions call other operators on a GPU than on the CPU: a mode that makes them call those of a GPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_VF: Any = torch._VF
_RELU, _TANH, _LSTM, _GRU = range(4)
"""PyTorch's numbers of kinds of recurrent networks."""


class AsOnCuda(TorchFunctionMode):
    """Calls what a GPU would run.

    Dropout keeps a mask of bytes there. Attention with dropout has a kernel of its own; a recurrent layer has one for
    all time steps.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func``, or what stands for it."""
        given = dict(kwargs or {})
        if func is torch.nn.functional.dropout:
            return _dropout(*args, **given)
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _attention(*args, **given)
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
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, *rest, **given)


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
