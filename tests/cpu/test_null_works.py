"""Collectives as NCCL's are: without a work where they are not asynchronous, or coalesced (N11)."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils import cpp_extension

import torch_lms
from torch_lms.runtime import api

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or not cpp_extension.is_ninja_available() or not dist.is_available(),
    reason="needs g++, ninja and torch.distributed",
)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The process group's, of one rank."""
    built = cpp_extension.load(
        name="null_group",
        sources=[str(Path(__file__).with_name("null_group.cpp"))],
        build_directory=str(tmp_path_factory.mktemp("null_group")),
        extra_cflags=["-O0"],
    )
    made: list[Any] = []

    def new(_store: Any, rank: int, size: int, _timeout: Any) -> Any:
        made.append(built.NullBackend(rank, size))
        return made[-1]

    dist.Backend.register_backend("null", new, devices=["cpu"])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("null", rank=0, world_size=1)
    yield made[0]
    dist.destroy_process_group()


@pytest.fixture
def lms() -> Iterator[api.Lms]:
    with torch_lms.session(limit=0, min_size=1024, policy="reactive") as running:
        yield running
        running.validate()


def is_there(tensor: torch.Tensor) -> bool:
    return int(torch._C.StorageBase.nbytes(tensor.untyped_storage())) > 0


def test_collectives_without_a_work_have_ended(backend: Any, lms: api.Lms) -> None:
    tensor = torch.ones(64, 64)
    for n in range(3):
        assert dist.all_reduce(tensor) is None
        lms.reclaim()
        assert not is_there(tensor)
        assert tensor.sum().item() == 64 * 64 * 2 ** (n + 1)
    dist.broadcast(tensor, 0)
    dist.barrier()
    assert lms.stats().evictions > 0


def test_asynchronous_collectives_hold_their_tensors_until_they_end(backend: Any, lms: api.Lms) -> None:
    tensor = torch.ones(64, 64)
    work = dist.all_reduce(tensor, async_op=True)
    lms.reclaim()
    assert is_there(tensor)
    work.wait()
    lms.reclaim()
    assert not is_there(tensor)
    assert tensor.sum().item() == 64 * 64 * 2


def test_coalesced_transfers_hold_their_tensors_until_the_batch_ends(backend: Any, lms: api.Lms) -> None:
    sent, received = torch.ones(64, 64), torch.zeros(64, 64)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, 0), dist.P2POp(dist.irecv, received, 0)])
    other = torch.ones(64, 64)
    lms.reclaim()
    assert (is_there(sent), is_there(received), is_there(other)) == (True, True, False)
    backend.finish()
    lms.reclaim()
    assert (is_there(sent), is_there(received)) == (False, False)
    assert received.sum().item() == 7 * 64 * 64
    assert len(works) == 1


def test_a_step_with_summed_gradients(backend: Any) -> None:
    def step() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        model(torch.randn(32, 64)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        return [parameter.detach() for parameter in model.parameters()]

    expected = step()
    with torch_lms.session(limit=0, min_size=256) as lms:
        found = step()
        lms.validate()
        assert all(map(torch.equal, found, expected))
