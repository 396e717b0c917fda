"""What the first LMS published, beside what the simulator says of it. Sources of the figures: docs/validation.md."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch_lms.cli.plan_answer import Question, answer, largest
from torch_lms.cli.plan_target import Setting, Traced, find
from torch_lms.machine import Machine, calibration_for, load
from torch_lms.planner import Forecast, forecast
from torch_lms.trace import demand_curve

V100_16, V100_32, XEON = "ac922-v100-16gb", "ac922-v100-32gb", "xeon-8xv100-16gb"


@dataclass(frozen=True)
class Row:
    """A published figure.

    Attributes:
        work: what was run.
        setting: where the articles leave it open: the settings that were tried.
        published: the figure.
        then: simulated with the policy of its day.
        ours: the same under ours.
        remark: whether they agree, or why not.
    """

    work: str
    setting: str
    published: str
    then: str
    ours: str
    remark: str = ""


def rows() -> Iterator[Row]:
    """All of them, one after the other; takes minutes."""
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
    there = load(machine)
    found = largest(
        Question(name, find(name), setting, "planned", None), what, there, calibration_for(there.accelerator)
    )
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
    """Against no limit, at the articles' oversubscription k: TensorFlow kept more for a step than PyTorch does."""
    resnet = _traced("resnet50", Setting(size=6000, batch=1))
    yield _overhead("ResNet-50 at 6000^2, 75 GB/s", "k = 4", "-5 %", 0.05, [(resnet, 4.0)])
    volumes = [(size, (size / 234) ** 3) for size in (256, 320)]
    steps = [(_traced("unet3d", Setting(size=size, batch=1)), k) for size, k in volumes]
    yield _overhead("3D U-Net at 256^3 and 320^3, 75 GB/s", "k = 1.3 and 2.6", "-14 %", 0.14, steps)
    for stride in (16, 8):
        crops = [(size, (size / 500) ** 2) for size in (600, 800)]
        steps = [(_traced("deeplabv3plus", _deeplab(stride, size, 16)), k) for size, k in crops]
        setting = f"output stride {stride}, k = 1.4 and 2.6"
        yield _overhead("DeepLabv3+, batch 16, 600^2 and 800^2, 75 GB/s", setting, "-15 %", 0.15, steps)


def _traced(name: str, setting: Setting) -> Traced:
    return Question(name, find(name), setting, "none", None).traced()


def _overhead(work: str, setting: str, published: str, share: float, steps: list[tuple[Traced, float]]) -> Row:
    then, ours = ([_rate(step, k, policy) for step, k in steps] for policy in ("tflms2", "planned"))
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


def _machines() -> Iterator[Row]:
    """One machine over the other. Which four of its eight GPUs the Xeon server used was not published."""
    ac922, xeon = load(V100_16), load(XEON)
    tried = [(stride, size) for stride in (16, 8) for size in (1300, 2100)]
    settings = f"per GPU batch 2; {', '.join(f'stride {stride} at {size}' for stride, size in tried)}"
    here = {
        policy: [_forecast("deeplabv3plus", _deeplab(*one, 2 * 4, 4), policy, ac922) for one in tried]
        for policy in ("demand", "planned")
    }
    for over, gpus, there, published in (
        ("4 GPUs Xeon, one on each switch", 4, replace(xeon, gpus=4, switch=None), "2.92 x"),
        ("4 GPUs Xeon, two on each switch", 4, xeon, "2.92 x"),
        ("8 GPUs Xeon", 8, xeon, "2.4 x"),
    ):
        steps = [_deeplab(*one, 2 * gpus, gpus) for one in tried]
        then, ours = (
            [
                _ratio(one, _forecast("deeplabv3plus", step, policy, there))
                for one, step in zip(found, steps, strict=True)
            ]
            for policy, found in here.items()
        )
        work = f"DeepLabv3+, LMS 1.1, 4 GPUs AC922 over {over}"
        yield Row(work, settings, published, _times(then), _times(ours))
    for gpus, published in ((1, "2.7 x"), (4, "4.7 x")):
        setting = Setting(size=2240, batch=15 * gpus, dtype="float16", gpus=gpus)
        then, ours = (
            [_ratio(*(_forecast("googlenet", setting, policy, machine) for machine in (ac922, xeon)))]
            for policy in ("swap-all", "planned")
        )
        work = f"GoogLeNet 2240^2, batch 15 per GPU, fp16, {gpus} GPU(s), AC922 over Xeon"
        yield Row(work, "V100 16 GB", published, _times(then), _times(ours))


def _ratio(first: Forecast, second: Forecast) -> float | None:
    """Of the data rates; None where one of them cannot do it."""
    return first.data_rate / second.data_rate if first.data_rate and second.data_rate else None


def _forecast(name: str, setting: Setting, policy: str, machine: Machine) -> Forecast:
    question = Question(name, find(name), replace(setting, device="cuda"), policy, None)
    return answer(question, machine, calibration_for(machine.accelerator)).forecast


def _times(ratios: list[float | None]) -> str:
    return ", ".join("does not fit" if ratio is None else f"{ratio:.2f} x" for ratio in ratios)
