"""Options that are given as ``--set NAME=VALUE``."""

from typing import Any

import click

from torch_lms.errors import UsageError


def named_values(_ctx: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    """A click callback: values by their names; of a name given twice, the last."""
    return dict(_named(option.opts[0], text) for text in given)


def _named(option: str, given: str) -> tuple[str, Any]:
    name, is_there, value = given.partition("=")
    if not is_there or not name:
        raise UsageError(f"{option} takes NAME=VALUE; got {given!r}")
    return name.replace("-", "_"), _value(value)


def _value(text: str) -> Any:
    """Numbers and truth values as such; what has commas is a tuple of them."""
    if "," in text:
        return tuple(_value(part) for part in text.split(","))
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
