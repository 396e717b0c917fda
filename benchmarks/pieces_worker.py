"""A process of ``pieces.py``: runs a program once, and prints what came of it.

    python benchmarks/pieces_worker.py PROGRAM SIZE WAY LIMIT [MEMORY]

WAY is "stock"; "whole", with operations as they are; or "pieces". With MEMORY the process may take so many bytes beside
what it has after its imports (RLIMIT_DATA). A line of JSON is printed: a digest of the results, seconds, and figures of
LMS.
"""

import hashlib
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx.experimental.symbolic_shapes  # what PyTorch's meta kernels import when first called: 90 MB
from nets import Decoder, UNet3d
from torch import Tensor, nn
from torch.nn import functional as F

import torch_lms
from torch_lms.capture.pieces import run
from torch_lms.demo.train import memory_of_process

STEPS = 2


class Enhanced(nn.Module):
    """A picture through convolutions at full and at half resolution, as networks for restoration have them."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.deep = nn.Sequential(
            *(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU()),
            *(nn.Conv2d(2 * width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()),
        )
        self.last = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        deep = F.interpolate(self.deep(first), scale_factor=2, mode="bilinear")
        return self.last(torch.cat([first, deep], 1))


def photograph(side: int) -> Iterator[Tensor]:
    """Inference of a square picture. The result is given row by row."""
    model, picture = Enhanced().eval(), torch.rand(1, 3, side, side)
    with torch.no_grad():
        yield from model(picture).split(64, 2)


def trained(model: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> Iterator[Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        yield loss.detach()
    yield from (parameter.detach() for parameter in model.parameters())


def unet3d(side: int) -> Iterator[Tensor]:
    """Training on a cube."""
    volume, labels = torch.rand(1, 1, side, side, side), torch.randint(0, 3, (1, side, side, side))
    yield from trained(UNet3d(), lambda model: F.cross_entropy(model(volume), labels))


def gpt(tokens: int) -> Iterator[Tensor]:
    """Training on a text."""
    words = 16_384
    text = torch.randint(0, words, (1, tokens + 1))
    model = Decoder(layers=2, width=128, heads=4, words=words, most=tokens)
    yield from trained(model, lambda model: F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()))


PROGRAMS = {"photograph": photograph, "unet3d": unet3d, "gpt": gpt}


def main() -> None:
    """Run it."""
    program, size, way, *limits = sys.argv[1:]
    limit, *memory = map(int, limits)
    torch.manual_seed(0)
    torch.set_num_threads(2)
    if memory:
        allowed = memory_of_process("VmData") + memory[0]
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    if way == "whole":
        run.Pieces.run = lambda *_: run.NOT_CUT  # type: ignore[method-assign]
    began_s = time.perf_counter()
    found = hashlib.sha256()
    figures: dict[str, Any] = {}
    if way != "stock":
        torch_lms.enable(limit=limit)  # until the process ends: what it leaves need not fit
    for result in PROGRAMS[program](int(size)):
        found.update(result.clone().contiguous().numpy().tobytes())
    if way != "stock":
        stats = torch_lms.stats()
        figures = {"in_pieces": stats.in_pieces, "unproved": stats.unproved, "peak_bytes": stats.peak_resident_bytes}
    print(json.dumps({"digest": found.hexdigest(), "seconds": time.perf_counter() - began_s, **figures}))


if __name__ == "__main__":
    main()
