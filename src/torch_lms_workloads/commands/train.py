"""Train a network on your data, also where it does not fit: to its metric, resumable, on one device or many."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from torch_lms.output import JsonTarget, json_option, write_json
from torch_lms_workloads.commands.options import AMP_OPTION, SET_OPTION, paging_of, paging_options, spoken, workload_of
from torch_lms_workloads.commands.out_of_memory import explained, size_that_fits
from torch_lms_workloads.training.loop import train
from torch_lms_workloads.training.numa import bind_near
from torch_lms_workloads.training.ranks import leave, ranks_here
from torch_lms_workloads.training.request import Request
from torch_lms_workloads.training.setup import set_up

AT_LEAST_ONE = click.IntRange(1)


@click.command()
@click.argument("workload")
@click.option("--data", required=True, help='Folder of the data set, or "synthetic".')
@SET_OPTION
@click.option("--size", type=AT_LEAST_ONE, help="Length of all sides (default: the workload's own).")
@click.option("--batch", type=AT_LEAST_ONE, help="Samples of one rank at once (default: the workload's own).")
@click.option("--accumulate", type=AT_LEAST_ONE, default=1, show_default=True, help="Batches of one step.")
@click.option("--steps", type=AT_LEAST_ONE, help="Number of steps.")
@click.option("--epochs", type=AT_LEAST_ONE, help="Number of epochs (default 1).")
@click.option("--optimizer", help="A name in torch.optim, in any case (default: the workload's own).")
@click.option("--lr", type=click.FloatRange(0, min_open=True), help="Learning rate (default: the optimizer's).")
@click.option("--lr-policy", type=click.Choice(["poly", "constant"]), default="poly", show_default=True)
@AMP_OPTION
@click.option("--channels-last", is_flag=True, help="Keep channels beside each other in memory.")
@click.option("--val-batch", type=AT_LEAST_ONE, help="Samples of one rank at once in validation (default: --batch).")
@click.option(
    "--val-every", type=AT_LEAST_ONE, help="Steps between validations, each with a checkpoint (default: an epoch)."
)
@click.option("--init", type=click.Path(path_type=Path), help="Weights to begin with: a checkpoint, or a state_dict.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--deterministic", "is_deterministic", is_flag=True, help="Only algorithms that repeat to the bit.")
@click.option(
    "--checkpoint-dir", "folder", type=click.Path(path_type=Path), help="Folder for the checkpoint and the logs."
)
@click.option("--resume", is_flag=True, help="Go on from the checkpoint, if there is one.")
@click.option("--workers", type=click.IntRange(0), default=0, show_default=True, help="Processes that read ahead.")
@click.option(
    "--parallel", type=click.Choice(["ddp", "fsdp"]), default="ddp", show_default=True, help="Under torchrun."
)
@click.option(
    "--numa",
    type=click.Choice(["no", "auto"]),
    default="no",
    show_default=True,
    help="auto: run on the processors near the GPU.",
)
@click.option("--live", is_flag=True, help="Show on standard error what LMS does meanwhile, of the first rank.")
@paging_options
@json_option
def command(
    workload: str, numa: str, live: bool, json_to: JsonTarget | None, **given: Any
) -> Callable[[], NoReturn] | None:
    """Train WORKLOAD: a name that `torch-lms plan` knows, or file.py:name of a workload of your own.

    Under torchrun the same command trains on several devices.
    """
    if given["steps"] is not None and given["epochs"] is not None:
        raise click.UsageError("--steps and --epochs exclude each other")
    ranks = ranks_here()
    target = workload_of(workload)
    say = spoken(json_to) if ranks.is_first else _say_nothing
    if numa == "auto":
        bound = bind_near(ranks.device())
        if bound is not None:
            say(bound)
    paging = paging_of(given)
    if live and not paging.is_on:
        raise click.UsageError("--live shows what LMS does: omit --no-lms")
    paging = replace(paging, is_live=live and ranks.is_first)
    setup = set_up(target, Request(paging=paging, **given), ranks)
    what = f"at size {setup.recipe.size}, batch {setup.recipe.batch}"
    with explained(setup.request.paging, setup.device, what, partial(size_that_fits, setup)):
        result = train(setup, say)
    if json_to is not None and ranks.is_first:
        write_json(result, json_to)
    return leave if ranks.count > 1 else None


def _say_nothing(text: str) -> None:
    """Say nothing: only the first rank speaks."""
