"""What is run: samples of PyTorch's own lists of operators, modules and optimizers."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import _get_optim_inputs_including_global_cliquey_kwargs, optim_db
from torch.utils._pytree import tree_leaves

from tests.opinfos import operators

_DTYPES = (torch.float32, torch.float64, torch.complex64)
_INTEGERS = (torch.int64, torch.int32, torch.uint8)

Attempt = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One entry of a list, in one dtype."""

    kind: str
    name: str
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {str(self.dtype).removeprefix('torch.')}"

    def attempts(self) -> Iterator[Attempt]:
        """Everything to try, in order. Each returns a nest of whatever must be equal, and starts from a seed."""
        seed()
        for attempt in _ATTEMPTS[self.kind](_entries()[self.kind][self.name], self.dtype):
            seed()
            yield attempt


def all_cases() -> list[Case]:
    """In a fixed order."""
    return [
        Case(kind, name, dtype)
        for kind, entries in _entries().items()
        for name, entry in entries.items()
        for dtype in _dtypes(kind, entry)
    ]


def seed() -> None:
    """Of every generator that the lists draw from."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


@cache
def _entries() -> dict[str, dict[str, Any]]:
    foreach = ("unary", "binary", "pointwise", "reduce", "other")
    lists = {
        "operator": operators.op_db,
        "foreach": [op for family in foreach for op in getattr(operators, f"foreach_{family}_op_db")],
        "module": module_db,
        "optimizer": optim_db,
    }
    return {kind: {_name(entry): entry for entry in entries} for kind, entries in lists.items()}


def _name(entry: Any) -> str:
    if hasattr(entry, "optim_cls"):
        return str(entry.optim_cls.__name__)
    variant = getattr(entry, "variant_test_name", "")
    return f"{entry.name}.{variant}" if variant else str(entry.name)


def _dtypes(kind: str, entry: Any) -> list[torch.dtype]:
    if kind == "optimizer":
        return [torch.float32, torch.float64, *([torch.complex64] if entry.supports_complex else [])]
    supported = entry.supported_dtypes("cpu")
    integer = [dtype for dtype in _INTEGERS if dtype in supported][:1]
    return [dtype for dtype in _DTYPES if dtype in supported] + integer


def _operator(op: Any, dtype: torch.dtype) -> Iterator[Attempt]:
    for sample in list(op.sample_inputs("cpu", dtype, requires_grad=dtype in op.supported_backward_dtypes("cpu"))):

        def plainly(s: Any = sample) -> Any:
            return _with_gradients(lambda: op(s.input, *s.args, **s.kwargs), s, s.output_process_fn_grad)

        def in_place(s: Any = sample) -> Any:
            target = torch.clone(s.input)
            return op.inplace_variant(target, *s.args, **s.kwargs), target

        def into(s: Any = sample) -> Any:
            given = op(s.input, *s.args, **s.kwargs)
            out = torch.zeros_like(given) if isinstance(given, torch.Tensor) else tuple(map(torch.zeros_like, given))
            return op(s.input, *s.args, **s.kwargs, out=out), out

        yield plainly
        if op.inplace_variant is not None and isinstance(sample.input, torch.Tensor):
            yield _without_gradients(in_place)
        if op.supports_out:
            yield _without_gradients(into)


def _foreach(op: Any, dtype: torch.dtype) -> Iterator[Attempt]:
    differentiable = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    for sample in list(op.sample_inputs("cpu", dtype, noncontiguous=False, requires_grad=differentiable)):

        def plainly(s: Any = sample) -> Any:
            return _with_gradients(lambda: op.method_variant(s.input, *s.args, **s.kwargs), s)

        def in_place(s: Any = sample) -> Any:
            targets = [torch.clone(tensor) for tensor in s.input]
            op.inplace_variant(targets, *s.args, **s.kwargs)
            return targets

        if op.method_variant is not None:
            yield plainly
        if op.inplace_variant is not None:
            yield _without_gradients(in_place)


def _module(info: Any, dtype: torch.dtype) -> Iterator[Attempt]:
    for training in (True, False):
        inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
        for given in list(inputs):

            def attempt(
                made: Any = given.constructor_input, fed: Any = given.forward_input, on: bool = training
            ) -> Any:
                module = info.module_cls(*made.args, **made.kwargs).to(dtype).train(on)
                if fed is None:
                    return module.state_dict()
                results = _with_gradients(lambda: module(*fed.args, **fed.kwargs), (fed.args, fed.kwargs), module)
                return results, module.state_dict()

            yield attempt


def _optimizer(info: Any, dtype: torch.dtype) -> Iterator[Attempt]:
    for given in _get_optim_inputs_including_global_cliquey_kwargs("cpu", dtype, info, skip=("differentiable",)):

        def attempt(kwargs: dict[str, Any] = given.kwargs) -> Any:
            shapes = [(8, 4), (5, 8)] if info.optim_cls is torch.optim.Muon else [(8, 4), (5,), (2, 3, 3)]
            params = [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]
            optimizer = info.optim_cls(params, **kwargs)

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = sum(param.abs().square().sum() for param in params)
                loss.backward()
                if info.only_supports_sparse_grads:
                    for param in params:
                        param.grad = param.grad.to_sparse()
                return loss

            for _ in range(3):
                if info.step_requires_closure:
                    optimizer.step(closure)
                else:
                    closure()
                    optimizer.step()
            return params, [list(state.values()) for state in optimizer.state.values()]

        yield attempt


def _with_gradients(call: Attempt, given: Any, then: Any = None) -> Any:
    """What ``call`` returns, and the gradients of whatever in ``given`` (and in a module ``then``) requires one."""
    result = call()
    results, inputs = result, [given.input, given.args, given.kwargs] if hasattr(given, "kwargs") else [given]
    if isinstance(then, torch.nn.Module):
        inputs.append(list(then.parameters()))
    elif then is not None:
        results = then(result)
    outs = [leaf for leaf in tree_leaves(results) if _is_differentiable(leaf)]
    leaves = [leaf for leaf in tree_leaves(inputs) if _is_differentiable(leaf)]
    if not outs or not leaves:
        return result
    cotangents = [torch.randn_like(out) if out.layout is torch.strided else torch.ones_like(out) for out in outs]
    return result, torch.autograd.grad(outs, leaves, cotangents, allow_unused=True)


def _is_differentiable(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _without_gradients(attempt: Attempt) -> Attempt:
    def call() -> Any:
        with torch.no_grad():
            return attempt()

    return call


_ATTEMPTS = {"operator": _operator, "foreach": _foreach, "module": _module, "optimizer": _optimizer}
