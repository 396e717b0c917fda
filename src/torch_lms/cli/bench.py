"""``torch-lms bench``: runs a target for real on this machine, with LMS and without, and measures it."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import click

from torch_lms.bench.campaign import Bench, Campaign, settings_of
from torch_lms.bench.dimension import DIMENSIONS, Dimension, dimension_of
from torch_lms.bench.expected import Expected
from torch_lms.bench.results import FORMAT, VERSION, Results
from torch_lms.bench.samples import gpu_reader
from torch_lms.bench.search import Found
from torch_lms.bench.sheet import sheet
from torch_lms.bench.trial import Trial
from torch_lms.bench.ways import WAYS, checked
from torch_lms.cli.bench_report import Progress, show_found, show_trials
from torch_lms.cli.failure import FAILED
from torch_lms.cli.shared_options import inexact_option
from torch_lms.errors import UsageError
from torch_lms.machine import read_host_memory
from torch_lms.named_values import named_values
from torch_lms.output import JsonTarget, json_option, json_target, people_console, write_json, write_text
from torch_lms.targets import AMP, Setting, find
from torch_lms.units import format_bytes, parse_bytes

_STEPS = {"find": 3, "sweep": 8}
_PATIENCE_S = 60.0
"""Of a search, which asks what trains: a long warm-up ends though no step has followed a plan."""

_MAX_POINTS = 1000


@click.command()
@click.argument("target")
@click.option("--find", "what", type=click.Choice(DIMENSIONS), help="Find the largest that trains, by running.")
@click.option(
    "--sweep",
    metavar="NAME=FIRST:LAST:STEP",
    help="Measure at each value, as size=128:512:64 or batch=1,2,4. NAME is as for --find.",
)
@click.option(
    "--against",
    default="none,planned",
    show_default=True,
    help=f"Ways to train, with commas between: {', '.join(WAYS)}.",
)
@click.option("--limit", help="Of sessions of LMS: bytes, or as in 12GB, 80%. Default: auto.")
@inexact_option
@click.option("--as-card", help="Take the device for one with so much memory, as 12GB. No way can have more.")
@click.option("--ranks", type=click.IntRange(1), default=1, show_default=True, help="Processes that train together.")
@click.option("--steps", type=click.IntRange(1), help="Steps that count (default: 8; with --find 3).")
@click.option("--size", type=click.IntRange(1), help="Length of a side, or of a text in tokens.")
@click.option("--tokens", "tokens", type=click.IntRange(1), help="The same as --size, of a text.")
@click.option("--batch", type=click.IntRange(1), help="Samples of a step, over all --ranks.")
@click.option("--output-stride", type=int, help="The output stride of deeplabv3plus: 8 or 16.")
@click.option(
    "--set", "options", multiple=True, callback=named_values, metavar="NAME=VALUE", help="An option of the target."
)
@click.option("--lora", type=click.IntRange(1), metavar="R", help="Train LoRA adapters of rank R, by peft.")
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16", "float64"]), help="Of the model.")
@click.option("--amp", type=click.Choice(list(AMP)), default="no", show_default=True, help="Autocast.")
@click.option("--optimizer", help="A name in torch.optim (default: the target's own, or sgd).")
@click.option("--inference", is_flag=True, help="Forward only.")
@click.option("--device", help="Default: the accelerator if there is one, else cpu.")
@click.option(
    "-o", "--output", callback=json_target, metavar="FILE", help="Keep results as JSON lines, and go on from them."
)
@click.option("--csv", "csv_to", callback=json_target, metavar="FILE", help="Write IBM's columns as CSV.")
@json_option
def command(**given: Any) -> int:
    """Run TARGET for real on this machine, and measure it. One process a trial: running out of memory is a result.

    TARGET is what `torch-lms plan` takes. With neither --find nor --sweep one point is measured.
    """
    asked = _Asked(**given)
    if asked.what is not None and asked.sweep is not None:
        raise click.UsageError("expected --find or --sweep; got both")
    if asked.size is not None and asked.tokens is not None:
        raise click.UsageError("expected --size or --tokens; got both")
    if asked.output == "-":
        raise click.UsageError("-o expects a file, from which it can go on; for standard output take --json -")
    bench = _bench(asked)
    dimension, values = _dimension(asked, bench)
    expected = Expected(bench.name, bench.target, bench.limit, bench.card_bytes, bench.device, bench.exact)
    _check_item(asked, bench, expected)
    console = people_console(asked.json_to)
    results = Results(_header(asked, bench, values), asked.output)
    if results.dropped:
        console.print(f"{asked.output}: its last line was cut off, and is dropped", markup=False, soft_wrap=True)
    if results.resumed:
        console.print(f"{asked.output}: {results.resumed} trials are known", markup=False, soft_wrap=True)
    with Progress(console, len(bench.ways) * len(values) if values else None, results.trials) as progress:
        campaign = Campaign(bench, results, expected, progress, gpu_reader() if bench.device == "cuda" else None)
        found: list[Found] = []
        if asked.what is not None and dimension is not None:
            found = campaign.find(dimension)
            trials = results.trials
        else:
            trials = campaign.sweep(dimension, values)
    show_trials(console, bench, trials)
    if dimension is not None and found:
        show_found(console, dimension.name, found)
    _write(asked, found, trials)
    return _exit_code(trials, asked)


@dataclass(frozen=True)
class _Asked:
    """What the command line says. The options of ``command`` explain the fields."""

    target: str
    what: str | None
    sweep: str | None
    against: str
    limit: str | None
    exact: bool
    as_card: str | None
    ranks: int
    steps: int | None
    size: int | None
    tokens: int | None
    batch: int | None
    output_stride: int | None
    options: Mapping[str, Any]
    lora: int | None
    dtype: str | None
    amp: str
    optimizer: str | None
    inference: bool
    device: str | None
    output: JsonTarget | None
    csv_to: JsonTarget | None
    json_to: JsonTarget | None


def _bench(asked: _Asked) -> Bench:
    device = _device(asked.device)
    options = dict(asked.options)
    if asked.output_stride is not None:
        options["output_stride"] = asked.output_stride
    setting = Setting(
        size=asked.size or asked.tokens,
        batch=asked.batch,
        options=options,
        optimizer=asked.optimizer,
        amp=asked.amp,
        dtype=asked.dtype,
        lora=asked.lora,
        is_inference=asked.inference,
        device="cpu" if device == "cpu" else "cuda",
        gpus=_ranks(asked.ranks, device),
    )
    ways = checked(asked.against)
    target = find(asked.target)
    card_bytes = None if asked.as_card is None else _card_bytes(asked.as_card, device)
    if asked.limit is not None:
        parse_bytes(asked.limit, name="--limit", whole=read_host_memory().total)
    steps = asked.steps or _STEPS["find" if asked.what else "sweep"]
    patience_s = _PATIENCE_S if asked.what else None
    return Bench(asked.target, target, setting, ways, asked.limit, card_bytes, device, steps, patience_s, asked.exact)


def _device(given: str | None) -> str:
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    known = ["cpu"] if found is None else [found.type, "cpu"]
    if given is not None and given not in known:
        raise UsageError(f"--device expects one of {', '.join(known)}; got {given!r}")
    return given or known[0]


def _ranks(given: int, device: str) -> int:
    import torch

    if device != "cpu" and given > torch.accelerator.device_count():
        raise UsageError(
            f"--ranks expects a device for each: this machine has {torch.accelerator.device_count()} of {device}; "
            f"got {given}"
        )
    return given


def _card_bytes(given: str, device: str) -> int:
    import torch

    if device == "cpu":
        whole = read_host_memory().total
    else:
        whole = torch.get_device_module(device).mem_get_info()[1]
    nbytes = parse_bytes(given, name="--as-card", whole=whole)
    if not 0 < nbytes <= whole:
        raise UsageError(f"--as-card expects at most what this machine has, {format_bytes(whole)}; got {given}")
    return nbytes


def _dimension(asked: _Asked, bench: Bench) -> tuple[Dimension | None, tuple[int, ...]]:
    """What is varied, and its values; no values where they are found by searching."""
    if asked.what is not None:
        return dimension_of(asked.what, bench.name, bench.target, bench.setting), ()
    if asked.sweep is None:
        return None, (0,)
    name, values = _values(asked.sweep)
    return dimension_of(name, bench.name, bench.target, bench.setting), values


def _values(sweep: str) -> tuple[str, tuple[int, ...]]:
    """The name and the values of ``size=128:512:64`` or ``size=128,256``."""
    name, _, given = sweep.partition("=")
    expected = "expected --sweep NAME=FIRST:LAST:STEP or NAME=VALUE,VALUE with whole numbers from 1"
    if name not in DIMENSIONS:
        raise UsageError(f"{expected}, NAME being one of {', '.join(DIMENSIONS)}; got {sweep!r}")
    try:
        parts = [int(part) for part in given.split(":" if ":" in given else ",")]
    except ValueError:
        raise UsageError(f"{expected}; got {sweep!r}") from None
    if ":" in given:
        if len(parts) not in (2, 3) or min(parts) < 1 or parts[1] < parts[0]:
            raise UsageError(f"{expected}, FIRST at most LAST; got {sweep!r}")
        step = parts[2] if len(parts) == 3 else 1
        parts = list(range(parts[0], parts[1] + 1, step))
    if min(parts) < 1 or len(parts) > _MAX_POINTS:
        raise UsageError(f"{expected}, at most {_MAX_POINTS} of them; got {sweep!r}")
    return name, tuple(dict.fromkeys(parts))


def _check_item(asked: _Asked, bench: Bench, expected: Expected) -> None:
    """Refuse tokens where there are none."""
    name = asked.what or (asked.sweep or "").partition("=")[0]
    if name != "tokens" and asked.tokens is None:
        return
    item = expected.traced(bench.setting, "none").item
    if item != "tokens":
        raise UsageError(f"{bench.name} works on {item}, and has no tokens to be changed: take size")


def _header(asked: _Asked, bench: Bench, values: tuple[int, ...]) -> dict[str, Any]:
    import torch

    sweep = None if asked.sweep is None else {asked.sweep.partition("=")[0]: list(values)}
    return {
        "format": FORMAT,
        "version": VERSION,
        "torch_lms": metadata.version("torch-lms"),
        "torch": torch.__version__,
        "machine": _machine(bench.device),
        "target": bench.name,
        "settings": settings_of(bench, {"find": asked.what, "sweep": sweep}),
    }


def _machine(device: str) -> dict[str, Any]:
    import torch

    from torch_lms.runtime.probe import processor

    here = processor()
    memory = read_host_memory().total
    name, nbytes = here.model, memory
    if device != "cpu":
        module = torch.get_device_module(device)
        name, nbytes = module.get_device_name(), module.mem_get_info()[1]
    return {
        "processor": here.model,
        "cores": here.usable_cores,
        "threads": here.torch_threads,
        "memory_bytes": memory,
        "device": device,
        "device_name": name,
        "device_bytes": nbytes,
        "system": platform.system(),
        "python": platform.python_version(),
    }


def _write(asked: _Asked, found: list[Found], trials: list[Trial]) -> None:
    if asked.csv_to is not None:
        write_text(sheet(trials), asked.csv_to)
    if asked.json_to is not None:
        write_json({"found": found, "trials": trials}, asked.json_to)


def _exit_code(trials: list[Trial], asked: _Asked) -> int:
    """A command of which nothing completed has failed; what was found is kept all the same."""
    if any(trial.is_completed for trial in trials):
        return 0
    first = trials[0] if trials else None
    why = "nothing was run" if first is None else f"the first, {first.way}: {first.outcome}: {first.reason}"
    kept = "" if asked.output is None else f" The results are kept in {asked.output}."
    click.echo(f"torch-lms: error: none of {len(trials)} trials completed; {why}.{kept}", err=True)
    return FAILED
