"""The processes that train together. ``torchrun`` starts them, and tells each who it is."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Ranks:
    """
    Attributes:
        rank: which this process is, of ``count``.
        local: which it is on this machine: the GPU that it takes.
    """

    rank: int = 0
    count: int = 1
    local: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def device(self) -> torch.device:
        """A GPU for each rank, or the CPU for all."""
        found = torch.accelerator.current_accelerator(check_available=True)
        if found is None:
            return torch.device("cpu")
        return torch.device(found.type, self.local % torch.accelerator.device_count())

    def mean(self, value: float) -> float:
        """Of all ranks' values."""
        if self.count == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total)
        return float(total / self.count)

    def gathered(self, value: Any) -> list[Any]:
        """All ranks' values, on the first rank; elsewhere nothing."""
        if self.count == 1:
            return [value]
        values = [None] * self.count if self.is_first else None
        dist.gather_object(value, values)
        return values or []

    def wait(self) -> None:
        """Until all ranks are here."""
        self.mean(0.0)


def told_by_launcher(environment: Mapping[str, str]) -> Ranks:
    """Which rank this is."""
    rank, count, local = (int(environment.get(name, default)) for name, default in _NAMES.items())
    return Ranks(rank, count, local)


_NAMES = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}


@contextmanager
def joined(ranks: Ranks, device: torch.device) -> Iterator[None]:
    """Among the ranks. After an error the launcher ends the others, which may wait for this one."""
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)
    if ranks.count == 1:
        yield
        return
    dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
    yield
    dist.destroy_process_group()


def leave() -> NoReturn:
    """End this process at once, after all is done and written.

    FSDP2's meshes keep gloo's threads alive. One that lets go of its last tensor while Python shuts down ends the
    process with SIGABRT (pytorch/pytorch#190489), and the launcher the whole job.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def ranks_here() -> Ranks:
    """This process's."""
    return told_by_launcher(os.environ)
