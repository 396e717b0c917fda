"""What a target is, and what to say where one does not keep the contract."""

import inspect
import os
import traceback
from collections.abc import Callable
from typing import Any

Target = Callable[..., Any]

CONTRACT = (
    "expected a function that takes any of the keywords size, batch and options of its own, and returns "
    "(model, inputs) or (model, inputs, loss): a module, the tensors that it is called with (a tuple, or a dict for "
    "keywords), and a function that makes a scalar of what it returns"
)


def own_value(target: Target, keyword: str) -> int | None:
    """The ``size`` or ``batch`` that ``target`` takes where none is asked for; None if that is not known.

    It is an attribute of the target (workloads have one), or the default of the keyword.
    """
    parameter = inspect.signature(target).parameters.get(keyword)
    default = None if parameter is None else parameter.default
    own = getattr(target, keyword, default)
    return own if isinstance(own, int) and own > 0 else None


def described(error: BaseException) -> str:
    """The error of a target, and the line of the user's code that it comes from."""
    not_the_users = (f"{os.sep}torch{os.sep}", f"{os.sep}torch_lms{os.sep}", f"importlib{os.sep}", "<frozen importlib")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(part in frame.filename for part in not_the_users)
    ]
    place = f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
