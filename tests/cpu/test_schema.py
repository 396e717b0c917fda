"""What operators write and share, found out by looking at the bytes, is what ``describe`` says (N4)."""

import pytest
import torch
from torch import nn
from watcher import Watcher
from workloads import WORKLOADS

from torch_lms.capture.schema import describe


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


@pytest.mark.parametrize(
    "name", ["empty.memory_format", "empty_strided.default", "empty_like.default", "new_empty.default"]
)
def test_what_is_allocated_empty_is_not_repeatable(name: str) -> None:
    """Kernels of extensions, which nobody sees, may have filled it."""
    packet, overload = name.split(".")
    info = describe(getattr(getattr(torch.ops.aten, packet), overload))
    assert info.empty
    assert not info.repeatable
