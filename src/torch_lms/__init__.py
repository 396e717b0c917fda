"""Large Model Support for stock PyTorch: train and run models that do not fit in memory, equal to the bit.

    import torch_lms

    torch_lms.enable()

The names are loaded when they are first used, so that what needs no torch starts without it.
"""

import ctypes
import os
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_lms.capture.fake import trace_step
    from torch_lms.errors import (
        DeviceFullError,
        ForkedPageError,
        LmsError,
        PageLostError,
        SessionError,
        StoreError,
        StoreFullError,
        UnsupportedError,
        UsageError,
        WorkingSetError,
    )
    from torch_lms.runtime.api import (
        attach,
        disable,
        enable,
        is_enabled,
        pinned,
        reclaim,
        reset_stats,
        session,
        stats,
        step,
        touched,
    )
    from torch_lms.runtime.stats import Stats
    from torch_lms.runtime.torch_version import UntestedTorchWarning

_KEPT_BYTES = 32 << 20
"""glibc takes blocks up to this size from its heap, and so much stays free at the end of that (N19)."""


def _ask_for_huge_pages() -> None:
    """Have PyTorch ask the kernel for huge pages on the host, unless the environment says otherwise. It says all of
    this to child processes, too.

    PyTorch then aligns blocks of 2 MiB and more to pages of the system. What was freed hardly ever fits what comes
    next, which is taken from the end of the heap; and glibc, left to itself, gives that back with each block, to be
    faulted in anew. So it is told to keep some, as much as it comes to by itself for larger blocks.
    """
    if os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1") != "1" or "GLIBC_TUNABLES" in os.environ:
        return
    trim_threshold, mmap_threshold = -1, -3  # parameters of mallopt
    for name, parameter in (("MALLOC_TRIM_THRESHOLD_", trim_threshold), ("MALLOC_MMAP_THRESHOLD_", mmap_threshold)):
        if name in os.environ:
            continue  # glibc knows it since the process began
        os.environ[name] = str(_KEPT_BYTES)
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(parameter, _KEPT_BYTES)


_ask_for_huge_pages()

__version__ = "0.1.0"

__all__ = [
    "DeviceFullError",
    "ForkedPageError",
    "LmsError",
    "PageLostError",
    "SessionError",
    "Stats",
    "StoreError",
    "StoreFullError",
    "UnsupportedError",
    "UntestedTorchWarning",
    "UsageError",
    "WorkingSetError",
    "__version__",
    "attach",
    "disable",
    "enable",
    "is_enabled",
    "pinned",
    "reclaim",
    "reset_stats",
    "session",
    "stats",
    "step",
    "touched",
    "trace_step",
]

_MODULES = {
    "Stats": "torch_lms.runtime.stats",
    "UntestedTorchWarning": "torch_lms.runtime.torch_version",
    "trace_step": "torch_lms.capture.fake",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'torch_lms' has no attribute {name!r}")
    if name.endswith("Error"):
        return getattr(import_module("torch_lms.errors"), name)
    return getattr(import_module(_MODULES.get(name, "torch_lms.runtime.api")), name)


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext torch_lms``: while LMS is on, a line after each cell says what it moved."""
    from torch_lms.notebook import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext torch_lms``."""
    from torch_lms.notebook import unload

    unload(shell)
