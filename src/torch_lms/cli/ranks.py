"""Ranks that a script starts under ``torch-lms run``, or that it is a launcher of: LMS is on in each.

The options travel in the environment, and so does a folder on PYTHONPATH whose ``sitecustomize`` every new Python
imports. A process that is a rank then turns LMS on once it has imported torch. All others are left alone.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

_OPTIONS = "TORCH_LMS_RANKS"

_HOOK = Path(__file__).with_name("in_ranks")

_LAUNCHERS = frozenset(
    {
        *("torchrun", "accelerate", "deepspeed"),
        *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
        *("accelerate.commands.accelerate_cli", "deepspeed.launcher.runner"),
    }
)
"""Scripts and modules that start ranks and have no tensors of their own."""


def is_launcher(script: str) -> bool:
    """Whether ``script``, a path or a module's name, starts ranks and does nothing else."""
    return os.path.basename(script) in _LAUNCHERS


def is_rank() -> bool:
    """Whether somebody has started this process as one."""
    return "LOCAL_RANK" in os.environ


def cover(options: dict[str, Any], stats_to: Path | str | None) -> None:
    """Have ranks that this process starts turn LMS on with ``options``.

    Args:
        stats_to: each writes its statistics to a file of its own, whose name is this with the rank before the suffix.
    """
    stats = None if stats_to in (None, "-") else str(stats_to)
    os.environ[_OPTIONS] = json.dumps({"options": options, "stats": stats})
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{_HOOK}{os.pathsep}{path}" if path else str(_HOOK)


def told() -> tuple[dict[str, Any], Path | None] | None:
    """What this rank was told, once: its options, and where its statistics go. None if it is to be left alone."""
    if _is_helper():
        return None
    given = os.environ.pop(_OPTIONS, None)  # what this process starts are its helpers
    if given is None:
        return None
    found = json.loads(given)
    return found["options"], stats_of_rank(found["stats"], os.environ["LOCAL_RANK"])


def stats_of_rank(stats_to: Path | str | None, rank: str) -> Path | None:
    """The file of a rank's statistics, if they are to be written into one."""
    if stats_to in (None, "-"):
        return None
    file = Path(stats_to)
    return file.with_stem(f"{file.stem}.rank{rank}")


def _is_helper() -> bool:
    """Whether this process was started by a rank for its own use, as a loader's worker or a compiler's is."""
    started = sys.argv[0]
    return started == "-c" or "torch/_inductor" in started
