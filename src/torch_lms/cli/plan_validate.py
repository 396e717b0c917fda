"""How good the model is: memory and time measured here beside what was predicted, and what was published."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from torch_lms.cli.plan_history import Row, rows
from torch_lms.cli.plan_target import Setting, Target, find, trace
from torch_lms.errors import UsageError
from torch_lms.machine import Calibration, Machine
from torch_lms.planner import forecast
from torch_lms.trace import demand_curve
from torch_lms.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

_WARM_UP, _STEPS = 3, 3
_OVERSUBSCRIPTION = 2


@dataclass(frozen=True)
class Case:
    """A step that can be run here."""

    workload: str
    setting: Setting

    def __str__(self) -> str:
        setting = self.setting
        told = [self.workload, *map(str, setting.options.values()), f"{setting.size}, batch {setting.batch}"]
        return ", ".join([*told, "inference" if setting.is_inference else setting.optimizer or ""])


def _case(workload: str, size: int, batch: int, optimizer: str = "sgd", **options: Any) -> Case:
    return Case(workload, Setting(size, batch, options, optimizer or None, device="cpu", is_inference=not optimizer))


MEMORY = (
    _case("resnet50", 64, 4),
    _case("resnet50", 96, 2, "adamw"),
    _case("resnet50", 128, 2, ""),
    _case("resnet50", 96, 4, model="resnet18"),
    _case("resnet50", 64, 8, "adam", model="resnet18"),
    _case("resnet50", 128, 2, "rmsprop", model="mobilenetv2_100"),
    _case("resnet50", 96, 2, model="densenet121"),
    _case("resnet50", 96, 2, "adagrad", model="efficientnet_b0"),
    _case("googlenet", 96, 4),
    _case("googlenet", 64, 8, "adamw"),
    _case("googlenet", 128, 2, ""),
    _case("deeplabv3plus", 129, 2, backbone="mobilenetv2_100"),
    _case("deeplabv3plus", 97, 2, "adamw", backbone="mobilenetv2_100"),
    _case("deeplabv3plus", 97, 2, backbone="resnet50"),
    _case("deeplabv3plus", 65, 2, backbone="resnet50", output_stride=8),
    _case("deeplabv3plus", 65, 2, backbone="xception65"),
    _case("unet3d", 32, 1),
    _case("unet3d", 32, 2, "adamw"),
    _case("unet3d", 48, 1, channels=16),
    _case("unet3d", 48, 1, "", channels=16),
    _case("gscnn", 64, 2, backbone="resnet50"),
    _case("gpt", 128, 2, "adamw", layers=2, hidden=256, heads=4, vocabulary=1000),
    _case("gpt", 256, 2, layers=4, hidden=256, heads=4, vocabulary=1000),
)

TIME = (
    _case("resnet50", 192, 4),
    _case("resnet50", 160, 8, model="resnet18"),
    _case("googlenet", 192, 8),
    _case("deeplabv3plus", 257, 2, backbone="mobilenetv2_100"),
    _case("deeplabv3plus", 193, 2, backbone="resnet50"),
    _case("unet3d", 64, 1),
    _case("unet3d", 96, 1, channels=16),
    _case("gpt", 512, 4, "adamw", layers=4, hidden=512, heads=8, vocabulary=5000),
)


@dataclass(frozen=True)
class Compared:
    """Of a case, what was predicted and what was measured."""

    case: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return self.predicted / self.measured - 1


@dataclass
class Validation:
    """All of it."""

    demand_bytes: list[Compared] = field(default_factory=list)
    stock_s: list[Compared] = field(default_factory=list)
    planned_s: list[Compared] = field(default_factory=list)
    published: list[Row] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def validate(console: "Console") -> Validation:
    """Measure, predict, print. Takes minutes."""
    found = Validation()
    _print(console, "Memory: bytes that a step holds at once", ("case", "predicted", "measured", "error"))
    for case in MEMORY:
        compared = Compared(str(case), _predicted_demand(case), _measured_demand(case))
        found.demand_bytes.append(compared)
        _row(console, compared, format_bytes)
    _summary(console, found.demand_bytes)
    try:
        from torch_lms.runtime.calibrate import this_machine

        here = this_machine()
    except UsageError as error:
        console.print(f"\nTime: left out, {error}", markup=False, soft_wrap=True)
    else:
        for name, into, share in (
            ("stock", found.stock_s, 0),
            ("planned, demand/2", found.planned_s, _OVERSUBSCRIPTION),
        ):
            _print(console, f"Time: a step here, {name}", ("case", "predicted", "measured", "error"))
            for case in TIME:
                timed = _timed(case, share, *here)
                if timed is None:
                    _line(console, (str(case), "does not fit", "-", "-"))
                    continue
                into.append(timed)
                _row(console, timed, format_seconds)
            _summary(console, into)
    headings = ("work", "setting", "published", "simulated, policy of its day", "ours", "remark")
    _print(console, "What was published", headings)
    for row in rows():
        found.published.append(row)
        _line(console, vars(row).values())
    return found


def _print(console: "Console", title: str, headings: Sequence[str]) -> None:
    console.print(f"\n{title}\n", markup=False)
    _line(console, headings)
    _line(console, ["---"] * len(headings))


def _line(console: "Console", cells: Iterable[str]) -> None:
    console.print(f"| {' | '.join(cells)} |", markup=False, soft_wrap=True)


def _row(console: "Console", compared: Compared, shown: Callable[[float], str]) -> None:
    _line(
        console, (compared.case, shown(compared.predicted), shown(compared.measured), f"{100 * compared.error:+.1f} %")
    )


def _summary(console: "Console", compared: Sequence[Compared]) -> None:
    if not compared:
        return
    errors = [abs(one.error) for one in compared]
    told = f"error: median {100 * median(errors):.1f} %, worst {100 * max(errors):.1f} %, {len(errors)} cases"
    console.print(f"\n{told}", markup=False)


def _predicted_demand(case: Case) -> int:
    return demand_curve(trace(case.workload, find(case.workload), case.setting).trace).demand_bytes


def _measured_demand(case: Case) -> int:
    import torch_lms

    with torch_lms.session(limit="1TB", device="cpu") as lms:
        step = _new_step(find(case.workload), case.setting)
        for _ in range(2):
            step()
        return lms.stats().demand_bytes


def _timed(case: Case, oversubscription: int, machine: Machine, calibration: Calibration) -> Compared | None:
    """None: it does not fit here."""
    traced = trace(case.workload, find(case.workload), case.setting)
    limit = demand_curve(traced.trace).demand_bytes // oversubscription if oversubscription else None
    policy = "planned" if oversubscription else "none"
    told = forecast(traced.trace, machine, calibration, items=traced.items, policy=policy, limit=limit)
    return None if told.step_s is None else Compared(str(case), told.step_s, _measured_s(case, limit))


def _measured_s(case: Case, limit: int | None) -> float:
    import torch_lms

    session: AbstractContextManager[Any] = nullcontext() if limit is None else torch_lms.session(limit=limit)
    with session:
        step = _new_step(find(case.workload), case.setting)
        return median(list(_durations(step))[_WARM_UP:])


def _durations(step: Callable[[], None]) -> Iterator[float]:
    for _ in range(_WARM_UP + _STEPS):
        started = time.perf_counter()
        step()
        yield time.perf_counter() - started


def _new_step(target: Target, setting: Setting) -> Callable[[], None]:
    """The step of ``target``, to be run."""
    import torch

    from torch_lms.capture.fake import new_optimizer

    torch.manual_seed(0)
    model, inputs, loss = target(size=setting.size, batch=setting.batch, **setting.options)
    if setting.is_inference:
        model.eval()

        def infer() -> None:
            with torch.no_grad():
                model(*inputs)

        return infer
    optimizer = new_optimizer(setting.optimizer or "sgd", list(model.parameters()), "cpu")

    def train() -> None:
        loss(model(*inputs)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return train
