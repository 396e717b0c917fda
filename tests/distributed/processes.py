"""What a process of a distributed test does."""

import argparse
import os
from collections.abc import Callable

import torch
import torch.distributed as dist

import torch_lms
from tests.bits import same_bits

LIMITS = ("200KiB", 0)
"""Of ranks in turn."""


def joined() -> torch.device:
    """Join the group that torchrun made; the device of this rank, as the command line says.

    ``--backend fake`` is PyTorch's own for tests: ranks hear nothing of each other, and every device will do.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu", help="its type")
    parser.add_argument("--backend", help="default: gloo, or what the device has")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(chosen.device)
    if device.type != "cpu":
        device = torch.device(device.type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    backend = chosen.backend or dist.get_default_backend_for_device(device)
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group(f"cpu:fake,{device.type}:fake", store=FakeStore(), rank=0, world_size=1)
    else:
        dist.init_process_group(backend)
    return device


def compare(name: str, train: Callable[[int, torch.device], list[torch.Tensor]]) -> None:
    """Run ``train(rank, device)`` without LMS and with it, ranks at other limits. Ends with 1 if they differ."""
    device = joined()
    rank = dist.get_rank()
    expected = [tensor.detach().clone() for tensor in train(rank, device)]
    with torch_lms.session(limit=LIMITS[rank % len(LIMITS)], min_size=1024, device=device) as lms:
        results = train(rank, device)
        lms.validate()
        stats = lms.stats()
    equal = same_bits([tensor.detach() for tensor in results], expected)
    print(
        f"{name}, rank {rank}: {len(expected)} tensors {'equal' if equal else 'DIFFER'}, "
        f"{stats.evictions} evictions, {stats.fetches} fetches",
        flush=True,
    )
    dist.destroy_process_group()
    os._exit(not (equal and stats.evictions and stats.fetches))  # see torch_lms_workloads.training.ranks.leave
