"""The ways to train, each as something around the steps that tells what it moved."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch.autograd.graph import saved_tensors_hooks

from torch_lms.bench.child.hooks import CountedSaveOnCpu, DiskHooks
from torch_lms.bench.trial import Asked
from torch_lms.bench.ways import HOOKS, OURS, SAVE_ON_CPU
from torch_lms.runtime.api import Lms, session

_SETTLED = 2
"""Steps that followed a plan: the first follows one that knows only the times of a step without."""


class Around(Protocol):
    """What is around the steps."""

    def figures(self) -> dict[str, Any]:
        """What moved so far, by the names of ``Trial``; what is not known is not there."""

    def tiers(self) -> dict[str, int]:
        """The bytes in the lower tiers now."""

    def has_settled(self) -> bool:
        """Whether the next steps are like those to come."""


class Nothing:
    """Stock PyTorch."""

    def figures(self) -> dict[str, Any]:
        return {}

    def tiers(self) -> dict[str, int]:
        return {}

    def has_settled(self) -> bool:
        return True


class OurSession:
    """LMS is on."""

    def __init__(self, lms: Lms, policy: str) -> None:
        self._lms = lms
        self._is_planned = policy != "reactive"

    def figures(self) -> dict[str, Any]:
        stats = self._lms.stats()
        return {
            "evicted_bytes": stats.evicted_bytes,
            "fetched_bytes": stats.fetched_bytes,
            "evictions": stats.evictions,
            "recomputes": stats.recomputes,
            "wait_s": stats.stall_s,
            "demand_bytes": stats.demand_bytes,
            "limit_bytes": stats.limit_bytes,
            "ledger_bytes": stats.peak_resident_bytes,
            "allocations": stats.allocations,
            "inexact": stats.inexact,
            "planning_s": stats.planning_s,
            "planned_steps": stats.planned_steps,
        }

    def tiers(self) -> dict[str, int]:
        stats = self._lms.stats()
        return {"peak_host_bytes": stats.host_bytes, "peak_disk_bytes": stats.disk_bytes}

    def has_settled(self) -> bool:
        stats = self._lms.stats()
        return not self._is_planned or stats.planned_steps >= _SETTLED or not stats.evicted_bytes

    def count_anew(self) -> None:
        """See ``torch_lms.reset_stats``."""
        self._lms.reset_stats()


class Hooked:
    """Saved tensors are elsewhere."""

    def __init__(self, hooks: DiskHooks | CountedSaveOnCpu, tier: str) -> None:
        self._hooks = hooks
        self._tier = tier

    def figures(self) -> dict[str, Any]:
        return {"evicted_bytes": self._hooks.evicted_bytes, "fetched_bytes": self._hooks.fetched_bytes}

    def tiers(self) -> dict[str, int]:
        return {self._tier: self._hooks.peak_bytes}

    def has_settled(self) -> bool:
        return True


@contextmanager
def around(asked: Asked) -> Iterator[Around]:
    """Inside, steps are taken in the way that was asked for."""
    if asked.way in OURS:
        os.environ.setdefault("TORCH_LMS_PLANNING", "at-once")  # what counts are the steps once there is a plan
        given = "auto" if asked.limit is None else asked.limit
        with session(given, policy=asked.way, device=asked.device, exact=asked.exact) as lms:
            yield OurSession(lms, asked.way)
    elif asked.way in (HOOKS, SAVE_ON_CPU):
        hooks = DiskHooks() if asked.way == HOOKS else CountedSaveOnCpu()
        tier = "peak_disk_bytes" if asked.way == HOOKS else "peak_host_bytes"
        with saved_tensors_hooks(hooks.pack, hooks.unpack):
            yield Hooked(hooks, tier)
    else:
        yield Nothing()
