"""Regions that `torch.compile` made touch their arguments without dispatch (N11): each call is one operation."""

import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial, wraps
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch

from torch_lms.capture.page_owner import PageOwner, RawUse
from torch_lms.capture.patches import DYNAMO_RULES, Patches
from torch_lms.capture.registry import Entry
from torch_lms.capture.tensors import storage_of, tensors_among
from torch_lms.capture.undo import Undo, generator_of, snapshot
from torch_lms.import_hooks import once_imported
from torch_lms.units import format_bytes

_log = logging.getLogger("torch_lms")

_REGIONS_MODULE = "torch._inductor.output_code"
_REGIONS = ("CompiledFxGraph", "CompiledAOTI")

_NEW_BYTES = "_torch_lms_new_bytes"

_OURS = Path(__file__).parents[1]
_RUNTIME = _OURS / "runtime"

_CANNOT_RUN_AGAIN = (
    "torch-lms: memory ran out inside a region compiled by torch.compile, which cannot be run again, since it may have "
    "overwritten what it was given. From now on it has the device to itself. Lower the limit, so that more is free for "
    "what it needs beside its arguments and results"
)

_TOO_LARGE = (
    "a region compiled by torch.compile has %s of arguments and results, and the limit is %s: all of that is on the "
    'device at once. Compile with backend="lms", which cuts it, or block by block (block.compile()); '
    "torch._functorch.config.activation_memory_budget below 1 has it save less for its gradients"
)

Inputs = Sequence[Any]
"""Of a region. Most regions take a list, and empty it, so that what they no longer need can be freed meanwhile."""


@dataclass(frozen=True)
class _RegionUse(RawUse):
    """A call of a region.

    Attributes:
        kind: of the devices whose storages are pages.
    """

    kind: str = "cpu"

    @property
    def device(self) -> torch.device:
        return torch.device(self.kind)


@dataclass(slots=True)
class _Region:
    """What is known of a region.

    Attributes:
        is_backward: whether it computes gradients. Then it needs room for those of what it is given, and may put them
            where that was: nobody else needs it any more.
        new_bytes: of the pages that its last call returned.
        is_exact: whether that is all that it needs beside its arguments, as somebody knows who compiled it so.
        has_run: whether it was called before. Else as much as it is given is expected of it.
        is_large: whether it was told that it needs more than the limit.
        ran_out: whether memory ran out in one. From then on nothing stays beside it that can leave.
    """

    is_backward: bool
    new_bytes: int = 0
    is_exact: bool = False
    has_run: bool = False
    is_large: bool = False
    ran_out: bool = False


class CompiledRegions:
    """Patches the call of a compiled region, as soon as there can be any: importing the compiler takes seconds.

    Args:
        owner: of the pages.
    """

    def __init__(self, owner: PageOwner) -> None:
        self._owner = owner
        self._use = _RegionUse("compiled region", kind=owner.kind)
        self._regions: dict[int, _Region] = {}  # by their ids: they compare by value
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
                self._patches.replace(region, "__call__", self._paged(region.__call__))

    def _paged(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def paged(region: Any, inputs: Inputs) -> Any:
            return self._run(partial(call, region), region, inputs)

        return paged

    def _run(self, call: Callable[[Inputs], Any], compiled: Any, inputs: Inputs) -> Any:
        owner = self._owner
        region = self._region(compiled)
        written = [inputs[index] for index in getattr(compiled, "mutated_input_idxs", range(len(inputs)))]
        written_entries = owner.entries_of(written)
        entries = owner.entries_of(inputs)
        is_tight = owner.tight(entries)
        new_bytes = self._room_needed(region, entries) if is_tight else 0
        undo = self._snapshot(written) if is_tight and not region.is_backward else None
        del written  # what the region lets go of shall be freed
        owner.begin(self._use, entries, new_bytes)
        try:
            result = self._call(call, region, inputs, entries, undo)
            made = [entry for entry in owner.entries_of((result,), is_new=True) if entry not in entries]
            region.new_bytes = sum(entry.nbytes for entry in made)
            region.has_run = True
            self._warn_if_large(region, entries)
        finally:
            owner.end(entries, written_entries)
        return result

    def _region(self, compiled: Any) -> _Region:
        region = self._regions.get(id(compiled))
        if region is None:
            is_backward = getattr(compiled, "fx_kwargs", {}).get("is_backward", True)
            region = self._regions[id(compiled)] = _Region(is_backward, *_told(compiled))
            weakref.finalize(compiled, self._regions.pop, id(compiled), None)
        return region

    def _room_needed(self, region: _Region, entries: list[Entry]) -> int:
        """Bytes beside ``entries``. What is allocated inside nobody sees."""
        held = sum(entry.nbytes for entry in entries)
        if region.ran_out:
            return max(region.new_bytes, self._owner.room_for_one_op(entries) - held)
        needs_more = (region.is_backward or not region.has_run) and not region.is_exact
        return max(region.new_bytes, held) if needs_more else region.new_bytes

    def _warn_if_large(self, region: _Region, entries: list[Entry]) -> None:
        if region.is_large or region.is_exact:
            return
        nbytes = sum(entry.nbytes for entry in entries) + region.new_bytes
        limit = self._owner.room_for_one_op(entries)
        if nbytes > limit:
            region.is_large = True
            _log.warning(_TOO_LARGE, format_bytes(nbytes), format_bytes(limit))

    def _snapshot(self, written: list[Any]) -> Undo | None:
        find = self._owner.find
        tensors = tensors_among(written)
        generator = generator_of(self._use.device)
        with self._owner.unseen():
            return snapshot(tensors, lambda tensor: find(storage_of(tensor)) is not None, generator)

    def _call(
        self, call: Callable[[Inputs], Any], region: _Region, inputs: Inputs, entries: list[Entry], undo: Undo | None
    ) -> Any:
        """Run the region; if memory runs out, once more with everything else gone, if that gives the same (N9)."""
        owner = self._owner
        kept = None if undo is None or region.ran_out else list(inputs)
        try:
            with owner.unseen():
                return call(inputs)
        except (RuntimeError, MemoryError) as error:
            if not owner.is_out_of_memory(error):
                raise
            region.ran_out = True
            if undo is None or kept is None:
                error.add_note(_CANNOT_RUN_AGAIN)
                raise
        owner.recover(entries, region.new_bytes)
        try:
            with owner.unseen():
                undo()
                return call(kept)
        except (RuntimeError, MemoryError) as error:
            if not owner.is_out_of_memory(error):
                raise
            raise owner.does_not_fit("a compiled region", entries, region.new_bytes, error) from error


def tell_new_bytes(compiled: Any, nbytes: int) -> None:
    """Before a region was ever called: what its results need, and it puts none where an argument was."""
    setattr(compiled, _NEW_BYTES, nbytes)


def _told(compiled: Any) -> tuple[int, bool]:
    nbytes = getattr(compiled, _NEW_BYTES, None)
    return (0, False) if nbytes is None else (nbytes, True)


@cache
def _keep_dynamo_out() -> None:
    """Keep Dynamo from compiling what we do between a compiled function's parts. Once is enough: it forgets nothing.

    It has to see what calls modules, as it does without us.
    """
    add = import_module(DYNAMO_RULES).add
    for module in (*iter_modules([str(_OURS)], "torch_lms."), *iter_modules([str(_RUNTIME)], "torch_lms.runtime.")):
        if module.name not in ("torch_lms.runtime", "torch_lms.runtime.steps"):
            add(module.name)
