"""What can be planned: a workload by name, or a function of the user's, with its step traced on fake tensors.

Lower files first: ``contract`` (what a target is), ``setting`` (how its step is asked for), ``find`` (a target by its
name), ``checkpoint`` (checkpoints its blocks), ``traced`` (traces its step).
"""

from torch_lms.targets.contract import Target, own_value
from torch_lms.targets.find import find, workload_names
from torch_lms.targets.setting import AMP, Setting
from torch_lms.targets.traced import Traced, trace

__all__ = ["AMP", "Setting", "Target", "Traced", "find", "own_value", "trace", "workload_names"]
