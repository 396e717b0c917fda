"""LMS, as asked for on the command line."""

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch

import torch_lms
from torch_lms.live import Reading, shown


class Session(Protocol):
    """A session that is on."""

    def stats(self) -> torch_lms.Stats:
        """What happened so far."""

    def reading(self) -> Reading | None:
        """What is shown of it while it runs."""


@dataclass(frozen=True)
class Paging:
    """
    Attributes:
        is_on: whether there is to be LMS at all.
        limit: of device memory, as ``torch_lms.enable`` takes it.
        policy: the same.
        exact: the same.
        is_live: whether it is shown while it runs.
    """

    is_on: bool = True
    limit: str = "auto"
    policy: str = "planned"
    exact: bool = True
    is_live: bool = False

    @contextmanager
    def session(self, device: torch.device) -> Iterator[Session | None]:
        """A session on that kind of device, or None. What is made inside is not needed after it."""
        if not self.is_on:
            yield None
            return
        with torch_lms.session(limit=self.limit, policy=self.policy, exact=self.exact, device=device.type) as lms:
            try:
                with shown(lms.reading) if self.is_live else nullcontext():
                    yield lms
            except BaseException as error:
                traceback.clear_frames(error.__traceback__)
                raise
            finally:
                gc.collect()  # all that is still referred to comes back to the device, which may be too small for it
