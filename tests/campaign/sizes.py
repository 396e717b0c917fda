"""Parts on a share of the GPU's memory: how fast, and how large."""

import json
import statistics
from typing import Any

import torch

from tests.campaign.commands import run
from tests.campaign.found import Found, Where
from torch_lms.units import format_bytes, parse_bytes

CARDS = ("12GB", "24GB")
TIMES = "1.5,2,4"
_TINY_CARDS, _TINY_TIMES, _TINY_WAYS = ("40MB",), "2", "planned"
_LARGEST = ("resnet50", "unet3d", "deeplabv3plus", "gpt")
_TINY_LARGEST = ("unet3d",)
_SECONDS = 150.0
"""After so many, no other run is started; there is a limit of the part's own behind it."""


def cards_of(where: Where) -> tuple[str, ...]:
    """Cards that are smaller than the device; half of it, if none is."""
    if where.is_tiny:
        return _TINY_CARDS
    whole = torch.accelerator.get_memory_info(where.torch_device)[1]
    smaller = tuple(card for card in CARDS if parse_bytes(card, name="card") < 0.9 * whole)
    return smaller or (str(whole // 2),)


def _small_card(where: Where, model: str, seconds: float, *arguments: str) -> dict[str, Any]:
    target = where.folder / f"card-{model}.json"
    size = ("--tiny",) if where.is_tiny else ()
    asked = ("--model", model, "--device", where.device, "--seconds", str(seconds), "--json", str(target))
    run("benchmarks/small_card.py", *asked, *size, *arguments)
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def small_cards(model: str, where: Where, found: Found) -> None:
    """LMS and other ways at some times of what fits, beside the whole card."""
    cards = [word for card in cards_of(where) for word in ("--card", card)]
    times = _TINY_TIMES if where.is_tiny else TIMES
    ways = ("--ways", _TINY_WAYS) if where.is_tiny and model != _TINY_LARGEST[0] else ()
    found.figures = _small_card(where, model, _SECONDS, *cards, "--times", times, *ways)
    best = []
    for row in found.figures["rows"]:
        what = f"{format_bytes(row['card_bytes'])}, {row['times']:g} times, {row['way']}"
        found.row(what, _seen(row, found.figures["rows"]))
        if row["way"] == "planned" and row["ran"] and not row["ran"]["failure"]:
            best.append(f"{row['times']:g}: {_ratio(row, found.figures['rows']) or '?'}")
    if not best:
        found.fail("no planned step ran")
    found.summary = "times what fits: step beside the whole card, planned: " + ", ".join(best)


def _seen(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    ran = row["ran"]
    if ran is None:
        return "not run: time was up"
    if ran["failure"]:
        return str(ran["failure"])
    ratio = _ratio(row, rows)
    ledger = ""
    if ran["ledger_bytes"]:
        ledger = f", reserved {format_bytes(ran['reserved_bytes'])}, ledger {format_bytes(ran['ledger_bytes'])}"
    equal = {True: ", losses equal", False: ", losses DIFFERENT", None: ""}[row["equal"]]
    return (
        f"{statistics.median(ran['seconds']):.3g} s{f' ({ratio})' if ratio else ''}, "
        f"peak {format_bytes(ran['peak_bytes'])}{ledger}{equal}"
    )


def _ratio(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """A step beside one on the whole card; "" where that does not run."""
    for other in rows:
        same = all(other[key] == row[key] for key in ("card_bytes", "times"))
        if same and other["way"] == "whole card" and other["ran"] and not other["ran"]["failure"]:
            alone_s = statistics.median(other["ran"]["seconds"])
            return f"{statistics.median(row['ran']['seconds']) / alone_s:.2f} x"
    return ""


def largest(where: Where, found: Found) -> None:
    """The largest size on the first card, found by running."""
    models = _TINY_LARGEST if where.is_tiny else _LARGEST
    card = cards_of(where)[0]
    for model in models:
        known = _small_card(where, model, _SECONDS / len(models), "--card", card, "--largest")
        size = known["largest"]
        figure = (
            f"{size['fits']} as it is, {size['largest']} with LMS ({size['fails'] or 'larger'}: {size['why'][:80]})"
        )
        found.figures[model] = {"amount": known["amount"], **size}
        found.row(f"{known['model']}, {known['amount']}, card of {card}", figure)
    sizes = (f"{model} {size['fits']} to {size['largest']}" for model, size in found.figures.items())
    found.summary = ", ".join(sizes)
