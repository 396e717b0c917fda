"""A decoder whose weights are four times the limit: loaded, asked, fine-tuned, saved, and gone on with, on a CPU.

    python benchmarks/larger_than_memory.py    # six minutes; writes results/larger-than-memory-<machine>.json

Each phase runs in stock PyTorch and with LMS, in processes of their own. It prints the seconds of each; the most memory
that the kernel counted, beside what the process had after its imports; and what LMS wrote to the disk. What both give
must be the same to the bit: tokens, losses, and the files that they save. Weights are random: nothing is downloaded.
1.2 GB of weights, 3.6 GB with the state of AdamW, 5 GB at once in a step; 13 GB of disk.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from overhead import RESULTS, keep, slug

from torch_lms.runtime.probe import probe
from torch_lms.units import format_bytes, format_seconds, parse_bytes

SIZES = {False: (2048, 5632, 6, 8192), True: (512, 1408, 3, 1024)}
"""Width, inner width, layers and words, by whether it is quick."""
WORKER = Path(__file__).with_name("larger_than_memory_worker.py")
FORMAT = 1


def work(*arguments: object) -> list[dict[str, Any]]:
    """What a process of the worker printed."""
    environment = os.environ | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(WORKER), *map(str, arguments)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def digests(folder: Path) -> dict[str, str]:
    """Of each file."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            found[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def compare(limit: str | None, quick: bool) -> dict[str, Any]:
    """What both gave and took."""
    with tempfile.TemporaryDirectory() as name:
        model, stock, ours = (Path(name) / each for each in ("model", "stock", "lms"))
        work("make", model, *SIZES[quick])
        weights_bytes = sum(file.stat().st_size for file in model.glob("*.safetensors"))
        limit_bytes = weights_bytes // 4 if limit is None else parse_bytes(limit, name="--limit")
        phases = {"stock": work("use", model, stock), "lms": work("use", model, ours, limit_bytes)}
        are_equal = digests(stock) == digests(ours)
    given = [[phase["given"] for phase in its] for its in phases.values()]
    return {
        "weights_bytes": weights_bytes,
        "limit_bytes": limit_bytes,
        "are_equal": are_equal and given[0] == given[1],
        "phases": phases,
    }


def table(found: dict[str, Any]) -> str:
    """As Markdown."""
    lines = ["| phase | stock | memory | LMS | memory | written |", "|---|---|---|---|---|---|"]
    for before, after in zip(*found["phases"].values(), strict=True):
        cells = [before["phase"]]
        for phase in (before, after):
            beyond_bytes = max(0, phase["memory_bytes"] - phase["imports_bytes"])
            cells += [format_seconds(phase["seconds"]), format_bytes(beyond_bytes)]
        lines.append(f"| {' | '.join(cells)} | {format_bytes(after['spilled_bytes'])} |")
    return "\n".join(lines)


@click.command()
@click.option("--limit", help="Of memory for pages, as in 300MB. Default: a quarter of the weights.")
@click.option("--quick", is_flag=True, help="A small model; the figures mean little.")
@click.option("--output", type=click.Path(path_type=Path), help="Default: as above; none if quick.")
def main(limit: str | None, quick: bool, output: Path | None) -> None:
    """Use a decoder whose weights are four times the limit."""
    machine, load = probe(None, measure=False), os.getloadavg()[0]
    found = compare(limit, quick)
    print(f"{format_bytes(found['weights_bytes'])} of weights, a limit of {format_bytes(found['limit_bytes'])}\n")
    print(table(found))
    print(f"\ntokens, losses and files: {'equal to the bit' if found['are_equal'] else 'DIFFERENT'}")
    if output is None and not quick:
        output = RESULTS / f"larger-than-memory-{slug(machine)}.json"
    if output is not None:
        keep(output, FORMAT, machine, load, found)
        print(f"written to {output}")
    raise SystemExit(0 if found["are_equal"] else 1)


if __name__ == "__main__":
    main()
