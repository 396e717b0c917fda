"""Tensors of a collective stay while it is pending, though everything else leaves; and leave once it was waited for.

torchrun --standalone --nproc-per-node 2 -m tests.distributed.pending
"""

import sys

import torch
import torch.distributed as dist

import torch_lms

_storage_nbytes = torch._C.StorageBase.nbytes


def main() -> None:
    """Rank 1 joins a sum late; rank 0 has everything evicted meanwhile."""
    dist.init_process_group("gloo")
    late = dist.new_group(backend="gloo")
    rank = dist.get_rank()
    with torch_lms.session(limit=0, min_size=1024) as lms:
        given, other = torch.full((64, 64), float(rank + 1)), torch.ones(64, 64)
        if rank == 1:
            dist.barrier(late)  # only once rank 0 has looked
        work = dist.all_reduce(given, async_op=True) if rank == 0 else None
        lms.reclaim()
        stays = _storage_nbytes(given.untyped_storage()) > 0, _storage_nbytes(other.untyped_storage()) == 0
        if rank == 0:
            dist.barrier(late)
        else:
            work = dist.all_reduce(given, async_op=True)
        work.wait()
        lms.reclaim()
        leaves = _storage_nbytes(given.untyped_storage()) == 0
        equal = bool((given == 3).all())
        scattered = torch.empty(32, 64)
        dist.reduce_scatter_tensor(scattered, given)  # gloo's work never says that it has ended
        lms.reclaim()
        leaves = leaves and _storage_nbytes(scattered.untyped_storage()) == 0
        equal = equal and bool((scattered == 6).all())
        lms.validate()
    print(f"pending, rank {rank}: stays while pending {stays[0]}, others leave {stays[1]}, leaves then {leaves}")
    dist.destroy_process_group()
    sys.exit(not (equal and leaves and (all(stays) or rank == 1)))


if __name__ == "__main__":
    main()
