"""What this machine reaches, measured by steps of small networks, operation by operation."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from torch_lms.capture.schema import describe
from torch_lms.capture.work import work_of
from torch_lms.errors import LmsError, UsageError
from torch_lms.machine import (
    INTERPOSERS,
    KINDS,
    NATIVE,
    PYTHON,
    Accelerator,
    Calibration,
    Disk,
    Efficiency,
    HostCost,
    Link,
    Machine,
    calibration_for,
    config_dir,
    default_host_costs,
    load,
    save_calibration,
    text_of,
)
from torch_lms.runtime.malloc import trim
from torch_lms.runtime.probe import probe
from torch_lms.runtime.stats import Stats
from torch_lms.sim.cost import peak, seconds
from torch_lms.trace import Work

_FILE = "this.toml"
_REPEATS = 5
_ROUNDS = 16
_PAGED_STEPS = 20
_SHARES_OF_DEMAND = (0.8, 0.65, 0.5)
"""Limits at which actions are counted, beside one at which next to nothing has to leave."""

_INTERPOSER = "TORCH_LMS_INTERPOSER"
_PLANNING = "TORCH_LMS_PLANNING"
"""The variable of the environment that says how a session is to be interposed."""

_SMALL_PAGE, _BLOCK = 1024, 64 << 20
_GPU_SIDE, _GPU_COPY, _GPU_SCALE = 8192, 1 << 28, 16
"""On an accelerator: the side of products, the bytes of a copy, how much larger the networks' batches are."""

_SHARES = np.geomspace(0.001, 2.0, 80)
"""Of the peaks, that are tried."""

_GUESS = Efficiency(0.5, 0.7)
"""Where operations do not tell."""

_TIE = 1e-3
"""Of the error that an efficiency far from the guess adds: it counts only where operations do not tell."""

_RESERVED_ON_CPU = 512 << 20
"""Of the interpreter and PyTorch themselves."""


def this_machine() -> tuple[Machine, Calibration]:
    """As measured before.

    Raises:
        UsageError: it was not.
    """
    path = config_dir() / _FILE
    if not path.is_file():
        raise UsageError(
            "this machine was not measured yet: run `torch-lms doctor --calibrate`, or name another, as in "
            "`--machine rtx4090-24gb`"
        )
    machine = load(path)
    return machine, calibration_for(machine.accelerator)


def calibrate(spill_dir: Path | None = None) -> tuple[Machine, Calibration, Path]:
    """Measure this machine, and keep the figures; takes a minute.

    Returns:
        The machine, what it reaches, and the file in which that is kept.
    """
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    machine = _machine(device, spill_dir)
    measured = _measured(device)
    efficiencies = _fitted([sample for step in measured for sample in step.samples], machine.accelerator)
    error = _error(measured, machine.accelerator, efficiencies)
    calibration = Calibration(
        machine.accelerator.name,
        efficiencies,
        error,
        f"measured, torch {torch.__version__}",
        paging_byte_s=_paging_byte_s() if device.type == "cpu" else 0.0,  # first: LMS keeps freed memory
        host_costs=_host_costs(device),
    )
    path = save_calibration(calibration)
    (config_dir() / _FILE).write_text(text_of(machine), encoding="utf-8")
    return machine, calibration, path


# -- the machine -----------------------------------------------------------------------------------------------------


def _machine(device: torch.device, spill_dir: Path | None) -> Machine:
    found = probe(spill_dir)
    speeds = {link.name: link.bytes_per_s for link in found.links if link.bytes_per_s is not None}
    copy_bytes_per_s = speeds["memory copy"]
    disk = None
    if {"disk write", "disk read"} <= speeds.keys():
        disk = Disk(speeds["disk write"], speeds["disk read"], found.spill.free_bytes)
    is_cpu = device.type == "cpu"
    return Machine(
        name="this",
        title=f"this machine, {found.processor.model}",
        gpus=1 if is_cpu else torch.accelerator.device_count(),
        accelerator=_accelerator(device, found.processor.model, found.memory.binding()[1], copy_bytes_per_s),
        link=None if is_cpu else _link(speeds),
        switch=None,
        sockets=1,
        host_bytes=found.memory.total,
        host_bytes_per_s=2 * copy_bytes_per_s,
        peer_bytes_per_s=None,
        far_peer_bytes_per_s=None,
        disk=disk,
    )


def _accelerator(device: torch.device, processor: str, free_bytes: int, copy_bytes_per_s: float) -> Accelerator:
    if device.type == "cpu":
        name, total = f"{processor}, {torch.get_num_threads()} threads", free_bytes + _RESERVED_ON_CPU
        reserved, memory_bytes_per_s = _RESERVED_ON_CPU, 2 * copy_bytes_per_s
    else:
        name = torch.get_device_module(device).get_device_name(device)
        free, total = torch.accelerator.get_memory_info(device)
        reserved = total - free
        memory_bytes_per_s = 2 * _rate(lambda a: a.clone(), (torch.ones(_GPU_COPY, dtype=torch.uint8, device=device),))
    flops = {dtype: _product_flop_per_s(dtype, device) for dtype in _DTYPES}
    return Accelerator(
        name=name,
        memory_bytes=total,
        reserved_bytes=reserved,
        memory_bytes_per_s=memory_bytes_per_s,
        fp32_flop_per_s=flops[torch.float32],
        tf32_flop_per_s=None if device.type == "cpu" else _tf32_flop_per_s(device),
        fp16_flop_per_s=flops[torch.float16],
        bf16_flop_per_s=flops[torch.bfloat16],
        fp64_flop_per_s=flops[torch.float64],
        launch_s=_launch_s(device),
    )


_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def _link(speeds: dict[str, float]) -> Link:
    to_device, to_host = speeds["host to device"], speeds["device to host"]
    both = min(max(speeds["both ways at once"], to_device, to_host), to_device + to_host)
    return Link(max(to_device, to_host), to_device, to_host, both, 10e-6)


def _product_flop_per_s(dtype: torch.dtype, device: torch.device) -> float:
    """Of a product of matrices so large that nothing else counts."""
    side = 1024 if device.type == "cpu" else _GPU_SIDE
    given = torch.ones(side, side, dtype=dtype, device=device)
    return 2 * side**3 * _rate(torch.mm, (given, given)) / given.numel()


def _tf32_flop_per_s(device: torch.device) -> float:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return _product_flop_per_s(torch.float32, device)
    finally:
        torch.set_float32_matmul_precision(before)


def _rate(operation: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> float:
    """Elements of the first argument per second; the best of a few, since whatever disturbs makes it slower."""
    operation(*given)
    return max(given[0].numel() / _seconds(lambda: operation(*given), given[0].device) for _ in range(_REPEATS))


def _seconds(action: Callable[[], object], device: torch.device) -> float:
    _settle(device)
    started = time.perf_counter()
    action()
    _settle(device)
    return time.perf_counter() - started


def _settle(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _launch_s(device: torch.device) -> float:
    """Between two operations of an eager training step on next to nothing."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(50))).to(device)
    given = torch.ones(2, 4, device=device)
    model(given).sum().backward()
    with _Stopwatch(device) as stopwatch:
        model(given).sum().backward()
    return min(_seconds(lambda: model(given).sum().backward(), device) for _ in range(10)) / len(stopwatch.samples)


def _paging_byte_s() -> float:
    """To give a byte of memory back and have it again."""

    def anew() -> None:
        trim()
        torch.empty(_BLOCK, dtype=torch.uint8).fill_(1)

    cpu, block = torch.device("cpu"), torch.empty(_BLOCK, dtype=torch.uint8)
    anew_s, again_s = (median(_seconds(do, cpu) for _ in range(_ROUNDS)) for do in (anew, lambda: block.fill_(1)))
    return max(0.0, anew_s - again_s) / _BLOCK


# -- what LMS costs the host -------------------------------------------------------------------------------------------


def _host_costs(device: torch.device) -> dict[str, HostCost]:
    """What LMS costs this host, by interposer. Of those that it does not have, the default, which says so."""
    found = {}
    for asked in (PYTHON, NATIVE):
        with plans_at_once(asked), _one_thread():
            name = _interposer(device)
            if name == asked:
                found[name] = _host_cost(device)
    missing = {name: replace(default_host_costs()[name], is_available=False) for name in INTERPOSERS}
    return missing | found


@contextmanager
def plans_at_once(interposer: str | None = None) -> Iterator[None]:
    """Sessions begun inside have their plans at once: a step that no plan is there for yet would be measured as if it
    had none. They are interposed as ``interposer`` says, if they can be.
    """
    wanted = {_PLANNING: "at-once"} | ({} if interposer is None else {_INTERPOSER: interposer})
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextmanager
def _one_thread() -> Iterator[None]:
    """PyTorch's kernels have one thread: with more, this one waits for others at the end of each, and is kept busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _interposer(device: torch.device) -> str | None:
    """How a session is interposed that is begun now. None: it is refused."""
    from torch_lms.runtime.api import session

    try:
        with session(limit="1TB", device=device) as lms:
            return lms.stats().interposer
    except LmsError:
        return None


def _host_cost(device: torch.device) -> HostCost:
    """What sessions that are begun now add to a step on next to nothing, half of whose operations are on pages.

    Without enough room the step is measured under some limits: what is the same under all is of the operations, what
    grows by the actions is theirs.
    """
    from torch_lms.runtime.api import session

    step = _small_step(device)
    stock_s = _host_s(step, device)
    with _Stopwatch(device) as stopwatch:
        step()
    ops = len(stopwatch.samples)
    with session(limit="1TB", min_size=_SMALL_PAGE, device=device) as lms:
        step = _small_step(device)
        step()
        lms.step()  # from here on a step is known, and found to fit
        fits_s = _host_s(step, device)
        demand = lms.stats().demand_bytes

    actions, added_s = [], []
    for limit in (demand - 1, *(int(share * demand) for share in _SHARES_OF_DEMAND)):
        with session(limit=limit, min_size=_SMALL_PAGE, recompute=False, device=device) as lms:
            step = _small_step(device)
            for _ in range(_PAGED_STEPS):  # until plans are made, and followed
                step()
            lms.reset_stats()
            added_s.append(_host_s(step, device) - stock_s)
            stats = lms.stats()
            actions.append(actions_of(stats) / _PAGED_STEPS)
    action_s, all_ops_s = np.polyfit(actions, added_s, 1)
    return HostCost(
        op_s=max(0.0, fits_s - stock_s) / ops,
        short_op_s=max(0.0, float(all_ops_s)) / ops,
        action_s=max(0.0, float(action_s)),
        source=f"measured, torch {torch.__version__}",
    )


def actions_of(stats: Stats) -> int:
    """How many actions ``stats`` counts, recomputations not among them."""
    # An eviction starts, ends and frees; a fetch starts and ends; a page with a copy below is only freed.
    return 3 * stats.evictions + 2 * stats.fetches + stats.clean_drops


def _small_step(device: torch.device) -> Callable[[], None]:
    layers = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()) for _ in range(30)]
    return _training(nn.Sequential(*layers).to(device), torch.ones(64, 64, device=device))


def _host_s(step: Callable[[], None], device: torch.device) -> float:
    """The median seconds of the processor that this thread takes for ``step``, waits for a device not among them."""
    found = []
    with torch.autograd.set_multithreading_enabled(False):  # backward, too, is this thread's
        for _ in range(_PAGED_STEPS):
            _settle(device)
            began_s = time.thread_time()
            step()
            found.append(time.thread_time() - began_s)
    _settle(device)
    return median(found)


# -- operations ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Measured:
    """A step: its operations, and how long it took when nobody watched."""

    samples: list[tuple[Work, float]]
    step_s: float


class _Stopwatch(TorchDispatchMode):
    """Times every operation that does something."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self.samples: list[tuple[Work, float]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func``, and note what it had to do and how long that took."""
        kwargs = kwargs or {}
        info = describe(func)
        if info.view or info.composite or info.opaque:
            return func(*args, **kwargs)
        _settle(self._device)
        started = time.perf_counter()
        result = func(*args, **kwargs)
        _settle(self._device)
        elapsed_s = time.perf_counter() - started
        self.samples.append((work_of(info, func, args, kwargs, result), elapsed_s))
        return result


def _images(scale: int) -> tuple[nn.Module, torch.Tensor]:
    def block(width: int, out: int, stride: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(width, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
            nn.Conv2d(out, 2 * out, 1, bias=False),
            nn.BatchNorm2d(2 * out),
            nn.ReLU(),
        )

    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        block(64, 64, 1),
        block(128, 128, 2),
        block(256, 256, 2),
        block(512, 512, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1024, 1000),
    )
    return model, torch.randn(4 * scale, 3, 192, 192)


def _separable(scale: int) -> tuple[nn.Module, torch.Tensor]:
    def block(width: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
            nn.BatchNorm2d(width),
            nn.Conv2d(width, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        )

    return nn.Sequential(*(block(96) for _ in range(4))), torch.randn(scale, 96, 96, 96)


def _volumes(scale: int) -> tuple[nn.Module, torch.Tensor]:
    def block(width: int, out: int, stride: int) -> nn.Module:
        return nn.Sequential(nn.Conv3d(width, out, 3, stride, 1), nn.InstanceNorm3d(out, affine=True), nn.LeakyReLU())

    model = nn.Sequential(
        block(1, 32, 1),
        block(32, 32, 1),
        block(32, 64, 2),
        block(64, 64, 1),
        block(64, 128, 2),
        nn.ConvTranspose3d(128, 64, 2, 2),
    )
    return model, torch.randn(max(1, scale // 4), 1, 64, 64, 64)


def _tokens(scale: int) -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2 * scale, 256, 256)


_STEPS: tuple[Callable[[int], tuple[nn.Module, torch.Tensor]], ...] = (_images, _separable, _volumes, _tokens)


def _measured(device: torch.device) -> list[_Measured]:
    """The medians of some rounds of all steps: what disturbs for a second meets all of them, in a few rounds."""
    steps = [_step(make, device) for make in _STEPS]
    rounds = [[_watched(step, device) for step in steps] for _ in range(_ROUNDS)]
    return [_typical(same) for same in zip(*rounds, strict=True)]


def _step(make: Callable[[int], tuple[nn.Module, torch.Tensor]], device: torch.device) -> Callable[[], None]:
    model, given = make(1 if device.type == "cpu" else _GPU_SCALE)
    return _training(model.to(device), given.to(device))


def _training(model: nn.Module, given: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        model(given).float().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return step


def _watched(step: Callable[[], None], device: torch.device) -> _Measured:
    step_s = _seconds(step, device)
    with _Stopwatch(device) as stopwatch:
        step()
    return _Measured(stopwatch.samples, step_s)


def _typical(runs: tuple[_Measured, ...]) -> _Measured:
    samples = zip(*(run.samples for run in runs), strict=True)
    medians = [(same[0][0], median(elapsed_s for _, elapsed_s in same)) for same in samples]
    return _Measured(medians, median(run.step_s for run in runs))


# -- shares of the peaks ---------------------------------------------------------------------------------------------


def _fitted(samples: list[tuple[Work, float]], accelerator: Accelerator) -> dict[str, Efficiency]:
    """For each kind, the shares of the peaks by which its operations are told with the least error; they take as long
    together as was measured.
    """
    found = {}
    for kind in KINDS:
        told = [(w, s) for w, s in samples if w.kind == kind and s >= 2 * accelerator.launch_s]
        found[kind] = _shares(told, accelerator) if told else _GUESS
    return found


def _shares(samples: list[tuple[Work, float]], accelerator: Accelerator) -> Efficiency:
    elapsed_s = np.array([elapsed_s for _, elapsed_s in samples])
    arithmetic_s = np.array([work.flops / peak(work, accelerator) for work, _ in samples])
    memory_s = np.array([work.nbytes / accelerator.memory_bytes_per_s for work, _ in samples])
    best, least = _GUESS, np.inf
    for flops, memory in product(_SHARES, _SHARES):
        error_s = float(np.abs(np.maximum(arithmetic_s / flops, memory_s / memory) - elapsed_s).sum())
        far = abs(np.log(flops / _GUESS.flops)) + abs(np.log(memory / _GUESS.memory))
        error_s += _TIE * far * elapsed_s.sum()
        if error_s < least:
            best, least = Efficiency(float(flops), float(memory)), error_s
    all_s = float(np.maximum(arithmetic_s / best.flops, memory_s / best.memory).sum())
    factor = all_s / float(elapsed_s.sum())
    return Efficiency(best.flops * factor, best.memory * factor) if factor else _GUESS


def _error(measured: list[_Measured], accelerator: Accelerator, efficiencies: dict[str, Efficiency]) -> float:
    """Median of the relative errors of whole steps."""
    calibration = Calibration(accelerator.name, efficiencies, 0.0, "")
    told = [sum(seconds(work, accelerator, calibration) for work, _ in step.samples) for step in measured]
    return median(abs(t - step.step_s) / step.step_s for t, step in zip(told, measured, strict=True))
