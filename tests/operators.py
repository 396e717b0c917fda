"""Every operator that PyTorch tests, on the samples of its own tests."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from itertools import islice

import torch
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

from tests.opinfos import operators
from torch_lms.capture.tensors import tensors_among

SAMPLES = 3

OPS: list[OpInfo] = [op for op in operators.op_db if torch.float32 in op.dtypes and not op.name.startswith("jiterator")]


def run(ops: Iterable[OpInfo], mode: AbstractContextManager[object]) -> None:
    """Forward and backward of the first samples of each, inside ``mode``."""
    for op in ops:
        for sample in islice(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd), SAMPLES):
            with mode:
                try:
                    results = op(sample.input, *sample.args, **sample.kwargs)
                except RuntimeError:
                    continue
                floats = [t for t in tensors_among(pytree.tree_leaves(results)) if t.requires_grad]
                if floats:
                    sum(t.abs().sum() for t in floats).backward()
