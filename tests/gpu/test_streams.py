"""Side streams of the program's, on a real device: large enough that a missing wait has a chance to show."""

from collections.abc import Callable

import pytest
import torch
from bits import same_bits

import torch_lms

SIZE = 1024
STEPS = 20


def two_streams(device: torch.device) -> list[torch.Tensor]:
    """One branch of each step runs on a side stream."""
    module = torch.get_device_module(device)
    torch.manual_seed(0)
    main, side = module.current_stream(device), module.Stream(device)
    weights = [torch.randn(SIZE, SIZE, device=device) / SIZE**0.5 for _ in range(2)]
    x = torch.randn(SIZE, SIZE, device=device)
    for _ in range(STEPS):
        side.wait_stream(main)
        with module.stream(side):
            y = (x @ weights[1]).tanh()
        z = (x @ weights[0]).tanh()
        main.wait_stream(side)
        x = y + z
        for weight in weights:
            weight.mul_(0.99)
    side.wait_stream(main)  # which still reads y, whose memory is the side stream's
    return [x, *weights]


def prefetching(device: torch.device) -> list[torch.Tensor]:
    """Batches come on a side stream, one ahead; the allocator is told, as NVIDIA's examples do it."""
    module = torch.get_device_module(device)
    torch.manual_seed(0)
    batches = [torch.randn(SIZE, SIZE).pin_memory() for _ in range(4)]
    main, side = module.current_stream(device), module.Stream(device)
    weight = torch.randn(SIZE, SIZE, device=device) / SIZE**0.5

    def fetch(step: int) -> torch.Tensor:
        with module.stream(side):
            return batches[step % 4].to(device, non_blocking=True).mul_(0.5)

    total = torch.zeros(SIZE, SIZE, device=device)
    ahead = fetch(0)
    for step in range(STEPS):
        main.wait_stream(side)
        batch = ahead
        batch.record_stream(main)
        ahead = fetch(step + 1)
        total = total + (batch @ weight).relu()
        del batch
    main.wait_stream(side)
    return [total, ahead]


def lending(device: torch.device) -> list[torch.Tensor]:
    """A side stream reads what the main stream makes and lets go of at once, trusting ``record_stream``."""
    module = torch.get_device_module(device)
    torch.manual_seed(0)
    main, side = module.current_stream(device), module.Stream(device)
    sums = []
    for step in range(STEPS):
        x = torch.full((SIZE, SIZE), float(step), device=device)
        side.wait_stream(main)
        x.record_stream(side)
        with module.stream(side):
            sums.append((x @ x).sum())
        del x
        torch.full((SIZE, SIZE), float("nan"), device=device)
    main.wait_stream(side)
    return sums


@pytest.mark.parametrize("host_limit", ["auto", 0])
@pytest.mark.parametrize("pages", [1, 0], ids=["one page", "nothing"])
@pytest.mark.parametrize("program", [two_streams, prefetching, lending])
def test_equal_to_the_bit(
    program: Callable[[torch.device], list[torch.Tensor]], pages: int, host_limit: int | str, device: torch.device
) -> None:
    expected = program(device)
    with torch_lms.session(limit=pages * SIZE * SIZE * 4, min_size="1kB", host_limit=host_limit) as lms:
        results = program(device)
        lms.validate()
        stats = lms.stats()
    assert same_bits(results, expected)
    assert stats.evictions > 0
    assert stats.fetches > 0


def test_pages_brought_back_at_the_end_are_there_for_every_stream(device: torch.device) -> None:
    module = torch.get_device_module(device)
    side = module.Stream(device)
    tensors = [torch.full((SIZE, 8 * SIZE), float(n), device=device) for n in range(8)]
    module.synchronize()
    with torch_lms.session(limit=0) as lms:
        for tensor in tensors:  # known once an operation has used it
            tensor.add_(1)
        lms.reclaim()
        assert lms.stats().host_bytes == sum(tensor.nbytes for tensor in tensors)
    with module.stream(side):
        sums = [tensor.mean() for tensor in tensors]
    side.synchronize()
    assert [float(mean) for mean in sums] == list(range(1, 9))
