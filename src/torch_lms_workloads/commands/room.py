"""What is said when memory runs out without LMS."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from torch_lms.cli.plan_answer import Question, largest_within
from torch_lms.cli.plan_target import Setting
from torch_lms.cli.room import room_bytes
from torch_lms.errors import LmsError
from torch_lms_workloads.training.memory import is_out_of_memory
from torch_lms_workloads.training.paging import Paging
from torch_lms_workloads.training.setup import Setup


@contextmanager
def explained(
    paging: Paging, device: torch.device, what: str, predicted: Callable[[int], str] = lambda room: ""
) -> Iterator[None]:
    """Around work without LMS: names the option that would have helped.

    Args:
        paging, device: what is worked with, and where.
        what: is worked on.
        predicted: of the bytes that the device had room for, what would have fitted, to be added to the message.

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
    raise LmsError(f"out of memory without LMS, {what}: leave --no-lms away{predicted(room)}. ({cause})")


def size_that_fits(setup: Setup, room: int) -> str:
    """By tracing steps of other sizes; nothing if that cannot be told."""
    recipe = setup.recipe
    setting = Setting(
        size=recipe.size,
        batch=recipe.batch,
        options=recipe.options,
        optimizer=recipe.optimizer,
        amp=recipe.amp,
        device=setup.device.type,
    )
    question = Question(setup.workload.name, setup.workload, setting, "planned", None)
    try:
        found = largest_within(question, "size", room)
    except (LmsError, RuntimeError, MemoryError):
        return ""
    without = f"sizes up to {found.without} should fit" if found.without else "no size fits"
    return f", with it sizes up to {found.with_lms} should fit; without it {without}"
