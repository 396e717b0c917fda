"""What the first LMS published, beside what the simulator says of it: the last table of docs/validation.md.

    python benchmarks/published.py [--json FILE]

No GPU is needed, and nothing is measured: any machine prints the same table. Some minutes. The sources of the published
figures stand in docs/validation.md.
"""

from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields, replace

import click

from torch_lms.answers import Question, answer, largest
from torch_lms.machine import Machine, calibration_for, load
from torch_lms.output import JsonTarget, json_option, write_json
from torch_lms.planner import NO_HOST_PART, Forecast, HostPart, forecast
from torch_lms.targets import Setting, Traced, find
from torch_lms.trace import demand_curve

V100_16 = "ac922-v100-16gb"
V100_32 = "ac922-v100-32gb"
XEON = "xeon-8xv100-16gb"

LOADING_2240_S = 0.15
"""Seconds of a core to read and augment an image of 2240^2: ``benchmarks/loading.py``, docs/machines.md."""

CORES = 40
"""Of both machines, as the articles give them."""


@dataclass(frozen=True)
class Row:
    """A published figure.

    Attributes:
        work: what was run.
        setting: the settings that were tried, where the articles leave them open.
        published: the figure.
        then: simulated with the policy of its day.
        ours: simulated under our policy.
        remark: whether they agree, or why not.
    """

    work: str
    setting: str
    published: str
    then: str
    ours: str
    remark: str = ""


HEADINGS = {"then": "simulated, policy of its day"}
"""Headings of columns that are not called as their fields are."""


@click.command(help=__doc__)
@json_option
def main(json_to: JsonTarget | None) -> None:
    names = [HEADINGS.get(column.name, column.name) for column in fields(Row)]
    print(_line(names))
    print(_line(["---"] * len(names)))
    found = []
    for row in rows():
        print(_line(astuple(row)), flush=True)
        found.append(row)
    if json_to is not None:
        write_json(found, json_to)


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def rows() -> Iterator[Row]:
    """All rows, one after the other."""
    yield from _capacities()
    yield from _overheads()
    yield from _machines()


# -- what fits -------------------------------------------------------------------------------------------------------


def _capacities() -> Iterator[Row]:
    deeplab = "DeepLabv3+ xception65, batch 2, V100 16 GB, PyTorch"
    for stride in (16, 8):
        found = _largest("deeplabv3plus", "size", V100_16, _deeplab(stride, size=900, batch=2))
        yield _capacity(deeplab, f"output stride {stride}", "size", "900 without, 2600 with", found, 900, 2600)
    for stride in (16, 8):
        found = _largest("deeplabv3plus", "batch", V100_16, _deeplab(stride, size=900, batch=2))
        yield _capacity("the same at 900^2", f"output stride {stride}", "batch", "2 without, 21 with", found, 2, 21)
    for stride in (16, 8):
        found = _largest("deeplabv3plus", "size", V100_32, _deeplab(stride, size=500, batch=16))
        yield _factor(
            "DeepLabv3+ xception65, batch 16, V100 32 GB, TF", f"output stride {stride}", "500, 1600", found, 2, 10.2
        )
    found = _largest("resnet50", "size", V100_32, Setting(size=3000, batch=1))
    yield _factor("ResNet-50, V100 32 GB, TF", "batch 1", "3000, 9500", found, 2, 10.0)
    found = _largest("unet3d", "size", V100_32, Setting(size=192, batch=1))
    yield _factor("3D U-Net, V100 32 GB, TF", "batch 1", "234 (from 5 x fewer voxels), 400", found, 3, 5.0)
    for machine, gigabytes in ((V100_16, 16), (V100_32, 32)):
        found = _largest("googlenet", "batch", machine, Setting(size=2240, batch=8, dtype="float16"))
        work = f"GoogLeNet 2240^2, fp16, V100 {gigabytes} GB, TF"
        yield Row(work, "batch", "11 without, 15 and more with", "-", _pair(found), "memory of the V100 not published")


def _deeplab(stride: int, size: int, batch: int, gpus: int = 1) -> Setting:
    return Setting(size=size, batch=batch, options={"output_stride": stride}, gpus=gpus)


def _largest(name: str, what: str, machine: str, setting: Setting) -> tuple[int, int]:
    """The largest "size" or "batch" on ``machine``: without LMS, and with it."""
    there = load(machine)
    question = Question(name, find(name), setting, "planned", None)
    found = largest(question, what, there, calibration_for(there.accelerator))
    assert found.largest is not None
    return found.largest.without, found.largest.with_lms


def _pair(found: tuple[int, int]) -> str:
    return f"{found[0]} without, {found[1]} with"


def _capacity(
    work: str, setting: str, what: str, published: str, found: tuple[int, int], without: int, with_lms: int
) -> Row:
    agreement = f"without: {found[0] / without - 1:+.0%}; with: {found[1] / with_lms - 1:+.0%}"
    return Row(work, f"{setting}, {what}", published, "-", _pair(found), agreement)


def _factor(work: str, setting: str, published: str, found: tuple[int, int], dimensions: int, factor: float) -> Row:
    ours = (found[1] / found[0]) ** dimensions if found[0] else 0.0
    return Row(work, setting, f"{published}: {factor:g} x", "-", f"{_pair(found)}: {ours:.1f} x")


# -- how fast --------------------------------------------------------------------------------------------------------


def _overheads() -> Iterator[Row]:
    """Slowdowns against no limit, at the articles' k = demand / limit: TensorFlow kept more for a step than PyTorch."""
    resnet = _traced("resnet50", Setting(size=6000, batch=1))
    yield _overhead("ResNet-50 at 6000^2, 75 GB/s", "k = 4", "-5 %", 0.05, [(resnet, 4.0)])
    steps = [(_traced("unet3d", Setting(size=size, batch=1)), (size / 234) ** 3) for size in (256, 320)]
    yield _overhead("3D U-Net at 256^3 and 320^3, 75 GB/s", "k = 1.3 and 2.6", "-14 %", 0.14, steps)
    for stride in (16, 8):
        steps = [(_traced("deeplabv3plus", _deeplab(stride, size, 16)), (size / 500) ** 2) for size in (600, 800)]
        setting = f"output stride {stride}, k = 1.4 and 2.6"
        yield _overhead("DeepLabv3+, batch 16, 600^2 and 800^2, 75 GB/s", setting, "-15 %", 0.15, steps)


def _traced(name: str, setting: Setting) -> Traced:
    return Question(name, find(name), setting, "none", None).traced()


def _overhead(work: str, setting: str, published: str, share: float, steps: list[tuple[Traced, float]]) -> Row:
    then = [_rate(step, k, "tflms2") for step, k in steps]
    ours = [_rate(step, k, "planned") for step, k in steps]
    off = max((abs(-share - rate) for rate in then if rate is not None), default=0.0)
    return Row(work, setting, published, _shares(then), _shares(ours), f"{100 * off:.0f} points off at most")


def _rate(step: Traced, k: float, policy: str) -> float | None:
    """By how much the data rate changes; None if it cannot be done."""
    machine = load(V100_32)
    limit = int(demand_curve(step.trace).demand_bytes / k)
    found = forecast(
        step.trace, machine, calibration_for(machine.accelerator), items=step.items, policy=policy, limit=limit
    )
    return None if found.overhead is None else 1 / (1 + found.overhead) - 1


def _shares(rates: list[float | None]) -> str:
    return ", ".join("does not fit" if rate is None else f"{100 * rate:+.0f} %" for rate in rates)


# -- one machine over the other --------------------------------------------------------------------------------------


def _machines() -> Iterator[Row]:
    ac922 = load(V100_16)
    xeon = load(XEON)
    yield from _deeplab_over(ac922, xeon)
    yield from _googlenet_over(ac922, xeon)


def _deeplab_over(ac922: Machine, xeon: Machine) -> Iterator[Row]:
    """Four GPUs of the AC922 over the Xeon server's. Which four of its eight were used was not published."""
    tried = [(stride, size) for stride in (16, 8) for size in (1300, 2100)]
    settings = f"per GPU batch 2; {', '.join(f'stride {stride} at {size}' for stride, size in tried)}"

    def simulated(machine: Machine, gpus: int, policy: str) -> list[Forecast]:
        steps = [_deeplab(stride, size, 2 * gpus, gpus) for stride, size in tried]
        return [_forecast("deeplabv3plus", step, policy, machine) for step in steps]

    here = {policy: simulated(ac922, 4, policy) for policy in ("demand", "planned")}
    for over, gpus, there, published in (
        ("4 GPUs Xeon, one on each switch", 4, replace(xeon, gpus=4, switch=None), "2.92 x"),
        ("4 GPUs Xeon, two on each switch", 4, xeon, "2.92 x"),
        ("8 GPUs Xeon", 8, xeon, "2.4 x"),
    ):
        then = _ratios(here["demand"], simulated(there, gpus, "demand"))
        ours = _ratios(here["planned"], simulated(there, gpus, "planned"))
        work = f"DeepLabv3+, LMS 1.1, 4 GPUs AC922 over {over}"
        yield Row(work, settings, published, then, ours)


def _googlenet_over(ac922: Machine, xeon: Machine) -> Iterator[Row]:
    """With reading and augmenting, which goes on beside the GPUs, and a step's share that does not as it would fit."""
    for gpus, published in ((1, 2.7), (4, 4.7)):
        setting = Setting(size=2240, batch=15 * gpus, dtype="float16", gpus=gpus)
        reading = HostPart(sample_s=LOADING_2240_S, workers=CORES)

        def pair(policy: str, setting: Setting = setting, reading: HostPart = reading) -> tuple[Forecast, Forecast]:
            here = _forecast("googlenet", setting, policy, ac922, reading)
            return here, _forecast("googlenet", setting, policy, xeon, reading)

        here, there = pair("swap-all")
        ours = pair("planned")
        work = f"GoogLeNet 2240^2, batch 15 per GPU, fp16, {gpus} GPU(s), AC922 over Xeon"
        yield Row(
            work,
            "V100 16 GB",
            f"{published} x",
            _ratios([here], [there]),
            _ratios([ours[0]], [ours[1]]),
            _missing(here, there, published),
        )


def _missing(here: Forecast, there: Forecast, published: float) -> str:
    """What each step would have to have on the host, on both machines, for the published ratio."""
    if not here.step_s or not there.step_s:
        return ""
    missing_s = (there.step_s - published * here.step_s) / (published - 1)
    return f"with reading; as published if the GPU waited {missing_s:.1f} s more for the host in each step"


def _forecast(
    name: str, setting: Setting, policy: str, machine: Machine, host_part: HostPart = NO_HOST_PART
) -> Forecast:
    question = Question(name, find(name), setting, policy, None, host_part=host_part)
    return answer(question, machine, calibration_for(machine.accelerator)).forecast


def _ratios(here: list[Forecast], there: list[Forecast]) -> str:
    """The data rates here over those there."""
    return ", ".join(_ratio(*pair) for pair in zip(here, there, strict=True))


def _ratio(here: Forecast, there: Forecast) -> str:
    if not here.data_rate or not there.data_rate:
        return "does not fit"
    return f"{here.data_rate / there.data_rate:.2f} x"


if __name__ == "__main__":
    main()
