"""What steps cost under limits on machines that need not be at hand, beside the least that the model allows.

    python benchmarks/simulated.py [--quick] [--only TEXT] [--machine TEXT] [--free-host] [--json FILE] [--chart FILE]
    python benchmarks/simulated.py --study
    python benchmarks/simulated.py --host MACHINE [--only TEXT]

Prints the overhead of planned steps against the step without a limit, with and without recomputation, by machine,
oversubscription k and limit / W; draws the slowdown over k. This machine is one of them if it was calibrated
(`torch-lms doctor --calibrate`), as it is and with a core to spare. Some minutes a workload. FILE keeps what it has
of workloads and machines without TEXT in their names, so they can be done one after the other; without any workload
left ("--only none") the chart is drawn from what FILE has. With ``--free-host`` LMS takes the host no time, so what is
left is the plans' own.

``--host`` prints instead what the host's work does to steps on one machine, with both interposers: where all fits, and
at half of the demand.

The planning study counted the backward of grouped convolutions without their groups, which makes the step of DeepLabv3+
several times longer. ``--study`` does so, too, to be beside its figures.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from torch_lms.answers import Question
from torch_lms.capture import work as counted
from torch_lms.errors import UsageError
from torch_lms.machine import INTERPOSERS, Calibration, Disk, HostCost, Link, Machine, calibration_for, load
from torch_lms.planner import Speeds, bound_seconds, forecast, stock_step
from torch_lms.runtime.calibrate import this_machine
from torch_lms.targets import Setting, Traced, find
from torch_lms.trace import demand_curve
from torch_lms.units import format_seconds

WORKLOADS = {
    "resnet50, 6016^2": ("resnet50", Setting(size=6016, batch=1)),
    "deeplabv3plus, 496^2 x 16": ("deeplabv3plus", Setting(size=496, batch=16)),
    "unet3d, 160^3 x 2": ("unet3d", Setting(size=160, batch=2)),
    "googlenet, 2240^2 x 8": ("googlenet", Setting(size=2240, batch=8)),
    "gscnn, 800^2 x 4": ("gscnn", Setting(size=800, batch=4)),
    "gpt, 2048 x 8": ("gpt", Setting(size=2048, batch=8)),
}
MACHINES = ("ac922-v100-16gb", "xeon-8xv100-16gb", "rtx4090-24gb", "a100-80gb-sxm", "h200-141gb-pcie5", "gh200-96gb")
SHARES = (1, 2, 4, 8, 16)
BFLOAT16 = "h200-141gb-pcie5", "gh200-96gb", "a100-80gb-sxm"
STUDIED = "ac922-v100-16gb", "xeon-8xv100-16gb", "h200-141gb-pcie5"
AMPLE = 1 << 50


@dataclass(frozen=True)
class Point:
    """One step under one limit on one machine.

    Attributes:
        workload, machine: names.
        k: demand / limit.
        limit_over_w: the limit over the working set of the largest operation.
        overhead: planned, LMS interposed in the fastest way that the machine has.
        moves_only: the same without recomputation.
        bound: what no schedule goes below, if LMS took the host no time.
        host_wait: share of the planned step in which the device waits for the host; None in points of older files.
    """

    workload: str
    machine: str
    k: float
    limit_over_w: float
    overhead: float
    moves_only: float
    bound: float
    host_wait: float | None = None


def machines() -> list[tuple[Machine, Calibration]]:
    found = [(load(name), calibration_for(load(name).accelerator)) for name in MACHINES]
    try:
        this, calibration = this_machine()
    except UsageError:
        return found
    found.append((this, calibration))
    if this.link is None and this.disk is not None:
        unseen = replace(_with_free_host(calibration), paging_byte_s=0.0)
        found.append((_spare_core(this, this.disk), unseen))
    return found


def _with_free_host(calibration: Calibration) -> Calibration:
    """As if LMS took the program's host no time."""
    return replace(calibration, host_costs=dict.fromkeys(INTERPOSERS, HostCost(0.0, 0.0, 0.0, "a host that is free")))


def _spare_core(machine: Machine, disk: Disk) -> Machine:
    """As if a core that the program does not use did all that LMS adds: it takes none of the program's time."""
    out, back = disk.write_bytes_per_s, disk.read_bytes_per_s
    link = Link(max(out, back), back, out, max(out, back), 1e-6)
    return replace(machine, name=f"{machine.name}, a core spare", link=link)


def points(workload: str, there: list[tuple[Machine, Calibration]], shares: tuple[int, ...]) -> list[Point]:
    name, setting = WORKLOADS[workload]
    steps: dict[tuple[str, str], Traced] = {}
    found = []
    for machine, calibration in there:
        kind = "bf16" if machine.name in BFLOAT16 else "no", "cpu" if machine.name.startswith("this") else "cuda"
        if kind not in steps:
            asked = replace(setting, amp=kind[0], device=kind[1])
            steps[kind] = Question(name, find(name), asked, "none", None).traced()
        ample = replace(machine, accelerator=replace(machine.accelerator, memory_bytes=AMPLE), host_bytes=AMPLE)
        if ample.disk is not None:
            ample = replace(ample, disk=replace(ample.disk, nbytes=AMPLE))
        found += [_point(workload, steps[kind], ample, calibration, k) for k in shares]
    return found


def _point(workload: str, step: Traced, machine: Machine, calibration: Calibration, k: float) -> Point:
    limit = int(demand_curve(step.trace).demand_bytes / k)
    work = stock_step(step.trace, machine, calibration).trace
    ours, moves = (
        forecast(step.trace, machine, calibration, items=step.items, policy=policy, limit=limit)
        for policy in ("planned", "planned-moves")
    )
    assert ours.overhead is not None  # there is room for all below
    assert moves.overhead is not None
    least_s = bound_seconds(work, limit, _speeds(machine))
    return Point(
        workload,
        machine.name,
        k,
        limit / max(1, work.working_set_bytes),
        ours.overhead,
        moves.overhead,
        least_s / work.seconds - 1,
        ours.host_wait,
    )


def _study() -> None:
    """The steps of DeepLabv3+ as the study counted them."""
    del counted._FORMULAS["convolution_backward"]  # PyTorch's own count takes its place
    for point in points("deeplabv3plus, 496^2 x 16", [m for m in machines() if m[0].name in STUDIED], (4, 8)):
        print(_row(point), flush=True)


def _host(name: str, workloads: list[str]) -> None:
    """What the host's work does to steps on the machine of that name, with each interposer."""
    machine = load(name)
    calibration = calibration_for(machine.accelerator)
    print("| step | k | operations | without LMS | interposer | step | overhead | waits for the host |")
    print("|---|---|---|---|---|---|---|---|")
    for workload in workloads:
        target, setting = WORKLOADS[workload]
        asked = replace(setting, amp="bf16" if name in BFLOAT16 else "no")
        step = Question(target, find(target), asked, "none", None).traced()
        demand = demand_curve(step.trace).demand_bytes
        launches = sum(op.launches for op in step.trace.ops)
        for k in (1, 2):
            for interposer in INTERPOSERS:
                found = forecast(
                    step.trace, machine, calibration, items=step.items, limit=demand // k, interposer=interposer
                )
                assert found.step_s is not None
                assert found.overhead is not None
                assert found.host_wait is not None
                figures = (
                    f"{workload} | {k} | {launches} | {format_seconds(found.step_s_unlimited)} | {interposer} | "
                    f"{format_seconds(found.step_s)} | {found.overhead:.1%} | {found.host_wait:.0%}"
                )
                print(f"| {figures} |", flush=True)


def _row(point: Point) -> str:
    cells = (point.workload, point.machine, f"{point.k:g}", f"{point.limit_over_w:.1f}")
    shares = (f"{100 * share:.1f} %" for share in (point.overhead, point.moves_only, point.bound))
    return f"| {' | '.join((*cells, *shares))} |"


def _speeds(machine: Machine) -> Speeds:
    if machine.link is None:
        assert machine.disk is not None
        return Speeds(machine.disk.write_bytes_per_s, machine.disk.read_bytes_per_s)
    link = machine.links(1)[0]
    return Speeds(link.to_host_bytes_per_s, link.to_device_bytes_per_s)


def chart(found: list[Point], target: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(12, 7), sharex=True, sharey=True)
    for axis, machine in zip(axes.flat, MACHINES, strict=True):
        for workload in WORKLOADS:
            line = [(p.k, 1 + p.overhead) for p in found if (p.workload, p.machine) == (workload, machine)]
            axis.plot(*zip(*line, strict=True), marker="o", label=workload)
        axis.set(title=machine, xscale="log", yscale="log", xlabel="k = demand / limit", ylabel="slowdown")
        axis.minorticks_off()
        axis.set_xticks(SHARES, [str(k) for k in SHARES])
        axis.set_yticks((1, 2, 5, 10), ("1", "2", "5", "10"))
        axis.grid(alpha=0.3)
    axes.flat[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="k up to 4")
    parser.add_argument("--only", default="", metavar="TEXT", help="workloads with this in their names")
    parser.add_argument("--machine", default="", metavar="TEXT", help="machines with this in their names")
    parser.add_argument("--free-host", action="store_true", help="LMS takes the host no time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path)
    parser.add_argument("--study", action="store_true", help="DeepLabv3+ alone, counted as by the planning study")
    parser.add_argument("--host", metavar="MACHINE", help="what the host's work does to steps there, and no more")
    given = parser.parse_args()
    if given.host:
        _host(given.host, [name for name in WORKLOADS if given.only in name])
        return
    print("| step | machine | k | limit / W | planned | moves only | bound |\n|---|---|---|---|---|---|---|")
    if given.study:
        _study()
        return
    asked = [name for name in WORKLOADS if given.only in name]
    before = json.loads(given.json.read_text()) if given.json and given.json.exists() else []
    found = {name: [Point(**p) for p in before if p["workload"] == name] for name in WORKLOADS}
    there = [pair for pair in machines() if given.machine in pair[0].name]
    if given.free_host:
        there = [(machine, _with_free_host(calibration)) for machine, calibration in there]
    simulated = {machine.name for machine, _ in there}
    with ProcessPoolExecutor(2) as workers:
        work = partial(points, there=there, shares=SHARES[:3] if given.quick else SHARES)
        for name, of_workload in zip(asked, workers.map(work, asked), strict=True):
            found[name] = [point for point in found[name] if point.machine not in simulated] + of_workload
            for p in of_workload:
                print(_row(p), flush=True)
            if given.json:
                everything = [asdict(p) for of_workload in found.values() for p in of_workload]
                given.json.write_text(json.dumps(everything, indent=1) + "\n")
    if given.chart:
        chart([p for of_workload in found.values() for p in of_workload], given.chart)


if __name__ == "__main__":
    main()
