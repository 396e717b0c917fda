"""What a process of a distributed test does."""

import os
from collections.abc import Callable

import torch
import torch.distributed as dist

import torch_lms
from tests.bits import same_bits

LIMITS = ("200KiB", 0)
"""Of rank 0, of rank 1."""


def compare(name: str, train: Callable[[int], list[torch.Tensor]]) -> None:
    """Run ``train(rank)`` without LMS and with it, every rank at another limit. Ends with 1 if they differ."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    expected = [tensor.detach().clone() for tensor in train(rank)]
    with torch_lms.session(limit=LIMITS[rank], min_size=1024) as lms:
        results = train(rank)
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
