"""``torch-lms run``: runs a user's script, unmodified, with LMS on."""

import atexit
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torch_lms.cli.deferred import once_torch_is_imported
from torch_lms.cli.failure import explain
from torch_lms.cli.ranks import cover, is_launcher, is_rank, stats_of_rank
from torch_lms.cli.run_main import exit_code_of, run_as_main
from torch_lms.cli.shared_options import inexact_option, tune_option
from torch_lms.cli.spawned import cover_spawned
from torch_lms.errors import LmsError
from torch_lms.output import JsonTarget, json_option, json_target, write_json, write_text
from torch_lms.trace import lines as trace_lines
from torch_lms.units import parse_bytes

if TYPE_CHECKING:
    from torch_lms.runtime.stats import Stats, Step


POLICIES = ("planned", "reactive", "tflms2")
"""Those of ``enable``."""


def _size(_ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Refuse what is no size at all before the script starts. Of what a percentage is taken, the session will know."""
    if value is not None and value != "auto":
        parse_bytes(value, name=option.opts[0], whole=1)
    return value


def _size_option(name: str, explanation: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(name, callback=_size, metavar="SIZE", help=explanation)


@click.command(
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
    options_metavar="[OPTIONS]",
)
@_size_option("--limit", 'Device memory for tensors: "12GB", "11.5GiB", "80%" of the device, or "auto" (default).')
@_size_option("--min-size", "Smaller tensors are never moved (default 1MiB).")
@_size_option("--host-limit", 'Page-locked host memory to use before the disk (default "auto").')
@click.option(
    "--spill-dir",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="Directory on the disk that tensors are moved to.",
)
@click.option("--device", metavar="NAME", help='What to page: "cuda", "cpu", ... (default: the accelerator, if any).')
@click.option("--policy", type=click.Choice(POLICIES), help="What moves when (default: planned).")
@tune_option
@inexact_option
@click.option("--stats", "stats_to", callback=json_target, metavar="FILE", help="Write the statistics as JSON to FILE.")
@click.option(
    "--trace",
    "trace_to",
    callback=json_target,
    metavar="FILE",
    help="Write the last step's trace to FILE (JSON lines).",
)
@click.option(
    "--timeline",
    "timeline_to",
    callback=json_target,
    metavar="FILE",
    help="Write what the last step did when to FILE, for `torch-lms report` and ui.perfetto.dev.",
)
@json_option
@click.option("--live", "is_live", is_flag=True, help="Show on standard error what LMS does while the script runs.")
@click.option("--watch", "is_watched", is_flag=True, help="Let `torch-lms watch PID` show it in another terminal.")
@click.option("--no-compile", is_flag=True, help="Let torch.compile do nothing: every operation runs eagerly.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def command(
    script: str,
    arguments: tuple[str, ...],
    is_module: bool,
    no_compile: bool,
    is_live: bool,
    is_watched: bool,
    spill_dir: Path | None,
    device: str | None,
    policy: str | None,
    tune: dict[str, Any],
    exact: bool,
    stats_to: JsonTarget | None,
    trace_to: JsonTarget | None,
    timeline_to: JsonTarget | None,
    json_to: JsonTarget | None,
    **sizes: str | None,
) -> Callable[[], None]:
    """Run SCRIPT with its ARGS as python would, with LMS on.

    All that follows SCRIPT is the script's own. Its output, exit code, tracebacks and signals are as under python. LMS
    starts when the script imports torch; a script that enables LMS itself adopts this session. Ranks that the script
    starts have LMS, too, and so have those of a launcher: torch-lms run torchrun --nproc-per-node 2 train.py
    """
    options: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
    if spill_dir is not None:
        options["spill_dir"] = str(spill_dir.absolute())
    if device is not None:
        options["device"] = device
    if policy is not None:
        options["policy"] = policy
    if tune:
        from torch_lms.planner.makers import plan_maker  # a fifth of a second, which nobody else need wait

        plan_maker(policy or "planned", tune)  # refuses what makes no sense before the script starts
        options["tune"] = tune
    if not exact:
        options["exact"] = False
    if no_compile:
        os.environ["TORCH_COMPILE_DISABLE"] = "1"
    if is_watched:
        os.environ["TORCH_LMS_WATCH"] = "1"
    targets = _Targets(stats_to, trace_to, timeline_to, json_to)
    if not is_module:
        script = _found(script)
    run = _Run(script, arguments, options, is_launcher(script), is_live)
    if run.is_launcher and is_live:
        raise click.UsageError("--live shows one process, and this starts several: give --watch, and watch one of them")
    if not is_rank():  # what a rank starts are its helpers
        cover(options, stats_to)
        cover_spawned(partial(_run_spawned, options, stats_to))
    return partial(_run, run, is_module, targets)


def _found(script: str) -> str:
    """``script``, or the program of that name that is on PATH, such as torchrun."""
    return script if os.path.exists(script) else shutil.which(script) or script


def run_in_rank(options: dict[str, Any], stats_to: JsonTarget | None, rank: str) -> None:
    """Turn LMS on in this process, a rank that is about to run its script, once it has imported torch."""
    run = _Run(sys.argv[0] if sys.argv else "", (), options)
    once_torch_is_imported(partial(_enable, run))
    atexit.register(_write_results, run, _Targets(stats_to, None, None, None))
    print(f"torch-lms: LMS is on in rank {rank} once it imports torch", file=sys.stderr)


def _run_spawned(options: dict[str, Any], stats_to: JsonTarget | None, rank: str) -> None:
    run_in_rank(options, stats_of_rank(stats_to, rank), rank)


@dataclass(frozen=True, slots=True)
class _Targets:
    """Where results are to be written."""

    stats: JsonTarget | None
    trace: JsonTarget | None
    timeline: JsonTarget | None
    result: JsonTarget | None

    def __bool__(self) -> bool:
        return any((self.stats, self.trace, self.timeline, self.result))


@dataclass
class _Run:
    """What is known of the run.

    ``is_launcher``: it starts ranks, and needs no LMS itself. ``is_live``: it is shown while it runs. ``started`` is
    whether the script has imported torch, and LMS is or was on. ``pid`` tells the script from its forks.
    """

    script: str
    arguments: tuple[str, ...]
    options: dict[str, Any]
    is_launcher: bool = False
    is_live: bool = False
    exit_code: int = 0
    started: bool = False
    pid: int = field(default_factory=os.getpid)
    began_s: float = field(default_factory=time.perf_counter)


def _run(run: _Run, is_module: bool, targets: _Targets) -> None:
    if not run.is_launcher:
        once_torch_is_imported(partial(_enable, run))
    # Registered before the script's own exit functions, so it is called after them and after the last thread.
    atexit.register(_write_results, run, targets)
    try:
        run_as_main(run.script, run.arguments, is_module=is_module)
    except BaseException as error:
        run.exit_code = exit_code_of(error)
        raise


def _enable(run: _Run) -> None:
    if os.getpid() != run.pid:  # a child, forked before the script imported torch
        return
    import torch_lms.compat  # noqa: F401  # IBM's names on torch.cuda, for scripts of 2019
    from torch_lms.runtime.api import enable_for_script, reading

    try:
        enable_for_script(**run.options)
    except LmsError as error:
        raise SystemExit(explain(error)) from None
    run.started = True
    if run.is_live:
        from torch_lms.live.monitor import show_until_exit

        show_until_exit(reading)


def _write_results(run: _Run, targets: _Targets) -> None:
    if os.getpid() != run.pid or not targets or run.is_launcher:
        return
    stats = None
    if run.started:
        from torch_lms.runtime import api

        stats = api.stats()  # of the session that is on; or the last, if the script has ended it
        _write_step(run, api.last_step(), stats, targets)
    elif "torch" not in sys.modules:
        print("torch-lms: no statistics: the script did not import torch", file=sys.stderr)
    result = {
        "script": run.script,
        "arguments": run.arguments,
        "exit_code": run.exit_code,
        "wall_s": time.perf_counter() - run.began_s,
        "options": run.options,
        "stats": stats,
    }
    if targets.stats is not None:
        _write(partial(write_json, stats), targets.stats)
    if targets.result is not None:
        _write(partial(write_json, result), targets.result)


def _write_step(run: _Run, step: "Step", stats: "Stats", targets: _Targets) -> None:
    """Write the last step's trace and timeline, if room was short in any step."""
    if targets.trace is not None and step.trace is not None:
        _write(partial(write_text, "".join(f"{line}\n" for line in trace_lines(step.trace))), targets.trace)
    if targets.timeline is not None and step.timeline is not None:
        from torch_lms.report.run_timeline import of_run

        title = " ".join([Path(run.script).name, *run.arguments])
        file = of_run(title, step.timeline, step.trace, stats.as_dict(), step.device, step.overlap_penalty)
        _write(partial(write_json, file), targets.timeline)
    if (targets.trace and step.trace is None) or (targets.timeline and step.timeline is None):
        print("torch-lms: no step was recorded: room was never short. Set a lower --limit", file=sys.stderr)


def _write(write: Callable[[JsonTarget], None], target: JsonTarget) -> None:
    try:
        write(target)
    except click.ClickException as error:
        error.show()  # the exit code stays the script's
