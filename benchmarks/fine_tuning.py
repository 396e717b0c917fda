"""Fine-tuning of decoders on cards that are too small for them, simulated: the tables of docs/tutorials/fine-tuning.md.

    python benchmarks/fine_tuning.py [--quick] [--way WAY] [--json FILE]

For each decoder, way to train and length of text, on each card: the seconds of a step as stock PyTorch would run it
with checkpointed blocks, where that fits, and those of a planned step, with blocks checkpointed and without. The loss
is that of transformers, which makes the logits of all tokens at once, or made of some tokens at a time. FILE
keeps what it has of others. No GPU, no weights and no network are needed: configurations are made here. Half an
hour; ``--quick`` only shows that it runs.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torch_lms.machine import Machine, calibration_for, load
from torch_lms.planner import Forecast, forecast
from torch_lms.targets import Setting, Target, Traced, find, trace
from torch_lms.targets.lora import with_lora
from torch_lms.units import format_bytes, format_seconds

HEADINGS = ("way", "tokens", "loss", "card", "demand", "W", "stock", "planned", "planned, checkpoints", "host, disk")
GIB = 1 << 30
DECODERS: Mapping[str, Mapping[str, Any]] = {
    "8B": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "32B": {
        "model_type": "qwen3",
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
}
"""Fields of the configurations of Llama 3.1 8B and Qwen3 32B, as their model cards give them."""
COMMON = {"dtype": "bfloat16", "max_position_embeddings": 131072, "tie_word_embeddings": False}
TINY = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "vocab_size": 4096}

TOKENS = {False: (4096, 16384, 65536), True: (16384, 65536)}
"""Lengths of a text, by whether its loss is made in pieces."""
PIECE = 2048
"""Tokens whose logits are there at once where the loss is made in pieces."""
WAYS: Mapping[str, tuple[str, int | None]] = {
    "8B, AdamW": ("8B", None),
    "8B, LoRA": ("8B", 16),
    "32B, LoRA": ("32B", 16),
}
"""A decoder, and the rank of its adapters; None where all weights are trained."""


@dataclass(frozen=True)
class Row:
    """A step on a card. Seconds are None where it does not fit.

    Attributes:
        way, tokens: what is trained, and how; the batch is one text.
        in_pieces: whether the loss is made in pieces.
        card: by its memory and its link.
        demand_bytes: what the step holds at once without a limit, blocks not checkpointed.
        working_set_bytes: what its largest operation needs at once.
        stock_s: seconds with checkpointed blocks, without LMS.
        planned_s: seconds with LMS.
        planned_checkpointed_s: seconds with LMS, blocks checkpointed.
        unlimited_s: seconds if the card had memory enough, without LMS, blocks not checkpointed.
        host_bytes, disk_bytes: what the faster of the planned steps needs there.
        is_host_bound: whether that step waits for the host for more than a twentieth of its time.
    """

    way: str
    tokens: int
    in_pieces: bool
    card: str
    demand_bytes: int
    working_set_bytes: int
    stock_s: float | None
    planned_s: float | None
    planned_checkpointed_s: float | None
    unlimited_s: float
    host_bytes: int | None
    disk_bytes: int | None
    is_host_bound: bool | None


def cards() -> dict[str, Machine]:
    """Cards by memory and link. Up to 48 GB with the processor and the memory's speed of an RTX 4090, in a PC."""
    pc = replace(load("rtx4090-24gb"), host_bytes=128 * GIB)
    pcie5 = load("h100-80gb-pcie5")
    assert pcie5.link is not None
    found = {
        f"{gib} GB, PCIe 4": replace(pc, accelerator=replace(pc.accelerator, memory_bytes=gib * GIB))
        for gib in (16, 24, 48)
    }
    found["24 GB, PCIe 5"] = replace(pc, link=pcie5.link)
    found["80 GB, PCIe 5"] = pcie5
    return found


class InPieces(nn.Module):
    """A decoder that gives its loss, from the logits of ``PIECE`` tokens at a time: backward recomputes them."""

    def __init__(self, decoder: Any, output: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder
        self.output = output

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        hidden = self.decoder(input_ids=input_ids, use_cache=False).last_hidden_state
        pieces = zip(hidden.split(PIECE, 1), labels.split(PIECE, 1), strict=True)
        losses = [checkpoint(self._loss, *piece, use_reentrant=False) for piece in pieces]
        return torch.stack(losses).sum() / labels.numel()

    def _loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        logits = self.output(hidden).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="Decoders of two small layers, one length.")
@click.option("--way", "ways", type=click.Choice(list(WAYS)), multiple=True, help="Only these.")
@click.option("--json", "json_to", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows here.")
def main(quick: bool, ways: tuple[str, ...], json_to: Path | None) -> None:
    chosen = ways or tuple(WAYS)
    kept: list[Row] = []
    if json_to is not None and json_to.exists():
        kept = [row for row in (Row(**each) for each in json.loads(json_to.read_text())) if row.way not in chosen]
    print(_line(HEADINGS))
    print(_line(["---"] * len(HEADINGS)))
    for way in chosen:
        for row in _rows(way, quick):
            print(_line(_cells(row)), flush=True)
            kept.append(row)
            if json_to is not None:
                json_to.write_text(json.dumps([asdict(each) for each in kept], indent=1) + "\n")


def _rows(way: str, quick: bool) -> Iterator[Row]:
    decoder, rank = WAYS[way]
    with tempfile.TemporaryDirectory() as folder:
        fields = {**DECODERS[decoder], **COMMON, **(TINY if quick else {})}
        Path(folder, "config.json").write_text(json.dumps(fields))
        for in_pieces, lengths in TOKENS.items():
            for tokens in (4096,) if quick else lengths:
                target = _target(folder, rank, in_pieces)
                setting = Setting(size=tokens, optimizer="adamw", device="cuda")
                plain = trace(way, target, setting)
                checkpointed = trace(way, target, replace(setting, checkpoints=True))
                for card, machine in cards().items():
                    yield _row(way, tokens, in_pieces, card, machine, plain, checkpointed)


def _target(folder: str, rank: int | None, in_pieces: bool) -> Target:
    decoder = find(f"hf:{folder}")

    def target(size: int) -> Any:
        model, inputs, loss = decoder(size=size, batch=1)
        adapted = model if rank is None else with_lora(model, rank)  # the adapters are in the layers of ``model``
        if not in_pieces:
            return adapted, inputs, loss
        inputs = {"input_ids": inputs["input_ids"], "labels": inputs["labels"]}
        return InPieces(model.get_decoder(), model.get_output_embeddings()), inputs, lambda loss: loss

    return target


def _row(
    way: str, tokens: int, in_pieces: bool, card: str, machine: Machine, plain: Traced, checkpointed: Traced
) -> Row:
    planned = _forecast(plain, machine, "planned")
    both = _forecast(checkpointed, machine, "planned")
    stock = _forecast(checkpointed, machine, "none")
    fastest = min((planned, both), key=lambda each: each.step_s or float("inf"))
    return Row(
        way,
        tokens,
        in_pieces,
        card,
        planned.demand_bytes,
        planned.largest_op_bytes,
        stock.step_s,
        planned.step_s,
        both.step_s,
        planned.step_s_unlimited,
        fastest.host_bytes,
        fastest.disk_bytes,
        fastest.is_host_bound,
    )


def _forecast(traced: Traced, machine: Machine, policy: str) -> Forecast:
    calibration = calibration_for(machine.accelerator)
    return forecast(traced.trace, machine, calibration, items=traced.items, policy=policy, samples=traced.samples)


def _cells(row: Row) -> Iterable[str]:
    below = "" if row.host_bytes is None else f"{format_bytes(row.host_bytes)}, {format_bytes(row.disk_bytes or 0)}"
    steps_s = (row.stock_s, row.planned_s, row.planned_checkpointed_s)
    seconds = ["-" if each is None else format_seconds(each) for each in steps_s]
    sizes = (format_bytes(row.demand_bytes), format_bytes(row.working_set_bytes))
    loss = "in pieces" if row.in_pieces else "whole"
    return row.way, str(row.tokens), loss, row.card, *sizes, *seconds, below


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
