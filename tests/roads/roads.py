"""The roads: every callable that may take a tensor, found by introspection, and the protocols of other libraries."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.sparse
from torch.nn.utils import rnn

from tests.roads.patterns import groups_of
from tests.roads.protocols import PROTOCOLS

_MODULES: dict[str, Any] = {
    "torch": torch,
    "torch._C._VariableFunctions": torch._C._VariableFunctions,
    "torch.functional": torch.functional,
    "torch.nn.functional": torch.nn.functional,
    "torch.linalg": torch.linalg,
    "torch.special": torch.special,
    "torch.fft": torch.fft,
    "torch.sparse": torch.sparse,
    "torch.nested": torch.nested,
    "torch.nn.init": torch.nn.init,
    "torch.nn.utils": torch.nn.utils,
    "torch.nn.utils.rnn": rnn,
}
_CLASSES: dict[str, Any] = {
    "Tensor": torch.Tensor,
    "UntypedStorage": torch.UntypedStorage,
    "TypedStorage": torch.TypedStorage,
}
_OF_OBJECTS = frozenset(dir(object)) - {
    "__format__",
    "__repr__",
    "__str__",
    "__reduce__",
    "__reduce_ex__",
    "__sizeof__",
    "__hash__",
}
"""What every class has, but for what a tensor may answer in its own way."""


@dataclass(frozen=True, slots=True)
class Road:
    """A callable, or a property.

    Attributes:
        family: where it was found.
        name: there.
    """

    family: str
    name: str

    def __str__(self) -> str:
        return f"{self.family}.{self.name}"

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Patterns; of each group the first that stock takes is compared."""
        groups = groups_of(self.family)
        return ((groups[0][0],),) if self._is_property else groups

    def call(self, pattern: str, names: Mapping[str, Any]) -> Any:
        """Call it as ``pattern`` says, found anew: a session may have patched it."""
        return eval(f"call({pattern})", {"call": self._resolved()}, dict(names))

    def _resolved(self) -> Callable[..., Any]:
        if self.family == "protocol":
            return PROTOCOLS[self.name]
        if self.family in _MODULES:
            return getattr(_MODULES[self.family], self.name)
        owner = _CLASSES[self.family]
        if self._is_property:
            return lambda value: getattr(value, self.name)
        if isinstance(inspect.getattr_static(owner, self.name), staticmethod | classmethod):
            return getattr(owner, self.name)
        return lambda value, *rest, **named: getattr(type(value), self.name)(value, *rest, **named)

    @property
    def _is_property(self) -> bool:
        return self.family in _CLASSES and not callable(getattr(_CLASSES[self.family], self.name))


def all_roads() -> list[Road]:
    """In a fixed order, each callable once."""
    found = [Road("protocol", name) for name in PROTOCOLS]
    for family, owner in _CLASSES.items():
        found += [Road(family, name) for name in sorted(set(dir(owner)) - _OF_OBJECTS)]
    return found + list(_functions())


def _functions() -> Iterator[Road]:
    seen: set[int] = set()
    for family, module in _MODULES.items():
        for name in sorted(dir(module)):
            value = getattr(module, name, None)
            is_known = id(value) in seen or (module is torch._C._VariableFunctions and hasattr(torch, name))
            if name.startswith("_") or is_known or not callable(value) or inspect.ismodule(value):
                continue
            if isinstance(value, type) and not _makes_tensors(value):
                continue
            seen.add(id(value))
            yield Road(family, name)


def _makes_tensors(kind: type) -> bool:
    return kind.__name__.endswith("Tensor") or kind.__name__ in ("Size", "PackedSequence", "Parameter")
