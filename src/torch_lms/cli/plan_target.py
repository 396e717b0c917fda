"""What `torch-lms plan` is asked about: a workload by name, or a function of the user's, traced on fake tensors."""

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch_lms.cli.further import missing
from torch_lms.errors import LmsError, UsageError
from torch_lms.trace import Trace

if TYPE_CHECKING:
    import torch

ENTRY_POINTS = "torch_lms.workloads"
AMP = {"no": None, "bf16": "bfloat16", "fp16": "float16"}

_CONTRACT = (
    "expected a function that takes any of the keywords size, batch and options of its own, and returns "
    "(model, inputs) or (model, inputs, loss): a module, the tensors that it is called with (a tuple, or a dict for "
    "keywords), and a function that makes a scalar of what it returns"
)

Target = Callable[..., Any]


@dataclass(frozen=True)
class Setting:
    """How a step is asked for.

    Attributes:
        size, batch: None for the target's own; ``batch`` is over all ``gpus``.
        options: of the target.
        optimizer: name of one in torch.optim; None for the target's own.
        amp: a key of ``AMP``.
        dtype: of the model, as in "float32"; None for its own.
        is_inference: forward only.
        checkpoints: whether blocks are checkpointed.
        device: whose operations are traced: "cpu" or "cuda".
        gpus: how many share the batch.
    """

    size: int | None = None
    batch: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str | None = None
    amp: str = "no"
    dtype: str | None = None
    is_inference: bool = False
    checkpoints: bool = False
    device: str = "cuda"
    gpus: int = 1


@dataclass(frozen=True)
class Traced:
    """A step of one device.

    Attributes:
        trace: on fake tensors.
        items: pixels, voxels or tokens in it.
        samples: in it.
        gradient_bytes: of all parameters that are trained.
    """

    trace: Trace
    items: int
    samples: int
    gradient_bytes: int


def workload_names() -> list[str]:
    """Of all that are installed."""
    return sorted(point.name for point in metadata.entry_points(group=ENTRY_POINTS))


def find(name: str) -> Target:
    """The workload of that name, or the function that ``module:function`` or ``file.py:function`` names.

    Raises:
        UsageError: there is none, or it cannot be imported.
    """
    if ":" in name:
        return _function(name)
    for point in metadata.entry_points(group=ENTRY_POINTS):
        if point.name == name:
            try:
                workload: Target = point.load()
            except ImportError as error:
                raise missing(name, error) from error
            return workload
    known = workload_names()
    near = difflib.get_close_matches(name, known)
    raise UsageError(
        f"there is no workload {name!r}{f' (did you mean {near[0]}?)' if near else ''}: expected one of "
        f"{', '.join(known) or 'those of torch-lms[workloads], which is not installed'}; or module:function"
    )


def _function(name: str) -> Target:
    where, _, attribute = name.rpartition(":")
    module = _module(where)
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
            near = difflib.get_close_matches(attribute, public)
            raise UsageError(f"{where} has no {attribute!r}{f'; did you mean {near[0]}?' if near else ''}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{name} is {type(found).__name__}: {_CONTRACT}")
    return found


def _module(where: str) -> ModuleType:
    path = Path(where)
    try:
        if path.suffix == ".py":
            spec = importlib.util.spec_from_file_location(path.stem, path)
            if not path.is_file() or spec is None or spec.loader is None:
                raise UsageError(f"there is no file {where}, seen from {Path.cwd()}")
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module
            sys.path.insert(0, str(path.parent.resolve()))
            spec.loader.exec_module(module)
            return module
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
        raise UsageError(f"importing {where!r} failed: {_told(error)}") from error


def own_value(target: Target, keyword: str) -> int | None:
    """Its ``size`` or ``batch`` where none is asked for: an attribute, or the keyword's default; None if not known."""
    parameter = inspect.signature(target).parameters.get(keyword)
    own = getattr(target, keyword, None if parameter is None else parameter.default)
    return own if isinstance(own, int) and own > 0 else None


def trace(name: str, target: Target, setting: Setting) -> Traced:
    """A step of ``target`` on one of ``setting.gpus`` devices, the others' being like it. Takes no memory to speak of.

    Raises:
        UsageError: the target does not keep the contract, cannot take the setting, or raised an error.
        UnsupportedError: it depends on values.
    """
    try:
        return _trace(name, target, setting)
    except LmsError:
        raise
    except Exception as error:
        raise UsageError(f"{name} raised {_told(error)}") from error


def _trace(name: str, target: Target, setting: Setting) -> Traced:
    import torch

    from torch_lms.capture.fake import trace_step

    model, inputs, loss = _built(name, target, setting)
    if setting.checkpoints:
        checkpoint_blocks(model)
    model.train(not setting.is_inference)
    optimizer = setting.optimizer or getattr(target, "optimizer", None) or "sgd"
    amp = AMP[setting.amp]
    step = trace_step(
        model,
        inputs,
        None if setting.is_inference else optimizer,
        loss=loss,
        device=setting.device,
        amp=None if amp is None else getattr(torch, amp),
    )
    values = inputs.values() if isinstance(inputs, Mapping) else inputs
    first = next((value for value in values if isinstance(value, torch.Tensor)), None)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad and not setting.is_inference]
    return Traced(
        trace=step,
        items=_items(first),
        samples=1 if first is None or not first.ndim else int(first.shape[0]),
        gradient_bytes=sum(parameter.numel() * parameter.element_size() for parameter in trained),
    )


def _built(name: str, target: Target, setting: Setting) -> tuple[Any, tuple[Any, ...] | Mapping[str, Any], Any]:
    """Model, inputs and loss, on fake tensors; on real ones where making them takes values."""
    import torch
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

    given = _arguments(name, target, setting)
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, setting.dtype or str(before).removeprefix("torch.")))
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            built = target(**given)
    except DataDependentOutputException:
        built = target(**given)
    finally:
        torch.set_default_dtype(before)
    if not isinstance(built, tuple) or len(built) not in (2, 3) or not isinstance(built[0], torch.nn.Module):
        raise UsageError(f"{name} returned {_kind(built)}: {_CONTRACT}")
    model, inputs, *rest = built
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    return model, inputs if isinstance(inputs, Mapping) else tuple(inputs), rest[0] if rest else None


def _arguments(name: str, target: Target, setting: Setting) -> dict[str, Any]:
    given = dict(setting.options)
    if setting.size is not None:
        given["size"] = setting.size
    if setting.batch is not None:
        if setting.batch % setting.gpus:
            raise UsageError(f"batch is over all GPUs: expected a multiple of {setting.gpus}; got {setting.batch}")
        given["batch"] = setting.batch // setting.gpus
    known = inspect.signature(target).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    unknown = [] if takes_any else [option for option in given if option not in known]
    if unknown:
        raise UsageError(f"{name} takes {', '.join(known) or 'no arguments'}; got {', '.join(unknown)}")
    return given


def _items(first: "torch.Tensor | None") -> int:
    """Positions in a batch: pixels, voxels, tokens."""
    if first is None:
        return 1
    if first.is_floating_point() and first.ndim > 2:
        return int(first.numel() // max(1, first.shape[1]))
    return int(first.shape[0] if first.is_floating_point() else first.numel())


def checkpoint_blocks(model: "torch.nn.Module") -> None:
    """Have every block made again in backward: the children of each outermost row of modules of one class."""
    import torch
    from torch.utils.checkpoint import checkpoint

    inside: set[torch.nn.Module] = set()
    for row in model.modules():
        children = list(row.children())
        kinds = {type(child) for child in children}
        is_row = isinstance(row, torch.nn.Sequential | torch.nn.ModuleList) and len(children) > 1 and len(kinds) == 1
        if row in inside or not is_row or not any(True for _ in children[0].children()):
            continue
        for child in children:
            inside.update(child.modules())
            child.forward = _checkpointed(checkpoint, child.forward)


def _checkpointed(checkpoint: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    def again(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return again


def _kind(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(part).__name__ for part in value)})"
    return type(value).__name__


def _told(error: BaseException) -> str:
    """The error, and where the user's code was."""
    ours = (f"{os.sep}torch{os.sep}", f"{os.sep}torch_lms{os.sep}", f"importlib{os.sep}", "<frozen importlib")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not any(part in f.filename for part in ours)]
    place = f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
