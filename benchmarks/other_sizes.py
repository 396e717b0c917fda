"""What steps take that differ: in the sizes of their pages alone (batches of other lengths, pictures of other shapes, a
cache that grows), or in places (layers that are left out, batches that live on).

    python benchmarks/other_sizes.py [--quick] [--only TEXT] [--json FILE]

Each program runs without LMS, with LMS but without plans, and with LMS, in turns: once under a limit at which it just
fits, and once under half of its demand. Printed are the seconds of the second half of its steps over those without LMS:
medians of the rounds, with the least and the most. All results must be equal to the bit. Some minutes.
"""

import argparse
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from nets import resnet
from torch import nn

import torch_lms

MIN_SIZE = 16 << 10
SHARES = (1.1, 0.5)
ROUNDS = 5
WAYS = {"without plans": "reactive", "planned": "planned"}

Step = Callable[[], torch.Tensor]
Program = Callable[[], Step]


def descend(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """One step down; returns the loss."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def texts() -> Step:
    """Trains an encoder on texts of 16 to 96 words."""
    words, width = 1000, 128
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    inner = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(words, width), inner, nn.Linear(width, words))
    optimizer = torch.optim.AdamW(model.parameters())
    lengths = random.Random(1)

    def step() -> torch.Tensor:
        batch = torch.randint(0, words, (8, lengths.randint(16, 96)))
        return descend(nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten()), optimizer)

    return step


def pictures() -> Step:
    """Trains a ResNet-18 on pictures of 64 to 160 pixels a side."""
    torch.manual_seed(0)
    model = resnet(18)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sides = random.Random(1)

    def step() -> torch.Tensor:
        batch = torch.randn(2, 3, sides.randint(64, 160), sides.randint(64, 160))
        return descend(model(batch).square().mean(), optimizer)

    return step


class Decoder(nn.Module):
    """Layers with a cache of keys and values that each call makes anew, one row longer."""

    def __init__(self, layers: int = 12, width: int = 512, rows: int = 256) -> None:
        super().__init__()
        self.attention = nn.ModuleList([nn.Linear(width, 4 * width) for _ in range(layers)])
        self.forward_layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.caches = [torch.randn(2, 8, rows, width // 8) for _ in range(layers)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, (attention, linear) in enumerate(zip(self.attention, self.forward_layers, strict=True)):
            query, key, value, gate = attention(x).view(4, 8, 1, -1)
            self.caches[number] = torch.cat([self.caches[number], torch.stack((key, value))], dim=2)
            keys, values = self.caches[number]
            seen = nn.functional.scaled_dot_product_attention(query, keys, values)
            x = torch.tanh(x + linear((seen * torch.sigmoid(gate)).view(1, -1)))
        return x


def words() -> Step:
    """Generates words one by one, each from the one before."""
    torch.manual_seed(0)
    decoder = Decoder()
    last = torch.randn(1, 512)

    def step() -> torch.Tensor:
        nonlocal last
        with torch.no_grad():
            last = decoder(last)
        return last

    return step


class Blocks(nn.Module):
    """Residual blocks, of which each is left out now and then."""

    def __init__(self, left_out: float, blocks: int = 12, width: int = 256) -> None:
        super().__init__()
        inner = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width)) for _ in range(blocks)]
        self.blocks = nn.ModuleList([nn.Sequential(*each, nn.GELU(), nn.Linear(4 * width, width)) for each in inner])
        self.left_out, self.draw = left_out, random.Random(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.draw.random() >= self.left_out:
                x = x + block(x)
        return x


def layers() -> Step:
    """Trains residual blocks, of which one in eight is left out, others each time."""
    torch.manual_seed(0)
    model = Blocks(1 / 8)
    optimizer = torch.optim.AdamW(model.parameters())
    return lambda: descend(model(torch.randn(512, 256)).square().mean(), optimizer)


def batches() -> Step:
    """Trains them on batches that live on, in turns."""
    torch.manual_seed(0)
    model = Blocks(0)
    optimizer = torch.optim.AdamW(model.parameters())
    turns = itertools.cycle([torch.randn(512, 256) for _ in range(8)])
    return lambda: descend(model(next(turns)).square().mean(), optimizer)


PROGRAMS: dict[str, tuple[Program, int]] = {
    "texts": (texts, 60),
    "pictures": (pictures, 32),
    "words": (words, 60),
    "layers": (layers, 60),
    "batches": (batches, 40),
}


@dataclass(frozen=True)
class Run:
    """One run of a program.

    Attributes:
        seconds: of the second half of its steps.
        planned: share of these that followed a plan to their end.
        rejoined: of those that came back to one.
        results: of all steps.
    """

    seconds: float
    planned: float
    rejoined: float
    results: list[torch.Tensor]


@dataclass(frozen=True)
class Row:
    """One way to run a program.

    Attributes:
        program, share, way: which, under which share of its demand, and how.
        ratios: seconds over those without LMS, by round.
        planned, rejoined: shares of the steps that followed a plan to their end, or came back to it.
    """

    program: str
    share: float
    way: str
    ratios: list[float]
    planned: float
    rejoined: float

    def __str__(self) -> str:
        least, median, most = min(self.ratios), statistics.median(self.ratios), max(self.ratios)
        times = f"{median:.2f} ({least:.2f}-{most:.2f})"
        return f"| {self.program} | {self.share:g} | {self.way} | {times} | {self.planned:.0%} | {self.rejoined:.0%} |"


def run(program: Program, steps: int) -> Run:
    step = program()
    results = [step() for _ in range(steps // 2)]
    before = torch_lms.stats()
    started_s = time.perf_counter()
    results += [step() for _ in range(steps - steps // 2)]
    seconds = time.perf_counter() - started_s
    after = torch_lms.stats()
    counted = steps - steps // 2
    planned = (after.planned_steps - before.planned_steps) / counted
    return Run(seconds, planned, (after.rejoined_steps - before.rejoined_steps) / counted, results)


def rows(name: str, rounds: int, quick: bool) -> Iterator[Row]:
    program, steps = PROGRAMS[name]
    steps = 12 if quick else steps
    with torch_lms.session(1 << 50, MIN_SIZE, device="cpu"):
        run(program, steps)
        demand_bytes = torch_lms.stats().demand_bytes
    for share in SHARES:
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        last: dict[str, Run] = {}
        for _ in range(rounds):
            stock = run(program, steps)
            for way, policy in WAYS.items():
                with torch_lms.session(int(share * demand_bytes), MIN_SIZE, device="cpu", policy=policy):
                    found = run(program, steps)
                if not all(map(torch.equal, found.results, stock.results)):
                    raise SystemExit(f"{name}, {way}, at {share:g} of the demand: results differ")
                seconds[way].append(found.seconds / stock.seconds)
                last[way] = found
        for way in WAYS:
            yield Row(name, share, way, seconds[way], last[way].planned, last[way].rejoined)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="does it work at all?")
    parser.add_argument("--only", default="", metavar="TEXT", help="programs with this in their names")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    given = parser.parse_args()
    found = []
    print("| steps | limit / demand | way | seconds / those without LMS | followed a plan | came back to it |")
    print("|---|---|---|---|---|---|")
    for name in [name for name in PROGRAMS if given.only in name]:
        for row in rows(name, 1 if given.quick else ROUNDS, given.quick):
            found.append(row)
            print(row, flush=True)
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
