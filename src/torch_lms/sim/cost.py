"""How long operations take on a processor: a roofline, the slower of arithmetic and memory. See docs/machines.md."""

from torch_lms.errors import UsageError
from torch_lms.machine import Accelerator, Calibration
from torch_lms.trace import CONVOLUTIONS, Trace, Work

_TENSOR_CORES = ("matrix", *CONVOLUTIONS)
"""Kinds of work that run on them."""


def timed(trace: Trace, accelerator: Accelerator, calibration: Calibration) -> Trace:
    """The same step, with the seconds that its operations would take.

    Raises:
        UsageError: ``trace`` does not say what its operations have to do.
    """
    ops = []
    for op in trace.ops:
        if op.work is None:
            raise UsageError(
                "expected a trace of torch_lms.trace_step, whose operations say what they have to do; got one that was "
                "recorded while a step ran, whose times are those of its own machine"
            )
        ops.append(op._replace(seconds=seconds(op.work, accelerator, calibration)))
    return Trace(trace.pages, tuple(ops))


def seconds(work: Work, accelerator: Accelerator, calibration: Calibration) -> float:
    """The seconds of one operation, and of the small ones up to the next.

    Where the program takes longer to launch a kernel than the processor to run it, that counts.
    """
    efficiency = calibration.efficiencies[work.kind]
    arithmetic_s = work.flops / (peak(work, accelerator) * efficiency.flops)
    memory_s = work.nbytes / (accelerator.memory_bytes_per_s * efficiency.memory)
    operation_s = max(arithmetic_s, memory_s, accelerator.launch_s)
    small_operations_s = (work.launches - 1) * accelerator.launch_s
    return operation_s + small_operations_s


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
