"""``torch-lms plan``: will it fit, and how fast? Nothing is allocated, and nothing runs but the simulator."""

from collections.abc import Mapping
from math import inf
from typing import Any

import click

from torch_lms.cli.named_values import named_values
from torch_lms.cli.output import JsonTarget, json_option, json_target, people_console, write_json
from torch_lms.cli.plan_answer import CHECKPOINT, Question, answer, largest
from torch_lms.cli.plan_report import show
from torch_lms.cli.plan_target import AMP, Setting, find, workload_names
from torch_lms.machine import Calibration, Machine, calibration_for, load, names
from torch_lms.planner import POLICIES, Forecast
from torch_lms.report import perfetto
from torch_lms.timeline import Timeline
from torch_lms.units import parse_bytes

THIS = "this"


@click.command()
@click.argument("target", required=False)
@click.option(
    "--size",
    type=click.IntRange(1),
    help="Length of a side (default: the workload's own). With --max size: where to begin.",
)
@click.option("--batch", type=click.IntRange(1), help="Of one step, over all --gpus (default: the workload's own).")
@click.option("--output-stride", type=int, help="Of deeplabv3plus: 8 or 16.")
@click.option(
    "--set",
    "options",
    multiple=True,
    callback=named_values,
    metavar="NAME=VALUE",
    help="An option of the workload. Repeatable.",
)
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16", "float64"]), help="Of the model.")
@click.option("--amp", type=click.Choice(list(AMP)), default="no", show_default=True, help="Autocast.")
@click.option("--optimizer", help="Of torch.optim, any case (default: the workload's own, or sgd).")
@click.option("--inference", is_flag=True, help="Forward only.")
@click.option(
    "--machine",
    "machines",
    default=THIS,
    show_default=True,
    help=f"Names, with commas between, or a file that ends in .toml. Known: {THIS}, {', '.join(names())}.",
)
@click.option(
    "--limit", help="Of the device's memory: bytes, or as in 12GB, 11.5GiB, 80%; 0: all leaves that is not in use."
)
@click.option("--gpus", type=click.IntRange(1), default=1, show_default=True, help="Ranks of data-parallel training.")
@click.option("--policy", type=click.Choice([*POLICIES, CHECKPOINT]), default="planned", show_default=True)
@click.option("--max", "what", type=click.Choice(["size", "batch"]), help="Find the largest that fits, to a hundredth.")
@click.option("--epochs", type=click.IntRange(1), help="With --samples: the hours in all.")
@click.option("--samples", type=click.IntRange(1), help="Of the data set.")
@click.option("--compare", is_flag=True, help="Set machines side by side, the fastest first.")
@click.option(
    "--timeline",
    "timeline_to",
    callback=json_target,
    metavar="FILE",
    help="Write what the simulated step did when to FILE, for ui.perfetto.dev. One machine.",
)
@click.option("--validate", is_flag=True, help="Print how good the model is: memory, time, what was published.")
@json_option
def command(
    target: str | None,
    options: Mapping[str, Any],
    output_stride: int | None,
    machines: str,
    limit: str | None,
    what: str | None,
    epochs: int | None,
    samples: int | None,
    compare: bool,
    validate: bool,
    timeline_to: JsonTarget | None,
    json_to: JsonTarget | None,
    **asked: Any,
) -> None:
    """Will TARGET fit, and how fast is it? TARGET is a workload's name, module:function, or file.py:function.

    The function takes any of the keywords size, batch and options of its own, and returns (model, inputs) or
    (model, inputs, loss). Nothing is allocated: the step is traced on tensors without bytes, and simulated.
    """
    if validate:
        _validate(json_to)
        return
    if target is None:
        raise click.UsageError(f"expected a TARGET: one of {', '.join(workload_names())}, or module:function")
    if (epochs is None) != (samples is None):
        raise click.UsageError("--epochs and --samples belong together")
    if timeline_to is not None and "," in machines:
        raise click.UsageError(f"--timeline expects one machine; got {machines}")
    chosen = {**options} | ({} if output_stride is None else {"output_stride": output_stride})
    console, function = people_console(json_to), find(target)
    answers = []
    for name in machines.split(","):
        with console.status(f"{target} on {name}"):
            machine, calibration = _machine(name)
            usable = machine.accelerator.usable_bytes
            question = Question(
                target,
                function,
                _setting(machine, chosen, asked),
                asked["policy"],
                None if limit is None else parse_bytes(limit, name="--limit", whole=usable),
            )
            if what is None:
                found = answer(question, machine, calibration)
            else:
                found = largest(question, what, machine, calibration)
            answers.append(found if epochs is None or samples is None else found.of_epochs(epochs, samples))
    if compare:
        answers.sort(key=lambda answer: inf if answer.forecast.step_s is None else answer.forecast.step_s)
    show(console, target, answers)
    if json_to is not None:
        write_json([answer.plain() for answer in answers], json_to)
    if timeline_to is not None:
        write_json(perfetto(_timeline(answers[0].forecast)), timeline_to)


def _timeline(found: Forecast) -> Timeline:
    if not found.fits_with:
        raise click.ClickException(f"no timeline: {found.advice}")
    if found.timeline is None:
        raise click.ClickException("no timeline: nothing was moved; give a smaller --limit, or a larger size")
    return found.timeline


def _validate(json_to: JsonTarget | None) -> None:
    from torch_lms.cli.plan_validate import validate

    found = validate(people_console(json_to))
    if json_to is not None:
        write_json(found.plain(), json_to)


def _setting(machine: Machine, options: dict[str, Any], asked: dict[str, Any]) -> Setting:
    return Setting(
        size=asked["size"],
        batch=asked["batch"],
        options=options,
        optimizer=asked["optimizer"],
        amp=asked["amp"],
        dtype=asked["dtype"],
        is_inference=asked["inference"],
        checkpoints=asked["policy"] == CHECKPOINT,
        device="cpu" if machine.link is None else "cuda",
        gpus=asked["gpus"],
    )


def _machine(name: str) -> tuple[Machine, Calibration]:
    if name != THIS:
        machine = load(name)
        return machine, calibration_for(machine.accelerator)
    from torch_lms.runtime.calibrate import this_machine

    return this_machine()
