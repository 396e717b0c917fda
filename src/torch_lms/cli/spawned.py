"""Processes that a script under ``torch-lms run`` starts by ``torch.multiprocessing``: LMS is on in each."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any

from torch_lms.import_hooks import once_imported

_MODULE = "torch.multiprocessing.spawn"

TurnOn = Callable[[str], None]
"""Is given the number of the process, and can be pickled."""


@dataclass(frozen=True)
class Spawned:
    """What a process runs, with LMS turned on before.

    Attributes:
        run: what the script has it run.
        turn_on: turns LMS on.
    """

    run: Callable[..., Any]
    turn_on: TurnOn

    def __call__(self, number: int, *args: Any) -> Any:
        """In the process of that ``number``."""
        self.turn_on(str(number))
        return self.run(number, *args)


def cover_spawned(turn_on: TurnOn) -> None:
    """Have ``torch.multiprocessing.spawn`` and ``start_processes`` turn LMS on in each process, from its import on."""
    once_imported(_MODULE, lambda: _patch(turn_on))


def _patch(turn_on: TurnOn) -> None:
    module = import_module(_MODULE)
    start = module.start_processes

    @wraps(start)
    def covered(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> Any:
        if start_method == "fork":
            print(
                f"torch-lms: {nprocs} processes run without LMS, since they are forked: start them by "
                f'torch.multiprocessing.spawn, or by start_processes with start_method="spawn"',
                file=sys.stderr,
            )
            return start(fn, args, nprocs, join, daemon, start_method)
        return start(Spawned(fn, turn_on), args, nprocs, join, daemon, start_method)

    vars(module)["start_processes"] = covered
