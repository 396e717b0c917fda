"""How long operations take on a processor: a roofline, the slower of arithmetic and memory. See docs/machines.md.

A processor that computes in the host's memory launches its operations itself (``timed``). A device is asked for them
by a host that runs ahead (``timed_on_device``); what that takes is the host's time (``sim.clocks``).
"""

from collections.abc import Callable

from torch_lms.errors import UsageError
from torch_lms.machine import Accelerator, Calibration
from torch_lms.sim.clocks import KERNEL_S
from torch_lms.trace import CONVOLUTIONS, Trace, Work

_TENSOR_CORES = ("matrix", *CONVOLUTIONS)
"""Kinds of work that run on them."""


def timed(trace: Trace, accelerator: Accelerator, calibration: Calibration) -> Trace:
    """The same step, with the seconds that its operations take where the processor launches them itself.

    Raises:
        UsageError: ``trace`` does not say what its operations have to do.
    """
    return _with_seconds(trace, lambda work: seconds(work, accelerator, calibration))


def timed_on_device(trace: Trace, accelerator: Accelerator, calibration: Calibration) -> Trace:
    """The same step, with the seconds of its kernels alone.

    Raises:
        UsageError: ``trace`` does not say what its operations have to do.
    """
    return _with_seconds(trace, lambda work: seconds_on_device(work, accelerator, calibration))


def _with_seconds(trace: Trace, seconds_of: Callable[[Work], float]) -> Trace:
    ops = []
    for op in trace.ops:
        if op.work is None:
            raise UsageError(
                "expected a trace of torch_lms.trace_step, whose operations say what they have to do; got one that was "
                "recorded while a step ran, whose times are those of its own machine"
            )
        ops.append(op._replace(seconds=seconds_of(op.work)))
    return Trace(trace.pages, tuple(ops))


def seconds(work: Work, accelerator: Accelerator, calibration: Calibration) -> float:
    """The seconds of one operation, and of the small ones up to the next. None takes less than it takes to launch."""
    return _seconds(work, accelerator, calibration, least_s=accelerator.launch_s)


def seconds_on_device(work: Work, accelerator: Accelerator, calibration: Calibration) -> float:
    """The seconds of the kernels of one operation, and of the small ones up to the next."""
    return _seconds(work, accelerator, calibration, least_s=KERNEL_S)


def _seconds(work: Work, accelerator: Accelerator, calibration: Calibration, least_s: float) -> float:
    efficiency = calibration.efficiencies[work.kind]
    arithmetic_s = work.flops / (peak(work, accelerator) * efficiency.flops)
    memory_s = work.nbytes / (accelerator.memory_bytes_per_s * efficiency.memory)
    operation_s = max(arithmetic_s, memory_s, least_s)
    return operation_s + (work.launches - 1) * least_s


def peak(work: Work, accelerator: Accelerator) -> float:
    """The FLOP/s that the processor has at most for such work.

    As PyTorch sets it unless asked otherwise, convolutions of float32 are computed in TF32 where there is such a thing,
    products of matrices are not.
    """
    plain = accelerator.fp32_flop_per_s
    if work.dtype in ("float64", "complex128"):
        return accelerator.fp64_flop_per_s
    if work.kind not in _TENSOR_CORES:
        return plain
    if work.dtype == "float16":
        return accelerator.fp16_flop_per_s
    if work.dtype == "bfloat16":
        return accelerator.bf16_flop_per_s or plain
    if work.kind in CONVOLUTIONS:
        return accelerator.tf32_flop_per_s or plain
    return plain
