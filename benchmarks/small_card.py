"""LMS on a small card: a share of the GPU's memory, and batches that need a multiple of what fits there.

python benchmarks/small_card.py --model resnet50          # some minutes; the table, and --json FILE
python benchmarks/small_card.py --model unet3d --card 12GB --times 2 --largest
"""

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from small_card_models import MODELS, TINY, Model
from small_card_worker import FITS, Asked, Ran, work

from torch_lms.units import format_bytes, parse_bytes

REFERENCE = "whole card"
WAYS = ("planned", "checkpoint", "save_on_cpu", "reactive")
"""In the order in which they are tried."""

SHARES = (0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05)
"""Of what fits by a straight line, that are tried."""

DOUBLINGS = 14

TRIALS = 8
NEAR = 0.1
"""Of a largest size: how much larger one is known not to run."""

START_S = 30.0
"""Less time than this is too little for one more process."""


@dataclass(frozen=True)
class Row:
    """One way to train, at ``times`` what fits on a card of ``card_bytes``. ``ran`` is None if time was up."""

    card_bytes: int
    times: float
    amount: int
    way: str
    ran: Ran | None
    equal: bool | None


class Bench:
    """All runs of one model. ``until_s``: when to start nothing more."""

    def __init__(self, model: Model, device: str, is_tiny: bool, seconds: float) -> None:
        self.model = model
        self._device = device
        self._is_tiny = is_tiny
        self._until_s = time.monotonic() + seconds

    def run(self, way: str, card_bytes: int, amounts: list[int]) -> list[Ran | None]:
        """``way`` at each of ``amounts`` in turn, in a process of its own, until one fails."""
        left_s = self._until_s - time.monotonic()
        if left_s < (0 if self._is_tiny else START_S):
            return [None] * len(amounts)
        asked = Asked(self.model.name, self._is_tiny, self._device, way, card_bytes, amounts)
        command = [sys.executable, __file__, "--worker", json.dumps(asdict(asked))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            try:
                output, _ = worker.communicate(timeout=max(left_s, START_S))
            except subprocess.TimeoutExpired:
                worker.kill()
                output, _ = worker.communicate()
        found: list[Ran | None] = [Ran(**json.loads(line)) for line in output.splitlines() if line.startswith("{")]
        if worker.returncode and len(found) < len(amounts):
            found.append(Ran(amounts[len(found)], f"the process ended with {worker.returncode}"))
        if found and found[-1] and found[-1].failure:  # what is larger does not run either
            found += [Ran(amount, found[-1].failure) for amount in amounts[len(found) :]]
        return found + [None] * (len(amounts) - len(found))

    def fits(self, card_bytes: int) -> tuple[int, int]:
        """The largest amount that stock PyTorch trains on the card, found by running, and the bytes that it needs."""
        doubled = [self.model.amount_of(self.model.units(self.model.first) * 2**n) for n in range(DOUBLINGS)]
        found = [one for one in self.run(FITS, card_bytes, doubled) if one]
        needs = {one.amount: one.peak_bytes for one in found if not one.failure}
        if len(needs) < 2:
            why = found[len(needs)].failure if len(found) > len(needs) else "time was up"
            raise click.ClickException(f"{self.model.name} on a card of {format_bytes(card_bytes)}: {why}")
        small, large = sorted(needs)[-2:]
        slope = (needs[large] - needs[small]) / (self.model.units(large) - self.model.units(small))
        base = needs[small] - slope * self.model.units(small)
        guess = self.model.amount_of((card_bytes - base) / slope)
        tried = sorted({self.model.amount_of(share * self.model.units(guess)) for share in SHARES})
        tried = [amount for amount in tried if amount > large]
        ran = [large, *(one.amount for one in self.run(FITS, card_bytes, tried) if one and not one.failure)]
        return ran[-1], int(base + slope * self.model.units(ran[-1]))

    def at(self, fit: int, times: float) -> int:
        """The amount that needs ``times`` as much as ``fit``, nearly: what does not grow with it is left out."""
        return self.model.amount_of(times * self.model.units(fit))


def compare(bench: Bench, card_bytes: int, fit: int, times: list[float], ways: tuple[str, ...]) -> list[Row]:
    """The reference and all ``ways``, at all ``times`` what fits."""
    amounts = [bench.at(fit, k) for k in times]
    alone = bench.run(REFERENCE, 0, amounts)
    rows = [Row(card_bytes, k, a, REFERENCE, ran, None) for k, a, ran in zip(times, amounts, alone, strict=True)]
    for way in ways:
        for k, amount, ran, reference in zip(times, amounts, bench.run(way, card_bytes, amounts), alone, strict=True):
            equal = None
            if ran and reference and not ran.failure and not reference.failure:
                equal = ran.losses == reference.losses
            rows.append(Row(card_bytes, k, amount, way, ran, equal))
    return rows


def largest(bench: Bench, card_bytes: int, fit: int) -> dict[str, Any]:
    """The largest amount that LMS trains on the card, found by running; and why the next one did not run."""
    runs, fails, why = fit, None, "time was up"
    for _ in range(TRIALS):
        if fails is None:
            trial = bench.at(runs, 2.0)
        else:
            trial = bench.model.amount_of((bench.model.units(runs) + bench.model.units(fails)) / 2)
        if trial in (runs, fails):
            break
        (ran,) = bench.run("planned", card_bytes, [trial])
        if ran is None:
            break
        if ran.failure:
            fails, why = trial, ran.failure
        else:
            runs = trial
        if fails is not None and bench.model.units(fails) < (1 + NEAR) * bench.model.units(runs):
            break
    return {"card_bytes": card_bytes, "fits": fit, "largest": runs, "fails": fails, "why": why}


def show(console: Console, model: Model, rows: list[Row]) -> None:
    """A table."""
    columns = ("card", "times", model.amount, "way", "s a step", "peak", "reserved", "ledger", "out a step", "equal")
    table = Table(*columns, title=model.title)
    for row in rows:
        ran = row.ran or Ran(row.amount, "not run: time was up")
        cells = [format_bytes(row.card_bytes), f"{row.times:g}", str(row.amount), row.way]
        if ran.failure:
            cells += [ran.failure]
        else:
            sizes = (ran.peak_bytes, ran.reserved_bytes, ran.ledger_bytes, ran.moved_bytes)
            cells += [f"{statistics.median(ran.seconds):.3g}", *(format_bytes(size) if size else "" for size in sizes)]
            cells += ["" if row.equal is None else "yes" if row.equal else "no"]
        table.add_row(*cells)
    console.print(table)


@click.command()
@click.option("--model", "name", type=click.Choice(list(MODELS)), help="Required.")
@click.option("--card", "cards", multiple=True, default=("12GB", "24GB"), show_default=True, help="Its memory.")
@click.option("--times", default="1.5,2,4", show_default=True, help="What fits.")
@click.option(
    "--ways", default=",".join(WAYS), show_default=True, help="On the first card; on others the first of these."
)
@click.option("--largest", "wants_largest", is_flag=True, help="Only look for the largest size on the first card.")
@click.option("--device", default="cuda", show_default=True)
@click.option("--seconds", default=600.0, show_default=True, help="After so many nothing more is started.")
@click.option("--tiny", is_flag=True, help="A tiny model; the figures mean nothing.")
@click.option("--json", "json_to", type=click.Path(path_type=Path), help="Write what was found so far to this file.")
@click.option("--worker", default="", hidden=True)
def main(
    name: str | None,
    cards: tuple[str, ...],
    times: str,
    ways: str,
    wants_largest: bool,
    device: str,
    seconds: float,
    tiny: bool,
    json_to: Path | None,
    worker: str,
) -> None:
    """Train on a small card."""
    if worker:
        work(Asked(**json.loads(worker)))
        os._exit(0)  # pages of a step that failed need not come back
    if name is None:
        raise click.UsageError("--model is required")
    model = (TINY if tiny else MODELS)[name]
    bench = Bench(model, device, tiny, seconds)
    found: dict[str, Any] = {"model": model.title, "amount": model.amount, "fits": {}, "rows": [], "largest": None}
    for number, card in enumerate(cards):
        card_bytes = parse_bytes(card, name="--card")
        fit, need = bench.fits(card_bytes)
        found["fits"][card] = {"amount": fit, "bytes": need}
        if wants_largest:
            found["largest"] = largest(bench, card_bytes, fit)
            print(json.dumps(found["largest"]))
            _write(found, json_to)
            return
        chosen = tuple(ways.split(","))
        rows = compare(
            bench, card_bytes, fit, [float(k) for k in times.split(",")], chosen[: None if number == 0 else 1]
        )
        show(Console(width=150, highlight=False), model, rows)
        found["rows"] += [asdict(row) for row in rows]
        _write(found, json_to)


def _write(found: dict[str, Any], target: Path | None) -> None:
    if target is not None:
        target.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
