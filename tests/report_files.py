"""Files for reports, small and made in a moment: what the commands write, of steps that were simulated."""

import io
import json
from pathlib import Path
from typing import Any

from made_traces import training

from torch_lms.engine import Speeds
from torch_lms.output import to_plain
from torch_lms.planner import make_plan
from torch_lms.policy import Planned
from torch_lms.report import perfetto
from torch_lms.report.timeline_file import plain_step
from torch_lms.residency import Tier
from torch_lms.sim import LinkSpeeds, Simulator
from torch_lms.trace import Trace, save

LIMIT = 70_000_000
TIERS = {Tier.HOST: 10**12}
LINKS = {"nvlink": 4e8, "pcie": 5e7, "slow": 2e7}
"""Bytes a second of three machines."""


def a_step() -> Trace:
    """Six layers, forward and backward."""
    return training([16_000_000] * 7, [4_000_000] * 6)


def timeline(machine: str = "pcie", **about: Any) -> dict[str, Any]:
    """The file of a simulated step on a machine with such a link."""
    trace = a_step()
    link = LinkSpeeds(LINKS[machine], LINKS[machine], 1e8, 1e8)
    plan = make_plan(trace, LIMIT, {}, Speeds(link.d2h, link.h2d))
    simulator = Simulator(trace, LIMIT, TIERS, link, Planned(), plan)
    steps = [simulator.step() for _ in range(2)]
    known = {"what": "plan", "title": "six layers", "machine": machine, "policy": "planned", "limit_bytes": LIMIT}
    plain: dict[str, Any] = to_plain(perfetto(steps[-1].timeline, {**known, **plain_step(trace, link, TIERS), **about}))
    return plain


BENCH_HEADER = {
    "format": "torch-lms bench",
    "version": 1,
    "torch_lms": "0.1.0",
    "torch": "2.13.0",
    "machine": {"name": "a host", "cores": 2},
    "target": "resnet50",
    "settings": {"limit": "300MB"},
}


def trial(way: str, size: int, step_s: float | None, **more: Any) -> dict[str, Any]:
    """A line of a bench: without ``step_s`` it ran out of memory."""
    made: dict[str, Any] = {"way": way, "point": {"size": size}, "outcome": "completed" if step_s else "out of memory"}
    if step_s:
        made |= {"step_s_median": step_s, "step_s_quartiles": [0.9 * step_s, 1.2 * step_s], "item": "pixels"}
        made |= {"items_per_s": size**2 / step_s, "evicted_bytes": 10**6 * size, "peak_device_bytes": 10**6 * size}
    return {**made, **more}


TRIALS = [
    *(trial("none", size, size / 100 if size < 256 else None) for size in (128, 192, 256, 320)),
    *(trial("planned", size, size / 90, overhead=size / 2000) for size in (128, 192, 256, 320)),
]


def training_log(steps: int = 40) -> str:
    """As ``torch-lms train`` writes it: a metric after each tenth step."""
    lines = []
    for step in range(1, steps + 1):
        lines.append({"step": step, "loss": 3 / step, "lr": 0.01, "step_s": 0.5 + step % 3 / 10, "peak_bytes": 10**8})
        if step % 10 == 0:
            lines.append({"step": step, "mIoU": step / 100})
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def picture() -> bytes:
    """A small PNG."""
    from PIL import Image

    written = io.BytesIO()
    Image.new("RGB", (32, 24), (200, 120, 40)).save(written, "png")
    return written.getvalue()


def write_all(folder: Path) -> list[Path]:
    """One file of each kind; the timelines of three machines."""
    for machine in LINKS:
        (folder / f"{machine}.json").write_text(json.dumps(timeline(machine)))
    save(a_step(), folder / "trace.jsonl")
    (folder / "bench.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in [BENCH_HEADER, *TRIALS]))
    (folder / "log.jsonl").write_text(training_log())
    (folder / "result.json").write_text(json.dumps({"script": "a.py", "stats": {"steps": 3, "evicted_bytes": 10**9}}))
    forecasts = [{"machine": name, "gpus": 1, "demand_bytes": 10**10, "step_s": 1.5} for name in LINKS]
    (folder / "plan.json").write_text(json.dumps(forecasts))
    (folder / "result.png").write_bytes(picture())
    return sorted(folder.iterdir())
