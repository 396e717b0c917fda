"""``trace_step``: a step traced on tensors without bytes, and so known before it is ever run.

What it takes stands beside it: ``fake_copies`` makes copies of modules and tensors without bytes, ``fake_mode`` records
the operations, ``fake_errors`` explains what cannot be traced.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from torch_lms.capture.as_on_cuda import AsOnCuda
from torch_lms.capture.fake_copies import held_tensors, mode_of, without_bytes
from torch_lms.capture.fake_errors import explained
from torch_lms.capture.fake_mode import Tracer
from torch_lms.capture.optimizer_runs import OptimizerRuns
from torch_lms.errors import UsageError
from torch_lms.trace import Trace
from torch_lms.units import parse_bytes

Loss = Callable[[Any], torch.Tensor]
Inputs = tuple[Any, ...] | dict[str, Any]
NewOptimizer = Callable[..., torch.optim.Optimizer]

_DEVICES = ("cpu", "cuda")

_KEPT = 4
"""Traces of one step, under different limits, that are kept."""


def trace_step(
    fn_or_module: Callable[..., Any] | torch.nn.Module,
    inputs: Sequence[Any] | Mapping[str, Any] = (),
    optimizer: str | NewOptimizer | torch.optim.Optimizer | None = None,
    *,
    loss: Loss | None = None,
    device: str = "cpu",
    amp: torch.dtype | None = None,
    min_size: int | str = "1MiB",
) -> Trace:
    """What a step would do, without doing it: nothing is allocated, and no value is computed.

    With ``optimizer`` it is a training step: forward, loss, backward, update, gradients cleared, with the optimizer's
    state there from the start. Without, it is inference where a module is given; a function is run as it is, twice,
    and the second time counts, so it may as well train. Modules and tensors among ``inputs`` are replaced by copies
    without bytes; those that a function brings along are not, so give it its modules as arguments.

    Args:
        fn_or_module: called with ``inputs``.
        inputs: tensors, modules, or nests of them; a mapping for keyword arguments.
        optimizer: the name of one in ``torch.optim``, a class or function that takes the parameters, or an optimizer,
            of which class and settings are taken.
        loss: makes a scalar from what ``fn_or_module`` returned; default: the sum of the means of all floating-point
            tensors there.
        device: "cpu", or "cuda" for the operations that PyTorch would choose on a GPU.
        amp: type for autocast, or None.
        min_size: smaller storages are no pages.

    Returns:
        The trace; its operations say what work they have to do, and take no time.

    Raises:
        UsageError: the arguments make no sense, or a module's parameters were not among them.
        UnsupportedError: the step depends on values, which nobody knows before it runs.
    """
    if device not in _DEVICES:
        raise UsageError(f"device must be one of {', '.join(map(repr, _DEVICES))}; got {device!r}")
    if isinstance(min_size, str):
        min_size = parse_bytes(min_size)
    arguments: Inputs = dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs)
    mode = mode_of((fn_or_module, arguments)) or FakeTensorMode(allow_non_fake_inputs=True)
    with explained(), mode:
        target, given = without_bytes((fn_or_module, arguments), mode)

    @lru_cache(_KEPT)
    def traced(limit: int | None, free_bytes: int = 0) -> Trace:
        tracer = Tracer(min_size, device, limit, free_bytes)
        with explained(), mode, _as_on(device, amp):
            if optimizer is not None:
                _trace_training(tracer, target, given, optimizer, loss, device, limit)
            elif isinstance(target, torch.nn.Module):
                with torch.no_grad():
                    _trace_call(tracer, target, given)
            else:
                _trace_call(tracer, target, given)  # in which an optimizer, say, makes its state
                _trace_call(tracer, target, given)
        return tracer.trace

    return replace(traced(None), retraced=traced)


@contextmanager
def _as_on(device: str, amp: torch.dtype | None) -> Iterator[None]:
    """Inside, PyTorch chooses the operations that it would on ``device``, under autocast to ``amp``."""
    with ExitStack() as settings:
        if device == "cuda":
            settings.enter_context(AsOnCuda())
        if amp is not None:
            settings.enter_context(torch.autocast("cpu", dtype=amp))
        yield


def _trace_call(tracer: Tracer, target: Callable[..., Any], inputs: Inputs) -> None:
    with tracer.recording(held_tensors(pytree.tree_leaves((target, inputs)))):
        _called(target, inputs)


def _called(target: Callable[..., Any], inputs: Inputs) -> Any:
    if isinstance(inputs, dict):
        return target(**inputs)
    return target(*inputs)


def _trace_training(
    tracer: Tracer,
    target: Callable[..., Any],
    inputs: Inputs,
    optimizer: str | NewOptimizer | torch.optim.Optimizer,
    loss: Loss | None,
    device: str,
    limit: int | None,
) -> None:
    leaves = pytree.tree_leaves((target, inputs))
    modules = [leaf for leaf in leaves if isinstance(leaf, torch.nn.Module)]
    parameters = list(dict.fromkeys(p for module in modules for p in module.parameters() if p.requires_grad))
    if not parameters:
        raise UsageError("a training step needs parameters: expected a module, or a function with a module in inputs")
    update = new_optimizer(optimizer, parameters, device)
    for parameter in parameters:  # a first update, in which the optimizer makes its state
        parameter.grad = torch.zeros_like(parameter)
    update.step()
    update.zero_grad()
    held = held_tensors(leaves)
    for _ in range(2):
        state = pytree.tree_leaves(list(update.state.values()))
        with tracer.recording([*held, *state]):
            used = _train_once(target, inputs, loss, update, limit)
        # The first update gave every parameter a state. In a real step one without a gradient has none: once more.
        idle = [parameter for parameter in update.state if id(parameter) not in used]
        if not idle:
            break
        for without_gradient in idle:
            del update.state[without_gradient]


def _train_once(
    target: Callable[..., Any],
    inputs: Inputs,
    loss: Loss | None,
    update: torch.optim.Optimizer,
    limit: int | None,
) -> set[int]:
    """Train for a step. Returns the ids of the parameters that had a gradient."""
    result = (loss or _mean)(_called(target, inputs))
    if not isinstance(result, torch.Tensor) or result.numel() != 1 or not result.requires_grad:
        raise UsageError(f"the loss must be a scalar tensor that requires gradients; got {_shown(result)}")
    result.backward()
    del result  # as a training loop's own would be gone when the update needs memory
    used = {id(p) for group in update.param_groups for p in group["params"] if p.grad is not None}
    OptimizerRuns(lambda _: limit).split(update).step()
    update.zero_grad()
    return used


def _mean(outputs: Any) -> torch.Tensor:
    means = [leaf.mean() for leaf in pytree.tree_leaves(outputs) if _is_floating(leaf)]
    if not means:
        raise UsageError(f"expected floating-point tensors to make a loss of, or loss=; got {_shown(outputs)}")
    return torch.stack([mean.float() for mean in means]).sum()


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}, type {value.dtype}, requires_grad={value.requires_grad}"
    return type(value).__name__


def new_optimizer(
    given: str | NewOptimizer | torch.optim.Optimizer, parameters: list[torch.nn.Parameter], device: str
) -> torch.optim.Optimizer:
    """An optimizer on ``parameters``, as ``given`` to ``trace_step``. On a GPU PyTorch prefers operations on lists."""
    settings: dict[str, Any] = {}
    make: Any = given
    if isinstance(given, str):
        make = _optimizer_named(given)
        if make is torch.optim.SGD:
            settings = {"lr": 0.01, "momentum": 0.9}
    elif isinstance(given, torch.optim.Optimizer):
        make = type(given)
        settings = dict(given.defaults)
    made: torch.optim.Optimizer = make(parameters, **settings)
    if device == "cuda":
        for group in made.param_groups:
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True
    return made


def _optimizer_named(name: str) -> type[torch.optim.Optimizer]:
    """The optimizer of that name in ``torch.optim``, in upper or lower case."""
    known = {}
    for its_name, kind in vars(torch.optim).items():
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer):
            known[its_name.lower()] = kind
    if name.lower() not in known:
        raise UsageError(f"optimizer must be one of torch.optim, any case ({', '.join(sorted(known))}); got {name!r}")
    return known[name.lower()]
