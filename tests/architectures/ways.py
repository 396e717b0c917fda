"""What is done with a network: each of ``WAYS`` gives the tensors by which two such uses are compared."""

import random
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from tests.architectures.networks import CannotBeMade, Network, loss_of, tensors_in
from tests.shares import trained

_STEPS = 4
_BATCHES = 3
_TOKENS = 6


def _train(network: Network) -> list[Tensor]:
    """Four steps of AdamW: losses, weights and buffers."""
    return _trained(network, _made(network))


def _trained(network: Network, model: nn.Module) -> list[Tensor]:
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-4)
    return [*trained(model, optimizer, lambda: loss_of(network.result(model)), _STEPS), *model.buffers()]


def _checkpoint(network: Network) -> list[Tensor]:
    """The same, recomputing in the backward pass as the library does."""
    model = _made(network)
    if getattr(model, "supports_gradient_checkpointing", False):
        model.gradient_checkpointing_enable()
    elif hasattr(model, "set_grad_checkpointing"):
        model.set_grad_checkpointing(True)
    else:
        raise CannotBeMade("its library recomputes nothing of it")
    return _trained(network, model)


def _channels_last(network: Network) -> list[Tensor]:
    """The same, with channels last in memory."""
    model = _made(network)
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        raise CannotBeMade("it has no convolutions of pictures")
    return _trained(network, model.to(memory_format=torch.channels_last))


def _infer(network: Network) -> list[Tensor]:
    """Results of three batches, the last in inference mode."""
    model = _made(network).eval()
    found = []
    for number in range(_BATCHES):
        with torch.inference_mode() if number == _BATCHES - 1 else torch.no_grad():
            found += [tensor.clone() for tensor in tensors_in(network.result(model))]
    return found


def _generate(network: Network) -> list[Tensor]:
    """Tokens, sampled, and searched for in two beams."""
    model = _made(network).eval()
    if not (hasattr(model, "can_generate") and model.can_generate()):
        raise CannotBeMade("it generates nothing")

    def results() -> Iterator[Tensor]:
        for how in ({"do_sample": True}, {"num_beams": 2, "do_sample": False}):
            batch = network.feed()
            assert isinstance(batch, dict)
            given = {name: value for name, value in batch.items() if not name.startswith("decoder_")}
            yield model.generate(**given, max_new_tokens=_TOKENS, min_new_tokens=_TOKENS, **how)

    return list(results())


def _made(network: Network) -> nn.Module:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    return network.make().train()


WAYS: dict[str, Callable[[Network], list[Tensor]]] = {
    "train": _train,
    "checkpoint": _checkpoint,
    "channels-last": _channels_last,
    "infer": _infer,
    "generate": _generate,
}
"""By their names."""
