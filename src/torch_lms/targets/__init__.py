"""What can be planned: a workload, a model of a library, or a function, with its step traced on fake tensors.

Lower files first: ``contract`` (what a target is), ``setting`` (how its step is asked for), ``torchvision_operators``
(lets torchvision be imported), ``transformers_models`` and ``vision_models`` (targets from libraries), ``find`` (a
target by its name), ``checkpoint`` (checkpoints its blocks), ``lora`` (adds adapters), ``traced`` (traces its step).
"""

from torch_lms.targets.checkpoint import checkpoint_blocks
from torch_lms.targets.contract import Target, own_value
from torch_lms.targets.find import find, workload_names
from torch_lms.targets.setting import AMP, Setting
from torch_lms.targets.torchvision_operators import define_torchvision_operators
from torch_lms.targets.traced import Traced, built, trace

__all__ = [
    "AMP",
    "Setting",
    "Target",
    "Traced",
    "built",
    "checkpoint_blocks",
    "define_torchvision_operators",
    "find",
    "own_value",
    "trace",
    "workload_names",
]
