"""Regions that `torch.compile` made touch their arguments without dispatch (N11): these are held around each call."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, wraps
from importlib import import_module
from typing import Any

from torch_lms.capture.patches import DYNAMO_RULES, Patches
from torch_lms.import_hooks import once_imported

_REGIONS_MODULE = "torch._inductor.output_code"
_REGIONS = ("CompiledFxGraph", "CompiledAOTI")

_OURS = (
    *("torch_lms.capture", "torch_lms.engine", "torch_lms.pager"),
    *(f"torch_lms.runtime.{name}" for name in ("backend", "fast_path", "holds", "page_table", "session")),
)


class CompiledRegions:
    """Patches the call of a compiled region, as soon as there can be any: importing the compiler takes seconds.

    Args:
        hold: keeps the tensors among a region's arguments resident, and our own dispatch mode out of it. Is given the
            arguments, and those of them that the region writes.
    """

    def __init__(self, hold: Callable[[Sequence[Any], Sequence[Any]], AbstractContextManager[None]]) -> None:
        self._hold = hold
        self._patches = Patches()

    def install(self) -> None:
        """Wait for the compiler to be imported, and patch it then."""
        self._patches.later(once_imported(_REGIONS_MODULE, self._patch))
        self._patches.later(once_imported(DYNAMO_RULES, _keep_dynamo_out))

    def uninstall(self) -> None:
        """Put everything back as it was."""
        self._patches.undo()

    def _patch(self) -> None:
        module = import_module(_REGIONS_MODULE)
        for name in _REGIONS:
            region = getattr(module, name, None)
            if region is not None:
                self._patches.replace(region, "__call__", self._held(region.__call__))

    def _held(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def held(region: Any, inputs: Sequence[Any]) -> Any:
            indices = getattr(region, "mutated_input_idxs", range(len(inputs)))
            with self._hold(inputs, [inputs[index] for index in indices]):
                return call(region, inputs)

        return held


@cache
def _keep_dynamo_out() -> None:
    """Keep Dynamo from compiling what we do between a compiled function's parts. Once is enough: it forgets nothing."""
    rules = import_module(DYNAMO_RULES)
    for name in _OURS:
        rules.add(name)
