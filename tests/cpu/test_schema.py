"""What operators write and share, found out by looking at the bytes, is what ``describe`` says (N4)."""

from collections import defaultdict

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from workloads import WORKLOADS

from torch_lms.capture.schema import describe
from torch_lms.capture.tensors import storage_of, tensors_among


class Watcher(TorchDispatchMode):
    """Compares every argument's bytes before and after each operation, and looks for shared storages."""

    def __init__(self) -> None:
        super().__init__()
        self.undeclared_writes: dict[str, set[int]] = defaultdict(set)
        self.undeclared_sharing: set[str] = set()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def, override]
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        before = [(tensor, _bytes(tensor)) for tensor in given]
        result = func(*args, **kwargs)
        info = describe(func)
        self.seen.add(info.name)
        declared = {id(storage_of(t)) for t in tensors_among(info.written_args(args, kwargs))}
        for position, (tensor, content) in enumerate(before):
            if id(tensor.untyped_storage()) not in declared and _bytes(tensor) != content:
                self.undeclared_writes[info.name].add(position)
        shared = {id(storage_of(t)) for t in given} & {id(storage_of(t)) for t in tensors_among((result,))}
        if shared - declared and not info.view and not info.composite:
            self.undeclared_sharing.add(info.name)
        return result


def _bytes(tensor: torch.Tensor) -> bytes:
    with torch._C._DisableTorchDispatch():
        storage = tensor.untyped_storage()
        whole = torch.empty(0, dtype=torch.uint8).set_(storage)
        return whole.numpy().tobytes() if storage.nbytes() else b""


def recurrent() -> None:
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        cells = kind(8, 16, num_layers=2, batch_first=True)
        for _ in range(2):
            cells(torch.randn(2, 5, 8))[0].sum().backward()


def normalized() -> None:
    for layer, shape in (
        (nn.BatchNorm1d(4), (8, 4)),
        (nn.BatchNorm3d(4), (2, 4, 3, 3, 3)),
        (nn.InstanceNorm2d(4, track_running_stats=True), (2, 4, 5, 5)),
        (nn.GroupNorm(2, 4), (2, 4, 5, 5)),
        (nn.LayerNorm(6), (3, 6)),
        (nn.RReLU(), (3, 6)),
        (nn.EmbeddingBag(10, 3, max_norm=0.1), None),
    ):
        x = torch.randint(10, (4, 3)) if shape is None else torch.randn(shape, requires_grad=True)
        for _ in range(2):
            layer(x).sum().backward()


@pytest.mark.parametrize("name", [*WORKLOADS, "recurrent", "normalized"])
def test_no_operator_writes_or_shares_unseen(name: str) -> None:
    with Watcher() as watcher:
        {"recurrent": recurrent, "normalized": normalized}.get(name, lambda: WORKLOADS[name](torch.device("cpu")))()
    assert watcher.undeclared_writes == {}
    assert watcher.undeclared_sharing == set()
    assert len(watcher.seen) > 5
