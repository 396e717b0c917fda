"""Making up for an attempt that ran out of memory, so that a second one gives what the first would have (N9)."""

from collections.abc import Callable
from typing import Any

import torch

from torch_lms.capture.tensors import is_bare

Undo = Callable[[], None]


def snapshot(written: list[Any], is_page: Callable[[Any], bool], generator: torch.Generator | None) -> Undo | None:
    """How to undo what a failed attempt may have done: small tensors written, random numbers drawn.

    Args:
        written: tensors and storages that it may write.
        is_page: whether one of these belongs to a page.
        generator: that it may draw from.

    Returns:
        None if that is not possible: it may write a page, or more than the elements of a tensor.
    """
    if any(is_page(tensor) or not is_bare(tensor) for tensor in written):
        return None
    state = None if generator is None else generator.get_state()
    copies = [(tensor, tensor.clone()) for tensor in written]

    def undo() -> None:
        if generator is not None and state is not None:
            generator.set_state(state)
        for tensor, copy in copies:
            tensor.copy_(copy)

    return undo


def generator_of(device: torch.device) -> torch.Generator | None:
    """The generator from which operations on ``device`` draw unless they are given one; None if that is not known."""
    if device.type == "cpu":
        return torch.default_generator
    module = getattr(torch, device.type, None)  # there is none for "meta"
    generators = getattr(module, "default_generators", ())  # empty before the device is initialized
    if not generators:
        return None
    index = torch.accelerator.current_device_index() if device.index is None else device.index
    generator: torch.Generator = generators[index]
    return generator
