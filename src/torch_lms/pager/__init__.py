"""The core: told of events, it asks for actions. No clock, no I/O, no threads, no torch."""

from torch_lms.pager.actions import (
    Action,
    Actions,
    Discard,
    Drop,
    FinishEvict,
    FinishFetch,
    Recompute,
    Release,
    StartEvict,
    StartFetch,
)
from torch_lms.pager.counters import Counters
from torch_lms.pager.pager import Pager
from torch_lms.pager.recipes import Recipes

__all__ = [
    "Action",
    "Actions",
    "Counters",
    "Discard",
    "Drop",
    "FinishEvict",
    "FinishFetch",
    "Pager",
    "Recipes",
    "Recompute",
    "Release",
    "StartEvict",
    "StartFetch",
]
