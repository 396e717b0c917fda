"""What it costs a training to be shown while it runs: steps with a view and without, in turns, in one process.

    python benchmarks/live.py [--every SECONDS] [--rounds N] [--steps N]

The step is that of a transformer encoder with Adam, at half of its demand: many short operations. The view is drawn as
in a terminal, to nobody. With ``--every`` it is read more often than it is, so that the cost shows above the noise.
Seconds are the processor's, of all threads: what others do on the machine does not count.
"""

import argparse
import os
import pty
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import torch_lms
from torch_lms.live import monitor
from torch_lms.runtime import api


def training() -> Iterator[None]:
    """A step each time."""
    torch.manual_seed(0)
    layers = [torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True) for _ in range(6)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(4, 32, 256)
    while True:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


@contextmanager
def view(every_s: float) -> Iterator[None]:
    """A view that is read and drawn every so many seconds."""
    master, slave = pty.openpty()
    threading.Thread(target=drain, args=(master,), daemon=True).start()
    rows = monitor._Rows(slave)
    rows.every_s = every_s
    shown = monitor.Monitor(api.reading, rows)
    shown.start()
    try:
        yield
    finally:
        shown.stop()
        os.close(slave)


def drain(master: int) -> None:
    try:
        while os.read(master, 65536):
            pass
    except OSError:
        os.close(master)


def seconds(steps: Iterator[None], count: int) -> float:
    """The processor's, of a step, the mean of so many."""
    began_s = time.process_time()
    for _ in range(count):
        next(steps)
    return (time.process_time() - began_s) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=float, default=monitor._VIEW_EVERY_S, help="seconds between two readings")
    parser.add_argument("--rounds", type=int, default=10, help="two at least")
    parser.add_argument("--steps", type=int, default=6, help="of a turn")
    given = parser.parse_args()
    os.environ["TORCH_LMS_PLANNING"] = "at-once"
    steps = training()
    with torch_lms.session(limit="40MB", device="cpu", min_size="128KiB") as lms:
        for _ in range(5):
            next(steps)
        ratios, walls_s = [], []
        for _ in range(given.rounds):
            before = seconds(steps, given.steps)
            began_s = time.perf_counter()
            with view(given.every):
                shown = seconds(steps, given.steps)
            walls_s.append((time.perf_counter() - began_s) / given.steps)
            ratios.append(2 * shown / (before + seconds(steps, given.steps)))
        stats = lms.stats()
    low, median, high = statistics.quantiles(ratios, n=4)
    print(f"demand {stats.demand_bytes / 1e6:.0f} MB, {stats.planned_steps} of {stats.steps} steps planned")
    print(f"a step of {statistics.median(walls_s):.2f} s, with a view read every {given.every} s:")
    print(f"takes the processor {median:.4f} times as long as without (quartiles {low:.3f} and {high:.3f})")


if __name__ == "__main__":
    main()
