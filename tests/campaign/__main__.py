"""Everything that a GPU can show, in at most 40 minutes; a second start goes on with what is missing.

    python -m tests.campaign                    # on the GPU; writes benchmarks/results/gpu-NAME.json and docs/gpu.md
    python -m tests.campaign --parts tests,overhead
    python -m tests.campaign --again overhead   # also what has passed
    python -m tests.campaign --on testacc       # tiny, on the test accelerator: does the campaign itself work?

Each part is a process with a time limit. One that fails or does not end is a row that says so, and the others go on;
then the exit code is 1. On the test accelerator everything begins anew, unless --out names a file.
"""

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tests import accelerator
from tests.campaign import report, runner
from tests.campaign.found import ROOT
from tests.campaign.parts import PARTS

MINUTES = 40.0
_INTERRUPTED = 130


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--on", metavar="DEVICE", help="cuda, ... (default: the GPU), or testacc, the test accelerator")
    parser.add_argument("--parts", default="", help=f"some of {','.join(PARTS)} (default: all)")
    parser.add_argument("--again", default="", metavar="PARTS", help='run these though they have passed, or "all"')
    parser.add_argument("--out", type=Path, help="the file of results")
    parser.add_argument("--docs", type=Path, help="the page to fill in (default: docs/gpu.md, on a GPU)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="start nothing after so many (default: 40)")
    chosen = parser.parse_args()
    asked = _names(parser, "--parts", chosen.parts) or list(PARTS)
    again = list(PARTS) if chosen.again == "all" else _names(parser, "--again", chosen.again)
    device = _device(parser, chosen.on)
    try:
        return _campaign(device, asked, again, chosen)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("stopped; what has ended is kept", file=sys.stderr)
        return _INTERRUPTED


def _names(parser: argparse.ArgumentParser, option: str, given: str) -> list[str]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in PARTS:
            parser.error(f"{option}: there is no part {name!r}; there are {', '.join(PARTS)}")
    return names


def _device(parser: argparse.ArgumentParser, asked: str | None) -> str:
    """The type of the device, which is there."""
    if asked == accelerator.NAME:
        try:
            accelerator.install()  # here, so that no part waits for the compiler
        except accelerator.CannotBuild as error:
            parser.error(str(error))
        return accelerator.NAME
    there = torch.accelerator.current_accelerator(check_available=True)
    if there is None:
        parser.error("PyTorch finds no GPU here; --on testacc runs everything on the test accelerator, with tiny sizes")
    if asked not in (None, there.type):
        parser.error(f"--on: there is no {asked!r} here; there are {there.type} and {accelerator.NAME}")
    return there.type


def _campaign(device: str, asked: list[str], again: list[str], chosen: argparse.Namespace) -> int:
    is_tiny = device == accelerator.NAME
    until_s = time.monotonic() + 60 * chosen.minutes
    docs = chosen.docs or (None if is_tiny else ROOT / "docs" / "gpu.md")
    with tempfile.TemporaryDirectory(prefix="torch-lms-campaign-") as folder:
        config = Path(f"{chosen.out}.config" if chosen.out else folder)
        machine = runner.run(PARTS["machine"], device, PARTS["machine"].limit_s, config)
        if machine["status"] != runner.PASSED:
            print(f"the machine could not be looked at: {machine['failures']}", file=sys.stderr)
            return 1
        kept = runner.Kept.read(chosen.out or (Path(folder) / "found.json" if is_tiny else _target(machine)))
        kept.keep("machine", machine)
        for name in asked:
            if name != "machine" and (name in again or not kept.passed(name)):
                kept.keep(name, _one(name, device, until_s, config, kept))
    shown = {name: kept.parts[name] for name in ("machine", *asked)}
    Console(width=None if sys.stdout.isatty() else 150, highlight=False).print(
        report.table(shown, f"{machine['summary']}, PyTorch {torch.__version__}")
    )
    if chosen.out or not is_tiny:
        print(f"written to {kept.target}")
    if docs is not None:
        report.fill(docs, report.page(kept.parts))
        print(f"tables written to {docs}")
    return int(not all(kept.passed(name) for name in asked))


def _one(name: str, device: str, until_s: float, config: Path, kept: runner.Kept) -> dict[str, Any]:
    part = PARTS[name]
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        return runner.not_run("time was up; start again to go on")
    if part.needs and not kept.passed(part.needs):
        return runner.not_run(f"needs {part.needs}, which has not passed")
    print(f"-- {name}: {part.title}, at most {min(part.limit_s, left_s):.0f} s", file=sys.stderr, flush=True)
    return runner.run(part, device, min(part.limit_s, left_s), config)


def _target(machine: dict[str, Any]) -> Path:
    model = machine["figures"]["accelerators"][0]["model"].lower()
    return ROOT / "benchmarks" / "results" / f"gpu-{re.sub(r'[^a-z0-9]+', '-', model).strip('-')}.json"


if __name__ == "__main__":
    sys.exit(main())
