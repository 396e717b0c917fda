"""A picture of a planned step: what ran, what was copied beside it, how much was on the device.

python benchmarks/timeline.py            # a minute; writes docs/pictures/timeline.png
python benchmarks/timeline.py t.json     # the same of a file that `torch-lms run --timeline t.json` wrote
"""

import json
from pathlib import Path
from typing import Any

import click
import torch
from matplotlib import pyplot as plt
from nets import UNet3d

import torch_lms
from torch_lms.report import perfetto

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "timeline.png"
COLOURS = {"compute": "#4477aa", "stall": "#cc3311", "out": "#ee7733", "in": "#228833", "disk": "#aa3377"}


def record(share: int = 4, steps: int = 8) -> dict[str, Any]:
    """The last of some steps of a 3D U-Net at 1/``share`` of its demand."""
    torch.manual_seed(0)
    net = UNet3d(16)
    update = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    volume = torch.randn(1, 1, 80, 80, 80)

    def step() -> None:
        update.zero_grad()
        net(volume).square().mean().backward()
        update.step()

    with torch_lms.session(limit="64GB") as lms:
        for _ in range(2):
            step()
        demand = lms.stats().demand_bytes
    with torch_lms.session(limit=demand // share) as lms:
        for _ in range(steps):
            step()
        return perfetto(lms.timeline())


def draw(events: list[dict[str, Any]], target: Path) -> None:
    """``events`` in the Trace Event Format."""
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    lanes = [
        name for name in ("compute", "out", "in", "disk") if any(names.get(e.get("tid")) == name for e in events[5:])
    ]
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(11, 4.2), height_ratios=[1, 1])
    for event in events:
        if event["ph"] == "X":
            lane = names[event["tid"]]
            colour = COLOURS["stall" if event["name"] == "stall" else lane]
            top.broken_barh([(event["ts"] / 1e6, event["dur"] / 1e6)], (lanes.index(lane) - 0.4, 0.8), color=colour)
    top.set_yticks(range(len(lanes)), lanes)
    top.invert_yaxis()
    top.set_title("one step; red: the program waits")
    counters = [event for event in events if event["ph"] == "C"]
    times = [event["ts"] / 1e6 for event in counters]
    for tier in ("resident", "host", "disk"):
        values = [event["args"][tier] / 1e6 for event in counters]
        if any(values):
            bottom.step(times, values, where="post", label=tier)
    bottom.set_ylabel("MB")
    bottom.set_xlabel("seconds")
    bottom.legend(loc="upper right")
    figure.tight_layout()
    figure.savefig(target, dpi=110)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
@click.option("--output", type=click.Path(path_type=Path), default=PICTURE, show_default=True)
def main(file: Path | None, output: Path) -> None:
    """Draw the timeline in FILE, or one of a step that is taken now."""
    recorded = record() if file is None else json.loads(file.read_text())
    draw(recorded["traceEvents"], output)
    click.echo(f"written to {output}")


if __name__ == "__main__":
    main()
