"""What exceeds the limit is told of, and what cannot leave is no room for operations."""

import os
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn

import torch_lms
from tests.ways import AT_HAND

LIMIT = 1_000_000

pytestmark = pytest.mark.parametrize("way", AT_HAND)


@pytest.fixture(autouse=True)
def _goes_that_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_LMS_INTERPOSER", way)


def session() -> AbstractContextManager[Any]:
    return torch_lms.session(limit=LIMIT, min_size=256, device="cpu")


def test_it_is_told_by_how_much_and_where() -> None:
    with session() as lms:
        nn.Embedding(4000, 100)
        stats = lms.stats()
        assert stats.over_limit_bytes == stats.peak_resident_bytes - LIMIT == 600_000
        assert stats.over_limit_in == "aten::empty"
        assert "over the limit by 600 kB at most, in aten::empty" in str(stats)

        lms.reset_stats()
        in_tiles = torch.ones(300_000) * 2
        assert not lms.stats().over_limit_bytes
        in_tiles.sum()  # to one number: only as a whole
        assert lms.stats().over_limit_bytes >= in_tiles.nbytes - LIMIT
        assert lms.stats().over_limit_in == "aten::sum"


def test_nothing_is_told_where_all_is_as_it_should_be() -> None:
    with session() as lms:
        layers = [nn.Linear(200, 200) for _ in range(10)]
        x = torch.ones(200)
        for layer in layers:
            x = layer(x)
        stats = lms.stats()
    assert stats.evictions
    assert (stats.over_limit_bytes, stats.over_limit_in) == (0, "")
    assert "over the limit" not in str(stats)


def test_what_comes_back_for_a_forked_process_is_told() -> None:
    with session() as lms:
        tensors = [torch.ones(100_000) for _ in range(4)]
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        stats = lms.stats()
        assert stats.over_limit_in == "fork"
        assert stats.over_limit_bytes == sum(tensor.nbytes for tensor in tensors) - stats.limit_bytes
        assert stats.resident_bytes <= stats.limit_bytes


@pytest.mark.parametrize("holds", ["an array", "a block", "for good"])
def test_an_operation_is_cut_that_does_not_fit_beside_what_cannot_leave(holds: str) -> None:
    with session() as lms:
        tensor = torch.ones(150_000)
        if holds == "an array":
            array = tensor.numpy()
        elif holds == "for good":
            tensor.data_ptr()
        with torch_lms.pinned(tensor if holds == "a block" else torch.ones(1)):
            doubled = torch.ones(90_000) * 2
        assert lms.stats().in_pieces == 1
        assert lms.stats().over_limit_bytes == 0
        assert torch.equal(doubled[-3:], torch.full((3,), 2.0))
        lms.validate()
    if holds == "an array":
        assert array[-1] == 1


def test_where_little_is_left_operations_stay_of_a_reasonable_size() -> None:
    """An eighth of the limit is all that is left."""
    with session() as lms:
        array = torch.ones(220_000).numpy()
        doubled = torch.ones(50_000) * 2
        assert lms.stats().in_pieces == 1
        assert len(array) == 220_000
        assert torch.equal(doubled, torch.full((50_000,), 2.0))
