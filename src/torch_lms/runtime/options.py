"""What the user asked for, checked."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_lms.engine import MakePlan
from torch_lms.errors import UsageError
from torch_lms.machine.memory import read_host_memory
from torch_lms.planner.makers import PLANNED, plan_maker
from torch_lms.policy import Planned, Policy, Reactive
from torch_lms.runtime.limits import auto_limit
from torch_lms.stores.spill_dir import default_spill_dir
from torch_lms.units import parse_bytes

POLICIES = ("reactive", *PLANNED)

_HOST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Options:
    """A session's settings.

    Attributes:
        kind: "cpu", or the accelerator's type.
        limit: bytes, or None for whatever the device can hold.
        min_size: smaller storages never move, bytes.
        host_limit: most bytes of page-locked host memory.
        spill_dir: directory of the spill file.
        policy: name.
        recompute: whether pages may be recomputed instead of being moved.
        exact: whether pieces of an operation must give the same bits as the whole (N27).
        make_plan: makes the plans of the policy, if it follows any.
    """

    kind: str
    limit: int | None
    min_size: int
    host_limit: int
    spill_dir: Path
    policy: str
    recompute: bool
    exact: bool
    make_plan: MakePlan

    def new_policy(self) -> Policy:
        """A policy of the kind asked for."""
        return Planned(self.policy) if self.policy in PLANNED else Reactive()


def check(
    *,
    limit: int | str,
    min_size: int | str,
    host_limit: int | str,
    spill_dir: str | os.PathLike[str] | None,
    policy: str,
    recompute: bool,
    exact: bool,
    device: str | torch.device,
    tune: Mapping[str, Any] | None,
) -> Options:
    """The settings meant by the arguments of ``enable``.

    Raises:
        UsageError: one of them makes no sense; says what would.
    """
    kind = _kind(device)
    if policy not in POLICIES:
        raise UsageError(f"policy must be one of {', '.join(map(repr, POLICIES))}; got {policy!r}")
    if not isinstance(recompute, bool):
        raise UsageError(f"recompute must be True or False; got {recompute!r}")
    if not isinstance(exact, bool):
        raise UsageError(f"exact must be True or False; got {exact!r}")
    if not exact and torch.are_deterministic_algorithms_enabled():
        raise UsageError(
            "exact=False lets operations be cut in ways that change how numbers are rounded, and "
            "torch.use_deterministic_algorithms(True) asks for the same bits each time: give up one of them"
        )
    return Options(
        kind=kind,
        limit=_limit(limit, kind),
        min_size=max(1, parse_bytes(min_size, name="min_size")),
        host_limit=_host_limit(host_limit),
        spill_dir=default_spill_dir() if spill_dir is None else _directory(spill_dir),
        policy=policy,
        recompute=recompute,
        exact=exact,
        make_plan=plan_maker(policy, tune),
    )


def _directory(spill_dir: str | os.PathLike[str]) -> Path:
    if not isinstance(spill_dir, str | os.PathLike) or not os.fspath(spill_dir):
        raise UsageError(f"spill_dir must be a directory; got {spill_dir!r}")
    return Path(spill_dir)


def _kind(device: str | torch.device) -> str:
    if str(device) == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        return "cpu" if found is None else found.type
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError) as error:
        raise UsageError(f'device must be "auto", "cpu" or an accelerator such as "cuda"; got {device!r}') from error
    available = {"cpu"} | {a.type for a in [torch.accelerator.current_accelerator(check_available=True)] if a}
    if kind not in available:
        raise UsageError(f"this machine has no {kind!r} device (it has: {', '.join(sorted(available))})")
    return kind


def _limit(limit: int | str, kind: str) -> int | None:
    if limit == "auto":
        return None
    whole = auto_limit(torch.device(kind)).whole
    nbytes = parse_bytes(limit, name="limit", whole=whole)
    if nbytes > 1 << 60:
        raise UsageError(f'limit is more than any device has: {limit!r}; give {"bytes"} it can hold, or "auto"')
    return nbytes


def _host_limit(limit: int | str) -> int:
    memory = read_host_memory()
    if limit == "auto":
        return int(memory.binding()[1] * _HOST_SHARE) // _ranks_here()
    return parse_bytes(limit, name="host_limit", whole=memory.total)


def _ranks_here() -> int:
    """How many processes of one training share this machine, as launchers such as torchrun tell them."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(told)) if told.isdecimal() else 1
