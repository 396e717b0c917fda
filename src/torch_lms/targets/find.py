"""Finds a target by its name: an installed workload, a model of a library, or a function of the user's."""

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import cast

from torch_lms.errors import LmsError, UsageError
from torch_lms.plugins import WORKLOADS_GROUP, installed, loaded
from torch_lms.targets.contract import CONTRACT, Target, described
from torch_lms.targets.transformers_models import transformers_model
from torch_lms.targets.vision_models import timm_model, torchvision_model

_LIBRARIES: dict[str, Callable[[str], Target]] = {
    "hf": transformers_model,
    "timm": timm_model,
    "torchvision": torchvision_model,
}


def workload_names() -> list[str]:
    """The names of all workloads that are installed."""
    return [point.name for point in installed(WORKLOADS_GROUP)]


def find(name: str) -> Target:
    """The workload, the model of a library, or the function that ``name`` names.

    Args:
        name: of a workload; or ``hf:NAME_OR_FOLDER``, ``timm:NAME``, ``torchvision:NAME``; or ``module:function``,
            ``file.py:function``.

    Raises:
        UsageError: there is none, or it cannot be imported.
    """
    library, _, model = name.partition(":")
    if library in _LIBRARIES:
        return _LIBRARIES[library](model)
    if ":" in name:
        return _function(name)
    for point in installed(WORKLOADS_GROUP):
        if point.name == name:
            return cast(Target, loaded(point))
    known = workload_names()
    near = difflib.get_close_matches(name, known)
    hint = f" (did you mean {near[0]}?)" if near else ""
    expected = ", ".join(known) or "those of torch-lms[workloads], which is not installed"
    raise UsageError(
        f"there is no workload {name!r}{hint}: expected one of {expected}; or hf:NAME_OR_FOLDER, timm:NAME, "
        "torchvision:NAME, module:function"
    )


def _function(name: str) -> Target:
    where, _, attribute = name.rpartition(":")
    module = _module(where)
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            near = difflib.get_close_matches(attribute, public)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"{where} has no {attribute!r}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{name} is {type(found).__name__}: {CONTRACT}")
    return found


def _module(where: str) -> ModuleType:
    try:
        if Path(where).suffix == ".py":
            return _module_of_file(where)
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(where)
    except LmsError:
        raise
    except ModuleNotFoundError as error:
        raise UsageError(
            f"cannot import {where!r}: no module {error.name!r}. It is looked for in {Path.cwd()} and where Python "
            f"looks; or give a file: path/to/file.py:function"
        ) from error
    except Exception as error:
        raise UsageError(f"importing {where!r} failed: {described(error)}") from error


def _module_of_file(where: str) -> ModuleType:
    """The module in a file, which may import its neighbours, as a script may."""
    path = Path(where)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"there is no file {where}, seen from {Path.cwd()}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module
