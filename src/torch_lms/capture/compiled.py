"""Regions that `torch.compile` made touch their arguments without dispatch (N11): these are held around each call."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial, wraps
from importlib import import_module
from typing import Any

from torch_lms.import_hooks import once_imported

_REGIONS = "torch._inductor.output_code", ("CompiledFxGraph", "CompiledAOTI")
_DYNAMO_RULES = "torch._dynamo.trace_rules"
_OURS = "torch_lms.capture", "torch_lms.runtime.session", "torch_lms.runtime.unit", "torch_lms.pager"


class CompiledRegions:
    """Patches the call of a compiled region, as soon as there can be any: importing the compiler takes seconds.

    Args:
        hold: keeps the tensors among a region's arguments resident, and our own dispatch mode out of it. Is given the
            arguments, and those of them that the region writes.
    """

    def __init__(self, hold: Callable[[Sequence[Any], Sequence[Any]], AbstractContextManager[None]]) -> None:
        self._hold = hold
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Wait for the compiler to be imported, and patch it then."""
        self._undo.append(once_imported(_REGIONS[0], self._patch))
        self._undo.append(once_imported(_DYNAMO_RULES, _keep_dynamo_out))

    def uninstall(self) -> None:
        """Put everything back as it was."""
        while self._undo:
            self._undo.pop()()

    def _patch(self) -> None:
        module = import_module(_REGIONS[0])
        for name in _REGIONS[1]:
            region = getattr(module, name, None)
            if region is not None:
                self._undo.append(partial(setattr, region, "__call__", region.__call__))
                region.__call__ = self._held(region.__call__)

    def _held(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def held(region: Any, inputs: Sequence[Any]) -> Any:
            indices = getattr(region, "mutated_input_idxs", range(len(inputs)))
            with self._hold(inputs, [inputs[index] for index in indices]):
                return call(region, inputs)

        return held


def allow_in_graphs(function: Callable[..., Any]) -> Callable[[], None]:
    """Dynamo takes ``function`` into its graphs as it stands, as soon as there can be any.

    Returns:
        What forbids it again. Dynamo knows functions by their ids, which are used again.
    """

    def allow() -> None:
        known = import_module(_DYNAMO_RULES)._allowed_callable_ids
        known.add(id(function))
        undo.append(partial(known.remove, id(function)))

    undo: list[Callable[[], None]] = []
    undo.append(once_imported(_DYNAMO_RULES, allow))

    def forbid() -> None:
        for one in undo:
            one()

    return forbid


@cache
def _keep_dynamo_out() -> None:
    """Dynamo must not compile what we do between a compiled function's parts. Told once: it forgets nothing."""
    rules = import_module(_DYNAMO_RULES)
    for name in _OURS:
        rules.add(name)
