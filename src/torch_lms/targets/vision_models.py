"""Models of timm and torchvision by name, without weights: ``--size`` is the side of an image."""

import difflib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch_lms.errors import UsageError
from torch_lms.targets.contract import Target
from torch_lms.targets.torchvision_operators import define_torchvision_operators

if TYPE_CHECKING:
    import torch
    from torch import nn

_TORCHVISION_SHAPES = {
    "torchvision.models": (),
    "torchvision.models.segmentation": (),
    "torchvision.models.video": (16,),
}
"""The packages of torchvision whose models take one tensor, and what is between its channels and its sides: frames."""


def timm_model(name: str) -> Target:
    """The model that timm has under ``name``. Its options are those of ``timm.create_model``.

    Raises:
        UsageError: there is none, or timm is not installed.
    """
    define_torchvision_operators()
    try:
        import timm
    except ImportError as error:
        raise UsageError(f"timm:{name} needs timm ({error}): pip install 'torch-lms[workloads]'") from error
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())
    channels, side, _ = timm.get_pretrained_cfg(name).input_size

    def target(size: int = side, batch: int = 1, **options: Any) -> Any:
        def create(**sides: int) -> "nn.Module":
            made: nn.Module = timm.create_model(name, pretrained=False, **sides, **options)
            return made

        model = _of_side(create, "img_size", size, side)
        return _with_images(model, (batch, options.get("in_chans", channels), size, size))

    return target


def torchvision_model(name: str) -> Target:
    """The classifier, segmenter or video model that torchvision has under ``name``, with the options of its function.

    Raises:
        UsageError: there is none, its inputs are not one tensor, or torchvision is not installed.
    """
    define_torchvision_operators()
    try:
        from torchvision import models
    except ImportError as error:
        raise UsageError(
            f"torchvision:{name} needs torchvision ({error}): pip install 'torch-lms[workloads]'"
        ) from error
    if name not in models.list_models():
        raise _unknown("torchvision", name, models.list_models())
    package = models.get_model_builder(name).__module__.rpartition(".")[0]
    if package not in _TORCHVISION_SHAPES:
        raise UsageError(
            f"torchvision:{name} cannot be planned by name: expected a classifier, a segmenter or a video model; "
            f"those of {package} take more than one tensor, or depend on values. Give a function with its inputs, or "
            "record a step while it runs: torch-lms run --trace FILE"
        )
    frames = _TORCHVISION_SHAPES[package]
    side = 112 if frames else 224

    def target(size: int = side, batch: int = 1, **options: Any) -> Any:
        def create(**sides: int) -> "nn.Module":
            no_weights = {"weights_backbone": None} if package.endswith("segmentation") else {}
            made: nn.Module = models.get_model(name, weights=None, **no_weights, **sides, **options)
            return made

        model = _of_side(create, "image_size", size, side)
        return _with_images(model, (batch, 3, *frames, size, size))

    return target


def _of_side(create: Callable[..., "nn.Module"], keyword: str, size: int, own: int) -> "nn.Module":
    """A model for images of that side. Transformers have to be told of it; convolutions take any, and no keyword."""
    if size == own:
        return create()
    try:
        return create(**{keyword: size})
    except TypeError:
        return create()


def _with_images(model: "nn.Module", shape: tuple[int, ...]) -> Any:
    import torch

    return model, (torch.empty(shape, dtype=torch.get_default_dtype()),), _cross_entropies


def _cross_entropies(outputs: Any) -> "torch.Tensor":
    """The sum over all outputs, auxiliary ones too, of the cross-entropy with a class for each position."""
    import torch
    from torch.nn import functional as F
    from torch.utils import _pytree as pytree

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, torch.zeros(logits.shape[0], *logits.shape[2:], dtype=torch.long))

    leaves = pytree.tree_leaves(dict(outputs) if isinstance(outputs, dict) else outputs)
    return torch.stack([loss(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim > 1]).sum()


def _unknown(library: str, name: str, known: Iterable[str]) -> UsageError:
    near = difflib.get_close_matches(name, known)
    hint = f"; did you mean {' or '.join(near)}?" if near else ": see its list_models()"
    return UsageError(f"{library} has no model {name!r}{hint}")
