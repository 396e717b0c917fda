"""Ways to train, and which of them a device can do."""

from torch_lms.errors import UsageError

NONE = "none"
UNLIMITED = "unlimited"
CHECKPOINT = "checkpoint"
SAVE_ON_CPU = "save_on_cpu"
HOOKS = "hooks"

WAYS = {
    NONE: "stock PyTorch",
    UNLIMITED: "stock PyTorch with all memory that there is, whatever --as-card says",
    "reactive": "LMS without a plan",
    "planned": "LMS with plans",
    "tflms2": "LMS with plans by the rules of IBM's LMS for TensorFlow",
    "demand": "IBM's LMS for PyTorch 1.1: simulated only",
    CHECKPOINT: "torch.utils.checkpoint around blocks",
    SAVE_ON_CPU: "torch.autograd.graph.save_on_cpu",
    HOOKS: "saved-tensor hooks that write to the disk",
}

OURS = ("reactive", "planned", "tflms2")
"""Ways in which a session of ours is on; the names are those of its policies."""

STOCK = (NONE, UNLIMITED)

_SIMULATED_AS = {UNLIMITED: NONE, CHECKPOINT: NONE, HOOKS: SAVE_ON_CPU}


def checked(names: str) -> tuple[str, ...]:
    """The ways in ``names``, which have commas between.

    Raises:
        UsageError: there is no such way, or one is named twice.
    """
    found = tuple(name.strip() for name in names.split(",") if name.strip())
    unknown = [name for name in found if name not in WAYS]
    if unknown or not found:
        raise UsageError(f"--against expects names of {', '.join(WAYS)}, with commas between; got {names!r}")
    if len(set(found)) < len(found):
        raise UsageError(f"--against expects each way once; got {names!r}")
    return found


def refusal(way: str, device: str) -> str:
    """Why ``way`` cannot be run on ``device``; "" if it can."""
    if way == "demand":
        return (
            "IBM's LMS for PyTorch 1.1 waits for each copy inside its allocator, which no session of ours does: it is "
            "simulated only (torch-lms plan --policy demand); see the forecast"
        )
    if way == SAVE_ON_CPU and device == "cpu":
        return "save_on_cpu keeps what backward needs in the host's memory, which is the device here: take hooks"
    return ""


def policy_of(way: str) -> str:
    """The policy of the simulator that comes nearest to ``way``."""
    return _SIMULATED_AS.get(way, way)
