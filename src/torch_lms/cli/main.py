"""The command ``torch-lms``: finds the sub-command, and turns errors into one line and an exit code."""

import importlib
import os
import platform
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import NoReturn, cast

import click

from torch_lms.cli.failure import FAILED, INTERRUPTED, explain
from torch_lms.errors import LmsError
from torch_lms.plugins import COMMANDS_GROUP, installed, loaded, summary_of

# Our commands, by the name of the module under torch_lms.cli, with what `torch-lms --help` says of each without
# importing it. Those of other packages are found by their entry points.
COMMANDS = {
    "demo": "Watch stock PyTorch run out of memory on a brain scan, and LMS train on it, equal to the bit.",
    "run": "Run a Python script or module, unmodified, with LMS on.",
    "watch": "Show what LMS does in another process while it runs.",
    "trace": "Summarize a recorded step: how much it holds when, and who holds the peak.",
    "plan": "Will it fit, and how fast? On this machine, or on one of a catalogue.",
    "bench": "Run a target for real, with LMS and without: largest sizes, data rates, overheads.",
    "report": "Show timelines, sweeps, trainings and pictures as one page that opens in any browser.",
    "doctor": "Show what this machine has: device, memory, limits, speed of every link.",
}


class _LazyCommands(click.Group):
    """Imports a command's module when that command is asked for: torch takes seconds to import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *(point.name for point in installed(COMMANDS_GROUP))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module = importlib.import_module(f"torch_lms.cli.{cmd_name}")
            return cast(click.Command, module.command)
        for point in installed(COMMANDS_GROUP):
            if point.name == cmd_name:
                return cast(click.Command, loaded(point))
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        of_others = [(point.name, summary_of(point)) for point in installed(COMMANDS_GROUP)]
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items(), *of_others])


def _show_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        python = platform.python_version()
        click.echo(f"torch-lms {_version_of('torch-lms')} (torch {_version_of('torch')}, Python {python})")
        ctx.exit()


def _version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(not installed)"


@click.group(cls=_LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the versions and exit.",
)
def group() -> None:
    """Large Model Support for stock PyTorch: train and run models that do not fit in memory."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run ``torch-lms`` and exit.

    A command returns None (success), an exit code, or a function to call last. The function's errors are not ours to
    explain, so it runs when nothing of click is left on the stack: ``run`` gives the user's script this way.
    """
    outcome = _obey(arguments)
    if callable(outcome):
        outcome = outcome()
    sys.exit(outcome)


def _obey(arguments: Sequence[str] | None) -> int | Callable[[], None] | None:
    """Run the command; gives what it returned, or the exit code of its error, which has been shown."""
    try:
        outcome: int | Callable[[], None] | None = group.main(arguments, prog_name="torch-lms", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except LmsError as error:
        return explain(error)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return FAILED
    return outcome


def _discard_output() -> None:
    """Keep Python's flush at exit from complaining that nobody reads what we print (``torch-lms doctor | head -1``)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
