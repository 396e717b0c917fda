"""The test accelerator itself: it has what the code for GPUs counts on, and punishes what a GPU would."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

PACES = ["eager", "delayed", "lazy", "mixed"]
ROOT = Path(__file__).parents[2]
MIB = 1 << 20


def train(device: torch.device, steps: int = 3) -> list[torch.Tensor]:
    """Losses and weights of a small network with dropout, batch norm, and a recurrent layer."""
    torch.manual_seed(0)
    convolutions = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3)).to(device)
    recurrent = nn.LSTM(36, 5, 2, dropout=0.1).to(device)
    parameters = [*convolutions.parameters(), *recurrent.parameters()]
    optimizer = torch.optim.Adam(parameters)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        found = convolutions(torch.randn(4, 3, 8, 8, device=device)).flatten(2)
        loss = recurrent(found)[0].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [tensor.detach().cpu() for tensor in (*losses, *parameters)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pace", PACES)
def test_every_schedule_gives_the_same_bits(pace: str, seed: int, module: ModuleType, device: torch.device) -> None:
    expected = train(device)
    module.schedule(pace, seed)
    assert all(map(torch.equal, train(device), expected))


def test_operators_give_what_the_cpu_gives(device: torch.device) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(6, 7), torch.randn(7, 5)
    image, weight = torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3)
    programs: list[Any] = [
        lambda x, y, image, weight: x @ y,
        lambda x, y, image, weight: nn.functional.conv2d(image, weight),
        lambda x, y, image, weight: x[x > 0].sum() + x.nonzero().sum(),
        lambda x, y, image, weight: torch.stack([x, x + 1]).unique(),
        lambda x, y, image, weight: x.to(torch.float64).softmax(1).T.contiguous().view(-1)[::2],
        lambda x, y, image, weight: torch.view_as_real(
            torch.view_as_complex(x[:, :6].reshape(-1, 2)).conj().resolve_conj()
        ),
        lambda x, y, image, weight: torch.cat([x.unfold(0, 3, 1).flatten(), y.flatten()]).sort().values,
        lambda x, y, image, weight: x.clone().index_put_((torch.tensor([0, 1]),), torch.tensor(2.0)),
        lambda x, y, image, weight: torch.linalg.lstsq(y, y).solution,
    ]
    for program in programs:
        given = [tensor.to(device) for tensor in (x, y, image, weight)]
        found = program(*given)
        assert found.device == device
        torch.testing.assert_close(found.cpu(), program(x, y, image, weight), rtol=0, atol=1e-6)


def test_gru_cells_have_gradients(device: torch.device) -> None:
    def gradients(where: torch.device) -> list[torch.Tensor]:
        torch.manual_seed(0)
        cell = nn.GRUCell(5, 4)
        x = torch.randn(3, 5)
        cell.to(where)
        cell(x.to(where), torch.ones(3, 4, device=where)).square().sum().backward()
        return [p.grad.cpu() for p in cell.parameters() if p.grad is not None]

    for found, expected in zip(gradients(device), gradients(torch.device("cpu")), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_stream_does_nothing_before_somebody_waits_if_it_is_lazy(module: ModuleType, device: torch.device) -> None:
    x = torch.ones(4, device=device)
    module.synchronize()
    module.schedule("lazy")
    side = module.Stream(device)
    with module.stream(side):
        x.add_(1)
    unordered = (x * 1).cpu()  # the main stream does not wait for it
    module.current_stream().wait_stream(side)
    assert unordered.tolist() == [1.0] * 4
    assert x.tolist() == [2.0] * 4
    assert len(module.take_races()) == 1


def test_freed_memory_is_poisoned_for_whoever_still_reads_it(module: ModuleType, device: torch.device) -> None:
    module.schedule("lazy")
    side = module.Stream(device)
    results = []
    for tells in (False, True):
        x = torch.ones(MIB, device=device)
        side.wait_stream(module.current_stream())
        with module.stream(side):
            total = x.sum()
        if tells:
            x.record_stream(side)
        del x
        module.current_stream().synchronize()
        side.synchronize()
        results.append(float(total.cpu()))
    assert str(results[0]) == "nan"
    assert results[1] == MIB
    assert len(module.take_races()) == 1


@pytest.mark.parametrize("pace", ["eager", "lazy"])
@pytest.mark.parametrize("waits", ["not at all", "for the stream", "for an event", "on the host"])
def test_uses_without_an_order_are_told_whatever_came_of_them(
    waits: str, pace: str, module: ModuleType, device: torch.device
) -> None:
    module.schedule(pace)
    x = torch.ones(4, device=device)
    side = module.Stream(device)
    side.wait_stream(module.current_stream())
    with module.stream(side):
        found = x + 1
    if waits == "for the stream":
        module.current_stream().wait_stream(side)
    elif waits == "for an event":
        side.record_event().wait(module.current_stream())
    elif waits == "on the host":
        side.synchronize()
    x.zero_()
    races = module.take_races()
    module.synchronize()
    assert bool(races) == (waits == "not at all")
    assert all("zero_ writes on queue 0" in race and "add reads on queue" in race for race in races)
    del found


def test_a_copy_to_the_host_may_be_overwritten_if_nobody_reads_it(module: ModuleType, device: torch.device) -> None:
    x = torch.ones(4, device=device)
    below = torch.empty(4).pin_memory()
    side = module.Stream(device)
    side.wait_stream(module.current_stream())
    with module.stream(side):
        below.copy_(x, non_blocking=True)
    x.zero_()
    assert module.take_races() == []
    with module.stream(side):
        x.copy_(below, non_blocking=True)
    races = module.take_races()
    module.synchronize()
    assert any("that copy is read" in race for race in races)


def test_events_have_times_and_order(module: ModuleType, device: torch.device) -> None:
    first, second = (module.Event(enable_timing=True) for _ in range(2))
    first.record()
    torch.ones(4 * MIB, device=device).sort()
    second.record()
    second.synchronize()
    assert first.query()
    assert first.elapsed_time(second) > 0


def test_memory_has_a_hard_end(module: ModuleType, device: torch.device) -> None:
    module.empty_cache()
    before = module.memory_reserved()
    module.set_capacity(before + 64 * MIB)
    held = torch.empty(40 * MIB, dtype=torch.uint8, device=device)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        torch.empty(40 * MIB, dtype=torch.uint8, device=device)
    assert torch.accelerator.get_memory_info(device)[0] == 24 * MIB
    del held
    again = torch.empty(60 * MIB, dtype=torch.uint8, device=device)  # what was cached is given up for it
    assert module.memory_allocated() >= again.nbytes


def test_memory_belongs_to_the_stream_that_it_was_allocated_for(module: ModuleType, device: torch.device) -> None:
    address = torch.empty(3 * MIB, device=device).data_ptr()
    side = module.Stream(device)
    with module.stream(side):
        other = torch.empty(3 * MIB, device=device)
    again = torch.empty(3 * MIB, device=device)
    assert again.data_ptr() == address != other.data_ptr()


def test_page_locked_memory_is_not_freed_under_a_copy(module: ModuleType, device: torch.device) -> None:
    module.schedule("lazy")
    source = torch.arange(MIB, dtype=torch.float32).pin_memory()
    assert source.is_pinned()
    target = source.to(device, non_blocking=True)
    del source
    others = [torch.zeros(MIB).pin_memory() for _ in range(3)]
    assert torch.equal(target.cpu(), torch.arange(MIB, dtype=torch.float32))
    assert len(others) == 3


def test_copies_from_other_memory_take_it_as_it_is(module: ModuleType, device: torch.device) -> None:
    module.schedule("lazy")
    source = torch.ones(4)
    target = source.to(device, non_blocking=True)
    source.zero_()
    assert target.tolist() == [1.0] * 4


def test_two_devices(module: ModuleType) -> None:
    assert torch.accelerator.device_count() == 2
    x = torch.ones(4, device="testacc:0")
    y = x.to("testacc:1") + 1
    assert y.device.index == 1
    assert y.to("testacc:0").add(x).tolist() == [3.0] * 4
    with pytest.raises(RuntimeError, match="device"):
        x + y


def test_generators_are_seeded_and_saved(device: torch.device) -> None:
    torch.manual_seed(3)
    first = torch.rand(4, device=device)
    state = torch.get_device_module(device).get_rng_state()
    second = torch.rand(4, device=device)
    torch.get_device_module(device).set_rng_state(state)
    assert torch.equal(torch.rand(4, device=device), second)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, device=device), first)
    own = torch.Generator(device).manual_seed(5)
    drawn = torch.rand(4, device=device, generator=own)
    assert not torch.equal(drawn, first)
    assert torch.equal(torch.rand(4, device=device, generator=torch.Generator(device).manual_seed(5)), drawn)


def test_autocast_and_the_gradient_scaler(device: torch.device) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**4)
    before = model.weight.detach().clone()
    with torch.autocast(device.type, torch.bfloat16):
        found = model(torch.randn(3, 8, device=device))
    assert found.dtype == torch.bfloat16
    scaler.scale(found.float().square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(model.weight, before)


def test_gradients_come_on_threads_of_the_device(device: torch.device) -> None:
    import threading

    threads = []
    x = torch.ones(3, device=device, requires_grad=True)
    x.register_hook(lambda _: threads.append(threading.get_ident()))
    (x * 2).sum().backward()
    assert threads != [threading.get_ident()]


def test_what_went_wrong_on_the_device_is_raised_where_the_host_waits(module: ModuleType, device: torch.device) -> None:
    index = torch.tensor([7], device=device)
    torch.ones(3, device=device)[index]  # unlike on the host, nobody has looked at the index yet
    with pytest.raises(RuntimeError, match="a kernel failed on the device"):
        module.synchronize()


def test_the_host_cannot_read_its_memory() -> None:
    program = """
        from tests import accelerator
        accelerator.install()
        import ctypes, torch
        x = torch.ones(4, device="testacc")
        print(x.tolist(), flush=True)
        ctypes.string_at(x.data_ptr(), 4)
        print("read", flush=True)
    """
    lines = "\n".join(line.strip() for line in program.splitlines())
    done = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "[1.0, 1.0, 1.0, 1.0]\n"
    assert done.returncode < 0
