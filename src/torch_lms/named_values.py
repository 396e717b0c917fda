"""Options that are given as ``--set NAME=VALUE``."""

from typing import Any

import click

from torch_lms.errors import UsageError


def named_values(_ctx: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    """A click callback: values by their names. Of a name that is given twice, the last value counts."""
    return dict(_named(option.opts[0], text) for text in given)


def _named(option: str, given: str) -> tuple[str, Any]:
    name, equals, value = given.partition("=")
    if not equals or not name:
        raise UsageError(f"{option} takes NAME=VALUE; got {given!r}")
    return name.replace("-", "_"), _value(value)


def _value(text: str) -> Any:
    """A number or a truth value where ``text`` is one, a tuple where it has commas, else ``text`` itself."""
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
