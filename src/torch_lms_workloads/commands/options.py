"""Options that the commands share, and what they say."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from torch_lms.errors import UsageError
from torch_lms.named_values import named_values
from torch_lms.output import JsonTarget, people_console
from torch_lms.targets import find
from torch_lms_workloads.training.paging import Paging
from torch_lms_workloads.training.progress import Say
from torch_lms_workloads.workload import Workload

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])

AMP_OPTION = click.option(
    "--amp", type=click.Choice(["no", "bf16", "fp16"]), default="no", show_default=True, help="Autocast."
)

SET_OPTION = click.option(
    "--set",
    "options",
    multiple=True,
    callback=named_values,
    metavar="NAME=VALUE",
    help="An option of the network or of the data set. Repeatable.",
)


def paging_options(command: _Decorated) -> _Decorated:
    """Add ``--limit``, ``--policy``, ``--inexact`` and ``--no-lms``."""
    for option in (
        click.option("--no-lms", is_flag=True, help="Stock PyTorch."),
        click.option(
            "--inexact",
            "exact",
            flag_value=False,
            default=True,
            help="Let operations larger than the limit run in pieces even where these may be rounded in another way.",
        ),
        click.option("--policy", type=click.Choice(["planned", "reactive"]), default="planned", show_default=True),
        click.option(
            "--limit",
            default="auto",
            show_default=True,
            help='Device memory for tensors: "12GB", "11.5GiB", "80%" of the device, or "auto".',
        ),
    ):
        command = option(command)
    return command


def paging_of(given: dict[str, Any]) -> Paging:
    """What those options say. They are taken out of ``given``."""
    return Paging(not given.pop("no_lms"), given.pop("limit"), given.pop("policy"), exact=given.pop("exact"))


def spoken(json_to: JsonTarget | None) -> Say:
    """A function that prints a text where people read."""
    console = people_console(json_to)
    return lambda text: console.print(text, markup=False, soft_wrap=True)


def workload_of(name: str) -> Workload:
    """The workload of that name, or the one that ``file.py:name`` names.

    Raises:
        UsageError: there is none, or it is no ``Workload``.
    """
    found = find(name)
    if not isinstance(found, Workload):
        raise UsageError(
            f"{name} is {type(found).__name__}: expected a torch_lms_workloads.workload.Workload, "
            "which says what it is trained on"
        )
    return found
