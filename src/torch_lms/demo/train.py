"""The training that ``torch-lms demo`` runs three times: a small 3D U-Net on a whole brain, in plain PyTorch.

It runs by itself, as a script. On standard output it prints events, one JSON object per line, with what it measured.
With ``--lms`` it has one line more (see ``main``).
"""

import argparse
import json
import math
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

TISSUES = ("grey", "white")
CHANNELS = (16, 32, 64)
_GRAIN = 2 ** (len(CHANNELS) - 1)
"""Every level halves the volume: its sides must be multiples of this."""


class ConvBlock(nn.Sequential):
    """Two 3x3x3 convolutions, each normalized by the statistics of this one volume."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__(*self._unit(in_channels, channels), *self._unit(channels, channels))

    @staticmethod
    def _unit(in_channels: int, channels: int) -> Iterator[nn.Module]:
        yield nn.Conv3d(in_channels, channels, 3, padding=1, bias=False)
        yield nn.BatchNorm3d(channels, track_running_stats=False)
        yield nn.LeakyReLU(inplace=True)


class UpBlock(nn.Module):
    """Doubles the volume and joins the skip connection of its level.

    A convolution over both is the sum of a convolution over each. Written so, it needs no copy of both together, which
    would be the largest tensor of the step.
    """

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose3d(in_channels, channels, 2, stride=2)
        self.from_below = nn.Conv3d(channels, channels, 3, padding=1, bias=False)
        self.from_skip = nn.Conv3d(channels, channels, 3, padding=1, bias=False)
        self.block = ConvBlock(channels, channels)

    def forward(self, below: Tensor, skip: Tensor) -> Tensor:
        return cast(Tensor, self.block(self.from_below(self.up(below)) + self.from_skip(skip)))


class UNet(nn.Module):
    """U-Net for volumes: (1, 1, D, H, W) to (1, classes, D, H, W), all three sides multiples of 4."""

    def __init__(self, classes: int, channels: Sequence[int] = CHANNELS) -> None:
        super().__init__()
        levels = list(pairwise(channels))
        self.first = ConvBlock(1, channels[0])
        self.halve = nn.ModuleList(nn.Conv3d(fine, coarse, 2, stride=2) for fine, coarse in levels)
        self.down = nn.ModuleList(ConvBlock(coarse, coarse) for _, coarse in levels)
        self.up = nn.ModuleList(UpBlock(coarse, fine) for fine, coarse in reversed(levels))
        self.head = nn.Conv3d(channels[0], classes, 1)

    def forward(self, volume: Tensor) -> Tensor:
        skips = [self.first(volume)]
        for halve, down in zip(self.halve, self.down, strict=True):
            skips.append(down(halve(skips[-1])))
        below = skips.pop()
        for up in self.up:
            below = up(below, skips.pop())
        return cast(Tensor, self.head(below))


def segmentation_loss(logits: Tensor, truth: Tensor) -> Tensor:
    """Cross-entropy plus one minus the mean soft Dice of the tissues. ``truth`` is one-hot, shaped like ``logits``."""
    cross_entropy = -(F.log_softmax(logits, 1) * truth).sum(1).mean()
    shares = F.softmax(logits, 1)
    space = (0, 2, 3, 4)
    dice = 2 * (shares * truth).sum(space) / (shares + truth).sum(space)
    return cross_entropy + 1 - dice[1:].mean()


def dice_scores(prediction: Tensor, labels: Tensor) -> dict[str, float]:
    """Dice coefficient of each tissue; both volumes hold classes (0: neither)."""
    scores = {}
    for label, tissue in enumerate(TISSUES, start=1):
        ours = prediction == label
        theirs = labels == label
        overlap = int((ours & theirs).sum())
        total = int(ours.sum() + theirs.sum())
        scores[tissue] = 2 * overlap / total if total else 1.0
    return scores


def load_volume(path: Path, device: torch.device) -> tuple[Tensor, Tensor]:
    """Read the scan, normalized and padded, and the classes of its voxels, padded alike."""
    with np.load(path) as arrays:
        scan = torch.from_numpy(arrays["scan"])
        labels = torch.from_numpy(arrays["labels"])
    brain = scan[scan > 0]
    scan = (scan - brain.mean()) / brain.std()
    margin = [pad for side in reversed(scan.shape) for pad in (0, -side % _GRAIN)]
    scan = F.pad(scan, margin, value=float(scan.min()))
    scan = scan[None, None].to(device, memory_format=torch.channels_last_3d)
    labels = F.pad(labels, margin)[None].to(device)
    return scan, labels


def new_model(weights: Path | None, device: torch.device) -> UNet:
    """Make the network, with weights drawn from a fixed seed or read from a file.

    Channels come last in memory: convolutions in that order need no reordered copies of their arguments.
    """
    torch.manual_seed(0)
    model = UNet(1 + len(TISSUES))
    if weights is not None:
        model.load_state_dict(torch.load(weights, weights_only=True))
    model.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]  # PyTorch's stub has none for modules
    return model.to(device)


def train(model: UNet, scan: Tensor, labels: Tensor, steps: int, learning_rate: float, lms: Any = None) -> Tensor:
    """Train, with an event for each step; gives the classes that the last step predicted."""
    truth = torch.stack([labels == label for label in range(1 + len(TISSUES))], 1)
    truth = truth.to(scan.dtype, memory_format=torch.channels_last_3d)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / steps))
    counted = counts_of(lms)
    for step in range(steps):
        began_s = time.perf_counter()
        optimizer.zero_grad()
        logits: Tensor = model(scan)
        loss = segmentation_loss(logits, truth)
        loss.backward()
        optimizer.step()
        schedule.step()
        seconds, before, counted = time.perf_counter() - began_s, counted, counts_of(lms)
        moved = {name: count - before[name] for name, count in counted.items()}
        tell("step", loss=float(loss.item()).hex(), seconds=seconds, moved=moved)
        if step == steps - 1:
            return logits.detach().argmax(1).to(torch.uint8)
        del logits, loss  # or they would live through the next step's forward
    raise AssertionError("unreachable")


COUNTED = ("planned_steps", "evicted_bytes", "fetched_bytes", "recomputed_bytes", "stall_s")


def counts_of(lms: Any) -> dict[str, float]:
    """What LMS has done so far; nothing without it."""
    if lms is None:
        return {}
    stats = lms.stats()
    return {name: getattr(stats, name) for name in COUNTED}


def write_timeline(path: Path, title: str, lms: Any, device: torch.device) -> None:
    """Write the last step for ``torch-lms report``. The program's cores are all at work: they make the copies, too."""
    from torch_lms.report.run_timeline import of_run

    is_host = device.type == "cpu"
    file = of_run(title, lms.timeline(), lms.trace(), lms.stats().as_dict(), device.type, float(is_host))
    path.write_text(json.dumps(file))


# -- limits and measurements -----------------------------------------------------------------------------------------


def memory_of_process(field: str) -> int:
    """Bytes of a line of ``/proc/self/status``: the kernel's own account of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    raise RuntimeError(f"/proc/self/status has no line {field}")


def load_what_training_loads(device: torch.device) -> None:
    """Take one step on next to nothing: it starts torch's threads, and imports what comes with an optimizer."""
    model = UNet(2).to(device)
    logits = model(torch.rand(1, 1, 8, 8, 8, device=device))
    loss = segmentation_loss(logits, torch.ones(1, device=device))
    loss.backward()
    torch.optim.SGD(model.parameters(), 1.0).step()


def limit_memory(arguments: argparse.Namespace, device: torch.device) -> None:
    """Have the kernel (or, on a GPU, PyTorch's allocator) refuse memory above the limit.

    Called when torch is loaded: RLIMIT_DATA counts the private memory of libraries too, and the stacks of threads (the
    field VmData), which have nothing to do with the training. An import that runs out of memory fails in odd ways.
    """
    if arguments.rlimit_data is not None:
        set_rlimit_data(arguments.rlimit_data)
    if arguments.memory_fraction is not None:
        torch.cuda.set_per_process_memory_fraction(arguments.memory_fraction, device)


def set_rlimit_data(nbytes: int) -> None:
    """Set the soft limit only, so that it can be lifted again."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (nbytes, hard))


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, in Python, in PyTorch's allocators or in oneDNN."""
    words = (
        "allocate memory",
        "not enough memory",
        "bad_alloc",
        "out of memory",
        "could not create a",
        "could not execute a",
    )
    return isinstance(error, MemoryError) or any(part in str(error) for part in words)


def tell(event: str, **values: Any) -> None:
    """Print an event, as one line, for the parent process."""
    print(json.dumps({"event": event, **values}), flush=True)


def tell_ready(device: torch.device, idle_rss_bytes: int) -> None:
    """Tell what the process holds before its training, and on what it runs."""
    on_gpu = device.type == "cuda"
    tell(
        "ready",
        idle_rss_bytes=idle_rss_bytes,
        started_rss_bytes=memory_of_process("VmHWM"),
        vm_data_bytes=memory_of_process("VmData"),
        total_device_bytes=torch.cuda.mem_get_info(device)[1] if on_gpu else None,
        threads=torch.get_num_threads(),
        device_name=torch.cuda.get_device_name(device) if on_gpu else None,
        torch=torch.__version__,
    )


def peak(device: torch.device) -> dict[str, int | None]:
    """The most memory this process has held so far."""
    on_device = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {"peak_rss_bytes": memory_of_process("VmHWM"), "peak_device_bytes": on_device}


def main() -> None:
    idle_rss_bytes = memory_of_process("VmHWM")
    arguments = _parse_arguments()
    torch.set_num_threads(arguments.threads or torch.get_num_threads())
    torch.backends.cudnn.deterministic = True
    device = torch.device(arguments.device)
    load_what_training_loads(device)
    tell_ready(device, idle_rss_bytes)
    limit_memory(arguments, device)
    stats = None
    lms = None
    session = ExitStack()
    message = None
    try:
        if arguments.lms:
            import torch_lms

            recompute = not arguments.no_recompute
            lms = session.enter_context(torch_lms.session(spill_dir=arguments.spill_dir, recompute=recompute))
        scan, labels = load_volume(arguments.volume, device)
        model = new_model(arguments.weights, device)
        prediction = train(model, scan, labels, arguments.steps, arguments.learning_rate, lms)
        dice = dice_scores(prediction, labels)
        if lms is not None:
            stats = lms.stats().as_dict()
            if arguments.timeline_to is not None and stats["evicted_bytes"]:
                write_timeline(arguments.timeline_to, arguments.title, lms, device)
            session.close()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        message = str(error)
    # Out of memory is reported here: above, the traceback still holds the tensors of the operation that failed.
    if message is not None:
        set_rlimit_data(resource.getrlimit(resource.RLIMIT_DATA)[1])
        tell("out_of_memory", message=message, **peak(device))
        return
    if arguments.weights_to is not None:
        torch.save(model.state_dict(), arguments.weights_to)
    if arguments.prediction_to is not None:
        np.save(arguments.prediction_to, prediction[0].cpu().numpy())
    tell("completed", dice=dice, stats=stats, **peak(device))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("volume", type=Path, help=".npz with `scan` (float32) and `labels` (0, 1: grey, 2: white)")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--threads", type=int, help="of torch; by default as many as it takes by itself")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--weights", type=Path, help="start from these")
    parser.add_argument("--weights-to", type=Path)
    parser.add_argument("--prediction-to", type=Path)
    parser.add_argument("--rlimit-data", type=int, help="bytes of RLIMIT_DATA")
    parser.add_argument("--memory-fraction", type=float, help="share of the GPU's memory")
    parser.add_argument("--lms", action="store_true")
    parser.add_argument("--no-recompute", action="store_true", help="with --lms: move only")
    parser.add_argument("--timeline-to", type=Path, help="with --lms: write the last step there")
    parser.add_argument("--title", default="", help="of that step")
    parser.add_argument("--spill-dir")
    return parser.parse_args()


if __name__ == "__main__":
    main()
