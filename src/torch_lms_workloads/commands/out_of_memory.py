"""Explains to users what would have helped when memory runs out without LMS."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from torch_lms.answers import Question, largest_within, room_bytes
from torch_lms.errors import LmsError
from torch_lms.targets import Setting
from torch_lms_workloads.training.memory import is_out_of_memory
from torch_lms_workloads.training.paging import Paging
from torch_lms_workloads.training.setup import Setup


@contextmanager
def explained(
    paging: Paging, device: torch.device, what: str, predicted: Callable[[int], str] = lambda room: ""
) -> Iterator[None]:
    """Name the option that would have helped, where the work of the ``with`` block runs out of memory without LMS.

    Args:
        paging: how the work is paged.
        device: where it runs.
        what: what is worked on, for the message.
        predicted: says what would have fitted into the bytes that the device had room for, at the end of the message.

    Raises:
        LmsError: in place of torch's own error.
    """
    room = 0 if paging.is_on else room_bytes(str(device))
    try:
        yield
        return
    except (RuntimeError, MemoryError) as error:
        if paging.is_on or not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)
        cause = " ".join(str(error).split())
    raise LmsError(f"out of memory without LMS, {what}: omit --no-lms{predicted(room)}. ({cause})")


def size_that_fits(setup: Setup, room: int) -> str:
    """Say which sizes would have fitted into ``room`` bytes, by tracing steps; "" if that cannot be told."""
    recipe = setup.recipe
    setting = Setting(
        size=recipe.size,
        batch=recipe.batch,
        options=recipe.options,
        optimizer=recipe.optimizer,
        amp=recipe.amp,
        device=setup.device.type,
    )
    question = Question(setup.workload.name, setup.workload, setting, policy="planned", limit=None)
    try:
        found = largest_within(question, "size", room)
    except (LmsError, RuntimeError, MemoryError):
        return ""
    without = f"sizes up to {found.without} should fit" if found.without else "no size fits"
    return f", with it sizes up to {found.with_lms} should fit; without it {without}"
