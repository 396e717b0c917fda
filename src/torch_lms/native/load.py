"""Finds the native interposer: in the wheel, in the user's cache, or by building it."""

import importlib.util
import logging
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import cast

import torch

from torch_lms.errors import UsageError
from torch_lms.native.build import MODULE, CannotBuild, build, cached_file, shipped_file
from torch_lms.native.module import Native

WAYS = ("auto", "native", "python")
"""What $TORCH_LMS_INTERPOSER may be."""

KEY = "Fake"
"""The dispatch key: below autograd and below Python's own, so that it sees what modes and subclasses hand on."""

_log = logging.getLogger("torch_lms")


@dataclass(frozen=True, slots=True)
class Found:
    """How operations are seen.

    Attributes:
        native: the interposer; None if the dispatch mode sees them.
        reason: why it is so, for people.
        is_surprising: whether nobody asked for it to be so.
    """

    native: Native | None
    reason: str
    is_surprising: bool = False

    @property
    def name(self) -> str:
        """Of the way."""
        return "python" if self.native is None else "native"


IN_PYTHON = Found(None, "nothing else was asked for")


def find(builds: bool = True) -> Found:
    """The way that is in force: $TORCH_LMS_INTERPOSER says which, "auto" if it says nothing.

    Args:
        builds: whether to build the extension, where there is none yet.

    Raises:
        UsageError: the variable says something else; or "native", and there is none.
    """
    wanted = os.environ.get("TORCH_LMS_INTERPOSER") or "auto"
    if wanted not in WAYS:
        raise UsageError(f"TORCH_LMS_INTERPOSER is {wanted!r}; expected one of {', '.join(WAYS)}")
    if wanted == "python":
        return Found(None, "TORCH_LMS_INTERPOSER says so")
    try:
        native, where = _load(builds)
        return Found(native, where)
    except CannotBuild as error:
        if wanted == "native":
            raise UsageError(
                f"TORCH_LMS_INTERPOSER is 'native', and there is none: {error}. Unset it to go on in Python"
            ) from error
        return Found(None, str(error), is_surprising=True)


@cache
def say_once(reason: str) -> None:
    """Tell why the slower way is taken."""
    _log.warning("operations are seen in Python, which costs each some 15 us: %s", reason)


_loaded: tuple[Native, str] | None = None


def _load(builds: bool) -> tuple[Native, str]:
    """The extension, and where it comes from.

    Raises:
        CannotBuild: there is none.
    """
    global _loaded
    if _loaded is None:
        native, where = _from_file(builds)
        try:
            native.claim(KEY)
        except RuntimeError as error:
            raise CannotBuild(f"PyTorch has its key: {str(error).splitlines()[0]}") from error
        _keep_off_higher_order_operators()
        _loaded = native, where
    return _loaded


def _from_file(builds: bool) -> tuple[Native, str]:
    shipped = shipped_file()
    if shipped.exists():
        with suppress(CannotBuild):  # made for another build of this version: one is built here, if that can be
            return _imported(shipped), "it came with the package"
    cached = cached_file()
    where = f"it was built for this PyTorch: {cached}"
    if cached.exists():
        try:
            return _imported(cached), where
        except CannotBuild:
            if not builds:
                raise
            cached.unlink()  # damaged: it is built anew
    if not builds:
        raise CannotBuild("it is not built yet: the first enable() does, or torch-lms doctor --build")
    print(f"torch-lms: building its native part for PyTorch {torch.__version__}, once ...", file=sys.stderr)
    build(cached)
    return _imported(cached), where


def _imported(file: Path) -> Native:
    """The extension in ``file``.

    Raises:
        CannotBuild: it is damaged, or was made for another PyTorch.
    """
    loader = ExtensionFileLoader(MODULE, str(file))
    spec = importlib.util.spec_from_file_location(MODULE, file, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise CannotBuild(f"{file} cannot be loaded: {error}") from error
    return cast(Native, module)


def _keep_off_higher_order_operators() -> None:
    """They have no kernel for the key, and need none: the operators that they run come by one by one."""
    key = torch._C._dispatch_key_parse(KEY)
    for operator in torch._ops._higher_order_ops.values():
        operator.fallthrough(key)
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(key)
