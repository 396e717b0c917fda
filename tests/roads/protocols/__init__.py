"""Protocols of other libraries, and roads that take more than one call. Each function takes the tensor."""

from collections.abc import Callable
from typing import Any

import torch

from tests.roads.protocols.copies import COPIES
from tests.roads.protocols.memory import MEMORY
from tests.roads.protocols.others import OTHERS
from tests.roads.protocols.values import VALUES

PROTOCOLS: dict[str, Callable[[torch.Tensor], Any]] = {**MEMORY, **COPIES, **VALUES, **OTHERS}
"""By name."""
