"""A process of ``small_card.py``: one way to train, one amount after the other."""

import gc
import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from peers import checkpointed, way
from small_card_models import MODELS, TINY, Model

from torch_lms.errors import DeviceFullError, LmsError
from torch_lms.machine import read_host_memory
from torch_lms.units import format_bytes

FITS = "fits"
"""The way that is no more than stock PyTorch, to see whether it fits."""

WARM_UP = 4
"""Steps that do not count: two without a plan, one that follows the first plan, and one that follows the better."""

STEPS = 3
FITTING = 2
"""Steps where only the question is whether it fits."""

HOST_SHARE = 0.8
"""Of the host's free memory, for pages."""

TINY_LIMIT = "75%"
"""Of a tiny card, of which "auto" would leave nothing."""


@dataclass(frozen=True)
class Asked:
    """What to run. ``card_bytes`` is 0 for the whole card."""

    model: str
    is_tiny: bool
    device: str
    way: str
    card_bytes: int
    amounts: list[int]


@dataclass(frozen=True)
class Ran:
    """What was seen of one amount, in the counted steps. What moved and what was waited for is of one step.

    Attributes:
        peak_bytes, reserved_bytes: of the whole process, as the allocator counts them.
        ledger_bytes: what LMS knew of.
        plan_ops_s: after each step before these, the seconds of all operations that the plan followed last counts with.
        waited_s: seconds in which the program's stream waited for copies.
        retries: after each step, those before these among them, how often the allocator has emptied its cache so far,
            to find memory.
    """

    amount: int
    failure: str = ""
    seconds: list[float] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    peak_bytes: int = 0
    reserved_bytes: int = 0
    ledger_bytes: int = 0
    limit_bytes: int = 0
    moved_bytes: float = 0.0
    recomputed_bytes: float = 0.0
    plan_ops_s: list[float | None] = field(default_factory=list)
    waited_s: float = 0.0
    retries: list[int] = field(default_factory=list)
    recoveries: int = 0


def work(asked: Asked) -> None:
    """Run what was asked, with a line of JSON for each amount, until one fails."""
    device = torch.device(asked.device, 0)
    torch.accelerator.set_device_index(0)
    module = torch.get_device_module(device)
    model = (TINY if asked.is_tiny else MODELS)[asked.model]
    be_deterministic(model)
    if asked.card_bytes:
        act_as_card(asked.card_bytes, device)
    for amount in asked.amounts:
        gc.collect()
        module.empty_cache()
        try:
            ran = _train(model, asked, amount, device)
        except (torch.OutOfMemoryError, LmsError) as error:
            ran = Ran(amount, _said(error))
        print(json.dumps(asdict(ran)), flush=True)
        if ran.failure:
            return


def be_deterministic(model: Model) -> None:
    """Losses are compared."""
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=not model.is_deterministic)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which that asks for


def act_as_card(card_bytes: int, device: torch.device) -> None:
    """From here on this process may take so much of the device."""
    module = torch.get_device_module(device)
    whole = module.mem_get_info(device)[1]
    if card_bytes > whole:
        raise SystemExit(f"the device has {format_bytes(whole)}, and is no card of {format_bytes(card_bytes)}")
    module.set_per_process_memory_fraction(card_bytes / whole, device)


def training(model: Model, amount: int, device: torch.device, is_checkpointed: bool) -> Callable[[], torch.Tensor]:
    """A step of a new network, the same each time; it gives the loss."""
    torch.manual_seed(0)
    net = model.make().to(device)
    if is_checkpointed:
        checkpointed(net, model.blocks)
    update = model.optimizer(net.parameters())
    inputs = model.inputs(amount, device)

    def step() -> torch.Tensor:
        update.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type != "cpu"):  # slow on most CPUs
            loss = model.loss(net(inputs), inputs)
        loss.backward()
        update.step()
        return loss.detach()

    return step


def host_limit() -> int:
    """Bytes of the host's memory for pages."""
    return int(HOST_SHARE * read_host_memory().binding()[1])


def _said(error: BaseException) -> str:
    """What went wrong. After an error inside, the pages of the step that failed do not all come back at the end."""
    if isinstance(error, DeviceFullError) and error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"


def _train(model: Model, asked: Asked, amount: int, device: torch.device) -> Ran:
    module = torch.get_device_module(device)
    step = training(model, amount, device, is_checkpointed=asked.way == "checkpoint")
    around: AbstractContextManager[Any] = nullcontext(dict)
    if asked.card_bytes:
        around = way(asked.way, TINY_LIMIT if asked.is_tiny else "auto", str(device), host_limit())
    with around as tell:
        is_fitting = asked.way == FITS
        losses, plan_ops_s, retries = [], [], []
        for _ in range(FITTING if is_fitting else WARM_UP):
            losses.append(step())
            plan_ops_s.append(tell().get("plan_step_s"))
            retries.append(_retries(module, device))
        module.synchronize(device)
        before = tell()
        if not is_fitting:
            module.reset_peak_memory_stats(device)
        seconds = []
        for _ in range(0 if is_fitting else STEPS):
            began_s = time.perf_counter()
            losses.append(step())
            module.synchronize(device)
            seconds.append(time.perf_counter() - began_s)
            retries.append(_retries(module, device))
        peaks = module.max_memory_allocated(device), module.max_memory_reserved(device)
        after = tell()

    def by_step(what: str) -> float:
        return float(after.get(what, 0) - before.get(what, 0)) / STEPS

    return Ran(
        amount=amount,
        seconds=seconds,
        losses=[loss.item().hex() for loss in losses],
        peak_bytes=peaks[0],
        reserved_bytes=peaks[1],
        ledger_bytes=after.get("peak_resident_bytes", 0),
        limit_bytes=after.get("limit_bytes", 0) or 0,
        moved_bytes=by_step("evicted_bytes"),
        recomputed_bytes=by_step("recomputed_bytes"),
        plan_ops_s=plan_ops_s,
        waited_s=by_step("stall_s"),
        retries=retries,
        recoveries=after.get("recoveries", 0),
    )


def _retries(module: Any, device: torch.device) -> int:
    stats: dict[str, int] = getattr(module, "memory_stats", lambda _: {})(device)
    return stats.get("num_alloc_retries", 0)
