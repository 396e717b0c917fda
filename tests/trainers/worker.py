"""Runs one training in this process, a rank of it if it has several: python -m tests.trainers.worker ROW FOLDER"""

import importlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tests.trainers.rows import ROWS


@click.command()
@click.argument("row", type=click.Choice(list(ROWS)))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--limit", type=int, help="Bytes, for the trainer's callback.")
@click.option("--min-size", type=int, default=4096)
@click.option("--source", type=click.Path(path_type=Path))
def main(row: str, folder: Path, limit: int | None, min_size: int, source: Path | None) -> None:
    """Train, and write digests and statistics into FOLDER, a file for each rank. What a training gives as a function is
    read from its files once the statistics are known.
    """
    import torch

    from tests.trainers.run import Run, digest

    torch.set_num_threads(1)  # else sums are added up in another order when the machine is busy
    module, function = ROWS[row].training.split(":")
    files = folder / "files"
    files.mkdir(parents=True, exist_ok=True)
    run = Run(files, None if limit is None else {"limit": limit, "min_size": min_size}, source)
    found = getattr(importlib.import_module(f"tests.trainers.{module}"), function)(run, **ROWS[row].arguments)
    rank = os.environ.get("LOCAL_RANK", "0")
    stats = _stats()  # now: bytes that are looked at stay on the device
    digests = {name: digest(value() if callable(value) else value) for name, value in found.items()}
    outcome = {"digests": digests, "stats": stats}
    (folder / f"rank-{rank}.json").write_text(json.dumps(outcome, default=str))


def _stats() -> dict[str, Any] | None:
    """Of the session that is on; None without LMS."""
    lms = sys.modules.get("torch_lms")
    return asdict(lms.stats()) if lms is not None and lms.is_enabled() else None


if __name__ == "__main__":
    main()
