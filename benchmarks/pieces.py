"""How large steps can be in 300 MB on a CPU, when the largest operation is far larger than that.

    python benchmarks/pieces.py    # half an hour; writes results/pieces-<machine>.json

A picture through a network for restoration (inference), a 3D U-Net and a small GPT (training) grow until they fail:
operations run as a whole, or in pieces. The kernel holds the process to 300 MB beside its imports (RLIMIT_DATA), of
which pages may take 90 MB. A size counts if its results equal those of stock PyTorch, with all memory, to the bit.
Each size runs in pieces once without the kernel's limit, so that what pieces give is proved.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
from overhead import RESULTS, keep, slug

from torch_lms.runtime.probe import probe
from torch_lms.units import format_bytes, format_seconds

WORKER = Path(__file__).with_name("pieces_worker.py")
LIMIT, MEMORY = 90_000_000, 300_000_000
SIZES = {
    "photograph": (512, 768, 1024, 1536, 2048, 3072, 4096, 6144),
    "unet3d": (32, 48, 64, 80, 96),
    "gpt": (512, 1024, 2048, 4096, 6144, 8192, 12_288),
}
UNITS = {"photograph": "pixels a side", "unet3d": "voxels a side", "gpt": "tokens"}
FORMAT = 1


def work(program: str, size: int, way: str, *limits: int) -> dict[str, Any] | None:
    """What a process of the worker printed; None if it failed."""
    command = [sys.executable, str(WORKER), program, str(size), way, *map(str, limits or (LIMIT,))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if done.returncode == 0 and lines else None


def grow(program: str, sizes: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """The largest size that each way ran, with what it printed."""
    largest: dict[str, dict[str, Any]] = {}
    running = ["whole", "pieces"]
    for size in sizes:
        stock = work(program, size, "stock")
        if stock is None:
            raise click.ClickException(f"{program} of {size} {UNITS[program]} does not run in stock PyTorch")
        if "pieces" in running:
            work(program, size, "pieces", LIMIT)
        for way in list(running):
            found = work(program, size, way, LIMIT, MEMORY)
            if found is None:
                running.remove(way)
                continue
            if found["digest"] != stock["digest"]:
                raise click.ClickException(f"{program} of {size} {UNITS[program]}, {way}: other results than stock's")
            largest[way] = {"size": size, "stock_s": stock["seconds"], **found}
        click.echo(f"{program:12} {size:6} {UNITS[program]:14} runs: {', '.join(running) or 'no more'}")
        if not running:
            break
    return largest


@click.command()
@click.option("--quick", is_flag=True, help="Small sizes, to show that it runs; writes no results.")
@click.option("--output", type=click.Path(path_type=Path), help="The file to write.")
def main(quick: bool, output: Path | None) -> None:
    """Grow each program, each way."""
    load = os.getloadavg()[0]
    machine = probe()
    found = {program: grow(program, sizes[:2] if quick else sizes) for program, sizes in SIZES.items()}
    for program, ways in found.items():
        for way, figures in ways.items():
            seconds, stock_s = format_seconds(figures["seconds"]), format_seconds(figures["stock_s"])
            peak = format_bytes(figures["peak_bytes"])
            click.echo(
                f"{program:12} {way:7} {figures['size']:6} {UNITS[program]:14} {seconds} (stock {stock_s}), {peak}"
            )
    if not quick:
        path = output or RESULTS / f"pieces-{slug(machine)}.json"
        keep(path, FORMAT, machine, load, {"limit_bytes": LIMIT, "memory_bytes": MEMORY, "programs": found})


if __name__ == "__main__":
    main()
