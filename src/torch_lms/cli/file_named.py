"""Names of files to write that must end in a certain way, checked before the work begins."""

from collections.abc import Callable
from pathlib import Path

import click

Callback = Callable[[click.Context, click.Parameter, Path], Path]


def file_named(what: str, *suffixes: str) -> Callback:
    """A click callback that gives such a file, in a folder that exists.

    Args:
        what: how it is called, as in "a .png file".
        suffixes: what it may end in, in lower case.
    """

    def target(_ctx: click.Context, _option: click.Parameter, value: Path) -> Path:
        if value.suffix.lower() not in suffixes:
            raise click.BadParameter(f"expected the name of {what}, got {str(value)!r}")
        if not value.absolute().parent.is_dir():
            raise click.BadParameter(f"there is no directory {str(value.absolute().parent)!r}")
        return value.absolute()

    return target
