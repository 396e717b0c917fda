"""PyTorch's lists of operators, with the samples of its own tests.

Whoever asks for samples is looked for in the whole stack, among all modules that are loaded: it might be a test of
PyTorch's. That takes twenty times as long as the samples do, and finds nobody here.
"""

from torch.testing._internal import common_methods_invocations as operators
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core

__all__ = ["operators"]


def _nobody() -> None:
    """The test of PyTorch's that asks."""


for module in (common_utils, core):
    module.extract_test_fn = _nobody
