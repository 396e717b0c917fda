"""Operators that are taken to be repeatable are repeated, on PyTorch's own samples, and compared bit by bit (N16)."""

from collections import Counter
from typing import Any

import pytest
import torch
from operators import OPS, run
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_lms.capture.call import can_be_repeated, capture_call
from torch_lms.capture.registry import Entry, Registry, storage_nbytes
from torch_lms.capture.schema import describe
from torch_lms.capture.tensors import tensors_among, untyped_storage


def content(storage: torch.UntypedStorage) -> bytes:
    return bytes(torch.empty(0, dtype=torch.uint8).set_(storage).tolist())


class Repeating(TorchDispatchMode):
    """Makes every call that can be repeated twice, the second time on copies of what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry()
        self.repeated: Counter[str] = Counter()
        self.differ: list[str] = []

    def find(self, storage: torch.UntypedStorage) -> Entry | None:
        if not storage_nbytes(storage):
            return None
        return self.registry.find(storage) or self.registry.add(storage, None)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        info, tensors = describe(func), tensors_among((*args, *kwargs.values()))
        if (
            info.view
            or info.composite
            or types
            or not can_be_repeated(info, args, kwargs, self.find, torch.device("cpu"))
        ):
            return func(*args, **kwargs)
        call = capture_call(func, info, args, kwargs, self.find, lambda _: 0)
        storages = {entry.page: untyped_storage(tensor).clone() for tensor in tensors if (entry := self.of(tensor))}
        result = func(*args, **kwargs)
        call.made(result, self.find)
        call.repeat(storages)
        after = [entry for tensor in tensors_among(pytree.tree_leaves((result, tensors))) if (entry := self.of(tensor))]
        for entry in after:
            storage = entry()
            if storage is not None and content(storage) != content(storages[entry.page]):
                self.differ.append(f"{info.name} {[tuple(tensor.shape) for tensor in tensors]}")
        self.repeated[info.name] += 1
        return result

    def of(self, tensor: torch.Tensor) -> Entry | None:
        return self.find(untyped_storage(tensor))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", sorted({op.name[0] for op in OPS}))
def test_the_same_again(first: str) -> None:
    mode = Repeating()
    run((op for op in OPS if op.name[0] == first), mode)
    assert mode.differ == []
    assert mode.repeated
