"""Traces the step of a target on fake tensors: nothing is allocated, and nothing runs."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_lms.errors import LmsError, UsageError
from torch_lms.targets.checkpoint import checkpoint_blocks
from torch_lms.targets.contract import CONTRACT, Target, described
from torch_lms.targets.lora import with_lora
from torch_lms.targets.setting import AMP, Setting
from torch_lms.trace import Trace

if TYPE_CHECKING:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

Built = tuple[Any, tuple[Any, ...] | Mapping[str, Any], Any]
"""Model, inputs and loss; the loss is None where the target returns none."""


@dataclass(frozen=True)
class Traced:
    """A step of one device.

    Attributes:
        trace: on fake tensors.
        items: how many pixels, voxels or tokens are in it.
        item: what these are: "pixels", "voxels", "tokens", "positions", or "samples".
        samples: how many samples are in it.
        gradient_bytes: the size of the gradients of all parameters that are trained.
    """

    trace: Trace
    items: int
    item: str
    samples: int
    gradient_bytes: int


def trace(name: str, target: Target, setting: Setting) -> Traced:
    """Trace a step of ``target`` on one of ``setting.gpus`` devices; the others' steps are like it.

    Raises:
        UsageError: the target does not keep the contract, cannot take the setting, or raised an error.
        UnsupportedError: it depends on values.
    """
    try:
        return _trace(name, target, setting)
    except LmsError:
        raise
    except Exception as error:
        raise UsageError(f"{name} raised {described(error)}") from error


def _trace(name: str, target: Target, setting: Setting) -> Traced:
    import torch

    from torch_lms.capture.fake import trace_step

    model, inputs, loss = _built(name, target, setting)
    if setting.checkpoints:
        checkpoint_blocks(model)
    model.train(not setting.is_inference)
    optimizer = setting.optimizer or getattr(target, "optimizer", None) or "sgd"
    amp = AMP[setting.amp]
    step = trace_step(
        model,
        inputs,
        None if setting.is_inference else optimizer,
        loss=loss,
        device=setting.device,
        amp=None if amp is None else getattr(torch, amp),
    )
    first = _first_tensor(inputs)
    return Traced(
        trace=step,
        items=_items(first),
        item=_item(first),
        samples=1 if first is None or not first.ndim else int(first.shape[0]),
        gradient_bytes=0 if setting.is_inference else _gradient_bytes(model),
    )


def _built(name: str, target: Target, setting: Setting) -> Built:
    """Call the target under ``FakeTensorMode``; without it where making the model or its inputs takes values."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

    arguments = _arguments(name, target, setting)
    with _default_dtype(setting):
        try:
            with FakeTensorMode(allow_non_fake_inputs=True) as mode, _convertible(mode):
                return _adapted(_checked(name, target(**arguments)), setting)
        except DataDependentOutputException:
            return _adapted(_checked(name, target(**arguments)), setting)


def built(name: str, target: Target, setting: Setting) -> Built:
    """Call the target with bytes: its model and inputs are where PyTorch's factories put them, on the default device.

    Errors that are not ours are those of the target.

    Raises:
        UsageError: the target does not keep the contract, or cannot take the setting.
    """
    with _default_dtype(setting):
        return _adapted(_checked(name, target(**_arguments(name, target, setting))), setting)


@contextmanager
def _default_dtype(setting: Setting) -> Iterator[None]:
    """Inside, PyTorch makes tensors of the type that ``setting`` asks for."""
    import torch

    before = torch.get_default_dtype()
    if setting.dtype is not None:
        torch.set_default_dtype(getattr(torch, setting.dtype))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _convertible(mode: "FakeTensorMode") -> Iterator[None]:
    """Inside, ``module.to(dtype)`` works: it swaps tensors, which PyTorch refuses where ``mode`` remembers them."""
    import torch

    swap_tensors = torch.utils.swap_tensors
    remembered = mode.fake_tensor_converter.meta_converter.tensor_memo

    def forget_and_swap(one: "torch.Tensor", other: "torch.Tensor") -> None:
        remembered.clear()  # it only saves converting the same tensor twice
        swap_tensors(one, other)

    torch.utils.swap_tensors = forget_and_swap
    try:
        yield
    finally:
        torch.utils.swap_tensors = swap_tensors


def _adapted(built: Built, setting: Setting) -> Built:
    if setting.lora is None:
        return built
    model, inputs, loss = built
    return with_lora(model, setting.lora), inputs, loss


def _checked(name: str, built: Any) -> Built:
    import torch

    if not isinstance(built, tuple) or len(built) not in (2, 3) or not isinstance(built[0], torch.nn.Module):
        raise UsageError(f"{name} returned {_kind(built)}: {CONTRACT}")
    model, inputs = built[:2]
    loss = built[2] if len(built) == 3 else None
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    elif not isinstance(inputs, Mapping):
        inputs = tuple(inputs)
    return model, inputs, loss


def _arguments(name: str, target: Target, setting: Setting) -> dict[str, Any]:
    """The keywords that the target is called with: the share of one device."""
    arguments = dict(setting.options)
    if setting.size is not None:
        arguments["size"] = setting.size
    if setting.batch is not None:
        if setting.batch % setting.gpus:
            raise UsageError(f"batch is over all GPUs: expected a multiple of {setting.gpus}; got {setting.batch}")
        arguments["batch"] = setting.batch // setting.gpus
    known = inspect.signature(target).parameters
    if "dtype" in known and setting.dtype is not None:
        arguments["dtype"] = setting.dtype
    if "inference" in known:
        arguments["inference"] = setting.is_inference
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        return arguments
    unknown = [keyword for keyword in arguments if keyword not in known]
    if unknown:
        raise UsageError(f"{name} takes {', '.join(known) or 'no arguments'}; got {', '.join(unknown)}")
    return arguments


def _first_tensor(inputs: tuple[Any, ...] | Mapping[str, Any]) -> "torch.Tensor | None":
    import torch

    for value in inputs.values() if isinstance(inputs, Mapping) else inputs:
        if isinstance(value, torch.Tensor):
            return value
    return None


def _items(first: "torch.Tensor | None") -> int:
    """The positions in a batch, of which ``first`` is the first input: pixels, voxels, or tokens."""
    if first is None:
        return 1
    if not first.is_floating_point():  # tokens
        return int(first.numel())
    if first.ndim > 2:  # channels of a pixel or voxel are one item
        return int(first.numel() // max(1, first.shape[1]))
    return int(first.shape[0])


def _item(first: "torch.Tensor | None") -> str:
    """What ``_items`` counts."""
    if first is None:
        return "samples"
    if not first.is_floating_point():
        return "tokens"
    return {4: "pixels", 5: "voxels"}.get(first.ndim, "positions" if first.ndim > 2 else "samples")


def _gradient_bytes(model: "torch.nn.Module") -> int:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return sum(parameter.numel() * parameter.element_size() for parameter in trained)


def _kind(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(part).__name__ for part in value)})"
    return type(value).__name__
