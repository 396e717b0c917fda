"""Explains why a step cannot be traced on tensors without bytes."""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils import _pytree as pytree

from torch_lms.errors import UnsupportedError, UsageError

_NO_META_KERNEL = (UnsupportedFakeTensorException, UnsupportedOperatorException)
_DEPENDS_ON_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
_BYTES_ASKED_FOR = ("data is not allocated yet", ".numpy() is not supported")
"""What PyTorch says where something other than an operator reads them."""

_INSTEAD = "record a step while it runs: torch-lms run --trace FILE"


@contextmanager
def explained() -> Iterator[None]:
    """Inside, what PyTorch raises about tensors without bytes becomes an error that says what to do."""
    try:
        yield
    except _NO_META_KERNEL as error:
        raise UnsupportedError(
            f"expected operators that tell what they give before they run (a meta kernel); {error} does not, "
            f"{_place_of(error)}. Give it one by torch.library.register_fake, or {_INSTEAD}"
        ) from error
    except RuntimeError as error:
        if not _is_about_values(error):
            raise
        raise UnsupportedError(
            f"the step depends on values, which are not known before it runs ({str(error).splitlines()[0]}), "
            f"{_place_of(error)}. Trace a part that does not, or {_INSTEAD}"
        ) from error


def _is_about_values(error: RuntimeError) -> bool:
    return isinstance(error, _DEPENDS_ON_VALUES) or any(text in str(error) for text in _BYTES_ASKED_FOR)


def _place_of(error: BaseException) -> str:
    """Where the program was, outside of PyTorch and of this package."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        is_pytorch = f"{os.sep}torch{os.sep}" in frame.filename
        is_ours = f"{os.sep}torch_lms{os.sep}" in frame.filename
        if not is_pytorch and not is_ours:
            return f"at {frame.filename}:{frame.lineno}"
    return "in a module of PyTorch's own"


def refuse_strangers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse parameters that have bytes: their module was not given to ``trace_step``, which would have copied it.

    Raises:
        UsageError: there is one.
    """
    for leaf in pytree.arg_tree_leaves(*args, **kwargs):
        if isinstance(leaf, torch.nn.Parameter) and not isinstance(leaf, FakeTensor):
            raise UsageError(
                "expected all modules in `fn_or_module` or `inputs`; got a function that uses a parameter of shape "
                f"{tuple(leaf.shape)} from elsewhere: pass its module as an argument"
            )
