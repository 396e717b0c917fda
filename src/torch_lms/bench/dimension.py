"""What can be made larger in a target: size, batch, depth, width, tokens."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch_lms.errors import UsageError
from torch_lms.targets import Setting, Target, own_value

DIMENSIONS = ("size", "batch", "depth", "width", "tokens")

_OPTIONS = {
    "depth": ("depth", "layers", "levels", "num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers"),
    "width": ("width", "hidden", "channels", "hidden_size", "n_embd", "d_model", "dim", "embed_dim"),
}
"""What targets call depth and width."""

_NOT_OPTIONS = frozenset({"size", "batch", "dtype", "inference"})


@dataclass(frozen=True)
class Dimension:
    """A dimension of a target.

    Attributes:
        name: as it is asked for.
        keyword: as the target calls it.
        own: the target's own value; None if that is not known.
        granule: values that are tried are multiples of it.
    """

    name: str
    keyword: str
    own: int | None
    granule: int

    def at(self, setting: Setting, value: int) -> Setting:
        """``setting`` with that value."""
        if self.keyword == "size":
            return replace(setting, size=value)
        if self.keyword == "batch":
            return replace(setting, batch=value)
        return replace(setting, options={**setting.options, self.keyword: value})


def dimension_of(name: str, target_name: str, target: Target, setting: Setting) -> Dimension:
    """The dimension ``name`` of ``target``.

    Raises:
        UsageError: it has none.
    """
    if name in ("size", "tokens"):
        return Dimension(name, "size", setting.size or own_value(target, "size"), _size_granule(target, setting))
    if name == "batch":
        return Dimension(name, "batch", batch_of(target, setting), setting.gpus)
    options = options_of(target)
    for keyword in _OPTIONS[name]:
        if keyword in options:
            own_option = setting.options.get(keyword, options[keyword])
            own = own_option if isinstance(own_option, int) else None
            return Dimension(name, keyword, own, 1 if name == "depth" else _width_granule(own))
    taken = ", ".join(["size", "batch", *list(options)[:12]])
    raise UsageError(
        f"{target_name} cannot be cut down in {name}: it has no option of the names {', '.join(_OPTIONS[name])}; "
        f"it takes {taken}. Expected another dimension of {', '.join(DIMENSIONS)}"
    )


def batch_of(target: Target, setting: Setting) -> int | None:
    """The batch of all ranks together; None if it is not known."""
    own = own_value(target, "batch")
    return setting.batch or (None if own is None else own * setting.gpus)


def options_of(target: Target) -> Mapping[str, Any]:
    """The options of ``target`` and their own values; None where there is none."""
    known = getattr(target, "options", None)
    if isinstance(known, Mapping):
        return known
    found = {}
    for parameter in inspect.signature(target).parameters.values():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if is_named and parameter.name not in _NOT_OPTIONS:
            found[parameter.name] = None if parameter.default is parameter.empty else parameter.default
    return found


def _size_granule(target: Target, setting: Setting) -> int:
    bounds = getattr(target, "bounds", None)
    if bounds is None:
        return 1
    chosen = target.chosen(setting.options)  # type: ignore[attr-defined]
    return int(bounds(chosen).multiple)


def _width_granule(own: int | None) -> int:
    """Widths have to be divided into heads or groups: multiples of 16, or of what the own value is a multiple of."""
    if own is None:
        return 1
    return min(16, own & -own)
