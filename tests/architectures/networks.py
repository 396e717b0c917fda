"""The networks: their names, and how each is made small and fed."""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn

_MAX_PARAMETERS = 40_000_000

_SIDES = (64, 96, 128, 224, 299)
"""Pixels of pictures, the first that a network takes counts."""

_SMALL = re.compile(r"test_|tiny|nano|pico|atto|femto|small|micro|xs|_s|b0|18|10|_0|050|035|lite")
"""In names of timm's."""

_PER_FAMILY = 6
"""So many of timm's networks are tried."""

_WORDS = 90


@dataclass(frozen=True)
class Network:
    """One of them.

    Attributes:
        make: makes it.
        feed: the arguments of its ``forward``, by their names, or in their order.
    """

    make: Callable[[], nn.Module]
    feed: Callable[[], dict[str, Tensor] | tuple[Tensor, ...]]

    def result(self, model: nn.Module) -> Any:
        """What ``model``, that ``make`` gave, makes of a new batch."""
        batch = self.feed()
        return model(**batch) if isinstance(batch, dict) else model(*batch)


class CannotBeMade(Exception):
    """The rules make no network that can be trained; the message is the first error."""


def names() -> list[str]:
    """Of all, as ``built`` takes them."""
    import timm
    from transformers import CONFIG_MAPPING

    found = {"timm": timm.list_modules(), "torchvision": _of_torchvision(), "transformers": list(CONFIG_MAPPING)}
    return [f"{library}:{name}" for library, its in found.items() for name in its]


def built(name: str) -> Network:
    """That of this name.

    Raises:
        CannotBeMade: see there.
    """
    library, _, its_name = name.partition(":")
    errors = []
    for network in _CANDIDATES[library](its_name):
        try:
            with redirect_stderr(StringIO()):
                model = network.make()
                if _parameters_of(model) > _MAX_PARAMETERS:  # those that would be tried next have as many
                    raise CannotBeMade(f"{_parameters_of(model):,} parameters")
                loss_of(network.result(model)).backward()
            return network
        except CannotBeMade:
            raise
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    raise CannotBeMade(errors[0] if errors else "there is no model of its own")


def _parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def loss_of(result: Any) -> Tensor:
    """Of everything in ``result`` that depends on weights.

    Raises:
        ValueError: nothing does.
    """
    parts = [tensor.float().square().mean() for tensor in tensors_in(result) if tensor.requires_grad]
    if not parts:
        raise ValueError("nothing in its result depends on its weights")
    return torch.stack(parts).sum()


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All that ``value``, what a network gives, has somewhere."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)
    elif hasattr(value, "__dict__"):
        yield from tensors_in(vars(value))


def _of_pictures(make: Callable[[], nn.Module], *shape: int) -> Network:
    return Network(make, lambda: (torch.randn(shape),))


# -- timm ------------------------------------------------------------------------------------------------------------


def _candidates_of_timm(family: str) -> Iterator[Network]:
    """The smallest of a family, by its name and then by its parameters."""
    import timm

    def likely(name: str) -> tuple[bool, bool, int]:
        return not name.startswith("test_"), _SMALL.search(name) is None, len(name)

    sizes = {}
    for name in sorted(timm.list_models(module=family), key=likely)[:_PER_FAMILY]:
        with torch.device("meta"):
            sizes[name] = _parameters_of(timm.create_model(name))
    for name in sorted(sizes, key=sizes.__getitem__):
        channels, own_side, _ = timm.get_pretrained_cfg(name).input_size
        for side in dict.fromkeys((*_SIDES[:3], own_side)):
            for options in ({}, {"img_size": side}):
                yield _of_pictures(
                    lambda name=name, options=options: _made_by_timm(name, options), 2, channels, side, side
                )


def _made_by_timm(name: str, options: dict[str, Any]) -> nn.Module:
    """With drop path, if the network has it."""
    import timm

    try:
        return timm.create_model(name, num_classes=10, drop_path_rate=0.1, **options)
    except TypeError:
        return timm.create_model(name, num_classes=10, **options)


# -- torchvision -----------------------------------------------------------------------------------------------------


def _of_torchvision() -> list[str]:
    from torchvision import models

    kinds = (models, models.segmentation, models.video)
    return [name for kind in kinds for name in models.list_models(module=kind)]


def _candidates_of_torchvision(name: str) -> Iterator[Network]:
    """One of pictures, or of films."""
    from torchvision import models

    options = {"weights_backbone": None} if name in models.list_models(module=models.segmentation) else {}
    shapes = [(2, 3, side, side) for side in _SIDES] + [(1, 3, 8, 64, 64), (1, 3, 16, 112, 112)]
    for shape in shapes:
        yield _of_pictures(lambda: models.get_model(name, weights=None, **options), *shape)


# -- transformers ----------------------------------------------------------------------------------------------------

_TABLES = ("MODEL_FOR_CAUSAL_LM_MAPPING", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", "MODEL_MAPPING")

_TEXTS: dict[str, Callable[[], Tensor]] = {
    "input_ids": lambda: torch.randint(3, _WORDS, (2, 24)),
    "decoder_input_ids": lambda: torch.randint(3, _WORDS, (2, 12)),
}
_SHAPES = {
    "pixel_values": [(2, 3, 64, 64), (1, 3, 224, 224), (2, 8, 3, 64, 64), (1, 3, 512, 512)],
    "pixel_values_videos": [(1, 8, 3, 64, 64), (1, 16, 3, 224, 224)],
    "input_values": [(2, 4000), (2, 1024, 128), (2, 1, 8000)],
    "input_features": [(2, 80, 200), (2, 80, 3000), (2, 100, 80), (2, 128, 3000)],
    "past_values": [(2, 64), (2, 64, 1), (2, 512, 1)],
    "inputs_embeds": [(2, 24, 64)],
}
"""Of arguments that are no texts."""


def _candidates_of_transformers(kind: str) -> Iterator[Network]:
    """Models of a kind of configuration, each with the arguments that its ``forward`` may want."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto

    from tests.architectures.small import make_small

    configured = CONFIG_MAPPING[kind]
    for table in _TABLES:
        models = getattr(modeling_auto, table)
        if configured not in models:
            continue
        model = models[configured]
        model = model[0] if isinstance(model, list | tuple) else model
        for feed in _feeds(model):
            yield Network(lambda model=model: model(make_small(configured())), feed)


def _feeds(model: Any) -> Iterator[Callable[[], dict[str, Tensor]]]:
    parameters = inspect.signature(model.forward).parameters
    main = model.main_input_name
    texts = [name for name in _TEXTS if name in parameters]
    of_texts = [texts[:count] for count in range(len(texts) + 1)]
    if main in _TEXTS:
        yield from (_feed(its) for its in of_texts[1:])
    for name in (main, "pixel_values"):
        if name in parameters:
            yield from (_feed(its, name, shape) for shape in _SHAPES.get(name, ()) for its in of_texts)


def _feed(texts: list[str], name: str = "", shape: tuple[int, ...] = ()) -> Callable[[], dict[str, Tensor]]:
    """Makes these texts, and a tensor of random numbers."""
    return lambda: {text: _TEXTS[text]() for text in texts} | ({name: torch.randn(shape)} if name else {})


_CANDIDATES = {
    "timm": _candidates_of_timm,
    "torchvision": _candidates_of_torchvision,
    "transformers": _candidates_of_transformers,
}
