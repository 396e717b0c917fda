"""``torch-lms plan``: will it fit, and how fast? Nothing is allocated, and nothing runs but the simulator."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import click

from torch_lms.answers import CHECKPOINT, Answer, Question, answer, largest
from torch_lms.cli.plan_report import show
from torch_lms.cli.plan_timeline import of_answer
from torch_lms.cli.shared_options import inexact_option, tune_option
from torch_lms.machine import AUTO, INTERPOSERS, Calibration, Machine, calibration_for, load, names
from torch_lms.named_values import named_values
from torch_lms.output import JsonTarget, json_option, json_target, people_console, write_json
from torch_lms.planner import POLICIES, HostPart
from torch_lms.targets import AMP, Setting, Target, find, workload_names
from torch_lms.units import parse_bytes

THIS = "this"
BOTH = "both"


@click.command()
@click.argument("target", required=False)
@click.option(
    "--size",
    type=click.IntRange(1),
    help="Length of a side, or of a text in tokens (default: the target's own). With --max size: where to begin.",
)
@click.option(
    "--batch", type=click.IntRange(1), help="Samples of a step, over all --gpus (default: the workload's own)."
)
@click.option("--output-stride", type=int, help="The output stride of deeplabv3plus: 8 or 16.")
@click.option(
    "--set",
    "options",
    multiple=True,
    callback=named_values,
    metavar="NAME=VALUE",
    help="An option of the workload, or a field of the model's configuration. Repeatable.",
)
@click.option("--lora", type=click.IntRange(1), metavar="R", help="Train LoRA adapters of rank R, by peft.")
@click.option(
    "--dtype", type=click.Choice(["float32", "float16", "bfloat16", "float64"]), help="Type of the model's numbers."
)
@click.option("--amp", type=click.Choice(list(AMP)), default="no", show_default=True, help="Autocast.")
@click.option("--optimizer", help="A name in torch.optim, in any case (default: the workload's own, or sgd).")
@click.option("--inference", is_flag=True, help="Forward only.")
@click.option(
    "--machine",
    "machines",
    default=THIS,
    show_default=True,
    help=f"Names, with commas between, or a file that ends in .toml. Known: {THIS}, {', '.join(names())}.",
)
@click.option(
    "--limit",
    help="Device memory for tensors: bytes, or as in 12GB, 11.5GiB, 80%. With 0, all that is not in use is evicted.",
)
@click.option("--gpus", type=click.IntRange(1), default=1, show_default=True, help="Ranks of data-parallel training.")
@click.option("--policy", type=click.Choice([*POLICIES, CHECKPOINT]), default="planned", show_default=True)
@tune_option
@inexact_option
@click.option(
    "--interposer",
    type=click.Choice([AUTO, *INTERPOSERS, BOTH]),
    default=AUTO,
    show_default=True,
    help="How LMS comes between PyTorch and its kernels: in C++ or in Python. auto: the faster that the machine has.",
)
@click.option("--max", "what", type=click.Choice(["size", "batch"]), help="Find the largest that fits, to a hundredth.")
@click.option("--epochs", type=click.IntRange(1), help="With --samples: how many hours a training takes.")
@click.option("--samples", type=click.IntRange(1), help="Samples of the data set.")
@click.option(
    "--loading",
    type=click.FloatRange(0),
    default=0.0,
    help="Seconds of a core that reading and augmenting a sample takes.",
)
@click.option(
    "--workers", type=click.IntRange(1), default=1, show_default=True, help="With --loading: cores that do so."
)
@click.option(
    "--on-host",
    type=click.FloatRange(0),
    default=0.0,
    help="Seconds of each step that the network computes on the host.",
)
@click.option("--compare", is_flag=True, help="Set machines side by side, the fastest first.")
@click.option(
    "--timeline",
    "timeline_to",
    callback=json_target,
    metavar="FILE",
    help="Write what the simulated step did when to FILE, for `torch-lms report` and ui.perfetto.dev. One machine.",
)
@click.option("--validate", is_flag=True, help="Measure here how good the predictions are, of memory and of time.")
@json_option
def command(**given: Any) -> None:
    """Will TARGET fit, and how fast is it?

    TARGET is a workload's name, hf:NAME_OR_FOLDER (a configuration of transformers), timm:NAME, torchvision:NAME,
    module:function, or file.py:function.

    The function takes any of the keywords size, batch and options of its own, and returns (model, inputs) or
    (model, inputs, loss). Nothing is allocated: the step is traced on tensors without bytes, and simulated.
    """
    asked = _Asked(**given)
    if asked.validate:
        _validate(asked.json_to)
        return
    if asked.target is None:
        raise click.UsageError(f"expected a TARGET: one of {', '.join(workload_names())}, or module:function")
    if (asked.epochs is None) != (asked.samples is None):
        raise click.UsageError("--epochs and --samples belong together")
    if asked.timeline_to is not None and "," in asked.machines:
        raise click.UsageError(f"--timeline expects one machine; got {asked.machines}")
    if asked.timeline_to is not None and asked.interposer == BOTH:
        raise click.UsageError("--timeline expects one interposer; got both")

    console = people_console(asked.json_to)
    function = find(asked.target)
    answers = []
    for name in asked.machines.split(","):
        for interposer in INTERPOSERS if asked.interposer == BOTH else (asked.interposer,):
            with console.status(f"{asked.target} on {name}"):
                machine, calibration = _machine(name)
                answers.append(_answer(asked, asked.target, function, machine, calibration, interposer))
    if asked.compare:
        answers.sort(key=_step_s)

    show(console, asked.target, answers)
    if asked.json_to is not None:
        write_json([each.plain() for each in answers], asked.json_to)
    if asked.timeline_to is not None:
        _write_timeline(asked.target, answers[0], machine, calibration, asked.exact, asked.timeline_to)


@dataclass(frozen=True)
class _Asked:
    """What the command line says. The options of ``command`` explain the fields."""

    target: str | None
    size: int | None
    batch: int | None
    output_stride: int | None
    options: Mapping[str, Any]
    lora: int | None
    dtype: str | None
    amp: str
    optimizer: str | None
    inference: bool
    machines: str
    limit: str | None
    gpus: int
    policy: str
    tune: Mapping[str, Any]
    exact: bool
    interposer: str
    what: str | None
    epochs: int | None
    samples: int | None
    loading: float
    workers: int
    on_host: float
    compare: bool
    timeline_to: JsonTarget | None
    validate: bool
    json_to: JsonTarget | None


def _validate(json_to: JsonTarget | None) -> None:
    from torch_lms.cli.plan_validate import validate

    found = validate(people_console(json_to))
    if json_to is not None:
        write_json(found.plain(), json_to)


def _machine(name: str) -> tuple[Machine, Calibration]:
    if name != THIS:
        machine = load(name)
        return machine, calibration_for(machine.accelerator)
    from torch_lms.runtime.calibrate import this_machine

    return this_machine()


def _answer(
    asked: _Asked, target: str, function: Target, machine: Machine, calibration: Calibration, interposer: str
) -> Answer:
    limit = None
    if asked.limit is not None:
        limit = parse_bytes(asked.limit, name="--limit", whole=machine.accelerator.usable_bytes)
    question = Question(
        target,
        function,
        _setting(asked, machine),
        asked.policy,
        limit,
        interposer,
        asked.tune,
        HostPart(asked.loading, asked.workers, asked.on_host),
        asked.exact,
    )
    if asked.what is None:
        found = answer(question, machine, calibration)
    else:
        found = largest(question, asked.what, machine, calibration)
    if asked.epochs is not None and asked.samples is not None:
        found = found.of_epochs(asked.epochs, asked.samples)
    return found


def _setting(asked: _Asked, machine: Machine) -> Setting:
    options = dict(asked.options)
    if asked.output_stride is not None:
        options["output_stride"] = asked.output_stride
    return Setting(
        size=asked.size,
        batch=asked.batch,
        options=options,
        optimizer=asked.optimizer,
        amp=asked.amp,
        dtype=asked.dtype,
        lora=asked.lora,
        is_inference=asked.inference,
        checkpoints=asked.policy == CHECKPOINT,
        device="cpu" if machine.link is None else "cuda",
        gpus=asked.gpus,
    )


def _step_s(found: Answer) -> float:
    """The seconds of a step, to sort by: what does not fit comes last."""
    step_s = found.forecast.step_s
    return inf if step_s is None else step_s


def _write_timeline(
    name: str, found: Answer, machine: Machine, calibration: Calibration, exact: bool, target: JsonTarget
) -> None:
    forecast = found.forecast
    if not forecast.fits_with:
        raise click.ClickException(f"no timeline: {forecast.advice}")
    if forecast.timeline is None:
        raise click.ClickException("no timeline: nothing was moved; give a smaller --limit, or a larger size")
    write_json(of_answer(name, found, machine, calibration, exact), target)
