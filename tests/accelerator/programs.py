"""Programs that go wrong if one wait is missing, for those waits that random programs seldom miss."""

import ctypes
import mmap
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

import torch_lms
from tests import accelerator
from tests.accelerator import control
from torch_lms.engine import engine
from torch_lms.native import load
from torch_lms.planner import Speeds
from torch_lms.runtime.accelerator import AcceleratorDevice
from torch_lms.runtime.api import Lms
from torch_lms.runtime.streams import StreamExecutor
from torch_lms.stores.copies import Write
from torch_lms.stores.host import HostStore
from torch_lms.stores.spill_file import aligned_buffer

COUNT = 1 << 18
"""Elements of a tensor: one page of a megabyte."""

SEEDS = 12
"""Schedules in which each program is run."""

MIN_SIZE = 1024

Program = Callable[[torch.device], None]


_given_up: list[object] = []
"""Memory that stays where it was, though nobody may touch it."""


class Wrong(Exception):
    """A program had other numbers than it must have."""


def full(value: float, device: torch.device) -> torch.Tensor:
    return torch.full((COUNT,), float(value), device=device)


def expect(tensor: torch.Tensor, value: float) -> None:
    """Whether all of ``tensor`` is ``value``.

    Raises:
        Wrong: it is not.
    """
    found = tensor.cpu()
    if not torch.equal(found, torch.full_like(found, value)):
        raise Wrong(f"expected {value} everywhere; got {found.unique()[:3].tolist()}")


@contextmanager
def recomputing(min_size: int = MIN_SIZE) -> Iterator[Lms]:
    """A session with room for four and a half pages, whose plans take it that moving one lasts longest."""
    with (
        mock.patch.object(engine, "Speeds", return_value=Speeds(1e5, 1e5)),
        torch_lms.session(limit=18 * COUNT, min_size=min_size) as lms,
    ):
        yield lms


def crowd(pages: int, device: torch.device) -> None:
    """Something of so many pages is there for a moment."""
    torch.zeros(pages * COUNT, device=device).add_(1)


def zero_recomputing(x: torch.Tensor, lms: Lms) -> None:
    """Write ``x``, from which a dropped page is recomputed first.

    Raises:
        Wrong: nothing was.
    """
    before = lms.stats().recomputes
    x.zero_()
    if lms.stats().recomputes == before:
        raise Wrong("nothing was recomputed")


@contextmanager
def registering(device: torch.device) -> Iterator[None]:
    """Host memory is page-locked as it is on CUDA: whoever gives it up waits for no copy. From then on nobody may touch
    it, and no other memory comes to be at its address. A real device is left to do it itself.
    """
    if not control.is_ours(device):
        yield
        return
    module = accelerator.install()

    def page_lock(_: AcceleratorDevice, nbytes: int) -> torch.Tensor:
        memory = aligned_buffer(nbytes)
        assert module.register_host(memory.ctypes.data, nbytes)
        _given_up.append(memory)
        tensor = torch.from_numpy(memory)
        weakref.finalize(tensor, give_up, memory.ctypes.data, nbytes).atexit = False
        return tensor

    def give_up(address: int, nbytes: int) -> None:
        module.unregister_host(address)
        length = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(length), 0) == 0

    with mock.patch.object(AcceleratorDevice, "page_lock", page_lock):
        yield


@contextmanager
def failing_after_a_copy() -> Iterator[None]:
    """The first copy is queued, and the event after it cannot be recorded."""
    native = load.find().native
    if native is not None:
        native.fail_next_copy()
        yield
        return
    record, copy = AcceleratorDevice.record, AcceleratorDevice.copy
    copies: list[int] = []

    def counted(device: AcceleratorDevice, *args: Any) -> None:
        copy(device, *args)
        copies.append(1)

    def failing(device: AcceleratorDevice, stream: Any) -> Any:
        if copies == [1]:
            copies.append(1)
            raise RuntimeError("injected")
        return record(device, stream)

    with mock.patch.object(AcceleratorDevice, "copy", counted), mock.patch.object(AcceleratorDevice, "record", failing):
        yield


def second_owner(device: torch.device) -> None:
    """Memory of the main stream, which LMS first sees on another: freed, it is the main stream's again."""
    module = torch.get_device_module(device)
    x = full(7, device)
    side = module.Stream(device)
    module.synchronize()
    with torch_lms.session(limit="1GB", min_size=MIN_SIZE) as lms:
        with module.stream(side):
            y = x * 1
        lms.reclaim()
        z = full(1, device)  # where x was
        expect(x, 7)
        expect(y, 7)
        expect(z, 1)


def let_go_before_an_order(device: torch.device) -> None:
    """Memory is let go of while the main stream still reads it; its home will wait, before it allocates there again.
    But LMS allocates there first, for a page that comes back.
    """
    module = torch.get_device_module(device)
    control.set_poison_at_free(device, False)
    side = module.Stream(device)
    with torch_lms.session(limit="1GB", min_size=MIN_SIZE) as lms:
        with module.stream(side):
            page = full(3, device)
        module.synchronize()
        lms.reclaim()
        module.empty_cache()
        with module.stream(side):
            short_lived = full(5, device)
        module.current_stream().wait_stream(side)
        read = short_lived.sort().values * 2
        del short_lived
        again = page + 1  # comes back, to memory of the side stream
        side.wait_stream(module.current_stream())
        expect(read, 10)
        expect(again, 4)
    control.set_poison_at_free(device, True)


def let_go_before_a_recomputation(device: torch.device) -> None:
    """The same, but LMS allocates for a page that was dropped, and is recomputed."""
    module = torch.get_device_module(device)
    control.set_poison_at_free(device, False)
    side = module.Stream(device)
    recomputes = 0
    with recomputing() as lms:
        for step in range(6):
            side.wait_stream(module.current_stream())
            with module.stream(side):
                page = full(2, device)
            module.current_stream().wait_stream(side)
            used = page.sum()
            crowd(4, device)  # there is no room for both
            with module.stream(side):
                short_lived = full(5 + step, device)
            module.current_stream().wait_stream(side)
            read = short_lived.sort().values * 2
            del short_lived
            again = page + 1
            side.wait_stream(module.current_stream())
            expect(read, 10 + 2 * step)
            expect(again, 3)
            expect(used, 2 * COUNT)
            del page, used, read, again
            lms.step()
        recomputes = lms.stats().recomputes
    control.set_poison_at_free(device, True)
    if not recomputes:
        raise Wrong("nothing was recomputed")


def constant_let_go(device: torch.device) -> None:
    """A page is recomputed on its home from another, which is recomputed there, too, though it was made on the main
    stream, from a small constant. What was kept of that is let go of at the end of the step, and its memory used again.
    """
    module = torch.get_device_module(device)
    control.set_poison_at_free(device, False)
    side = module.Stream(device)
    with recomputing(min_size=1 << 19) as lms:
        for _ in range(6):
            constant = torch.full((COUNT // 4,), 2.0, device=device)
            base = full(1, device)
            first = base.view(4, -1) + constant
            side.wait_stream(module.current_stream())
            with module.stream(side):
                page = first * 3
            del base, first, constant
            module.current_stream().wait_stream(side)
            used = page.sum()
            crowd(4, device)  # there is no room for all
            side.wait_stream(module.current_stream())
            with module.stream(side):
                again = page + 1
            del page
            lms.step()
            others = [torch.full((COUNT // 4,), 7.0, device=device) for _ in range(4)]
            module.current_stream().wait_stream(side)
            expect(again, 10)
            expect(used, 9 * COUNT)
            del again, used, others
        recomputes = lms.stats().recomputes
    control.set_poison_at_free(device, True)
    if not recomputes:
        raise Wrong("nothing was recomputed")


def recomputed_and_evicted(device: torch.device) -> None:
    """A dropped page is recomputed because its input is about to be written, and leaves before anything uses it."""
    with recomputing() as lms:
        for step in range(6):
            x = full(2, device)
            page = x + 1
            used = page.sum()
            crowd(4, device)  # there is no room for all
            if step == 5:  # unlike the plan
                zero_recomputing(x, lms)
                lms.reclaim()
            expect(page, 3)
            expect(used, 3 * COUNT)
            del x, page, used
            lms.step()


def written_at_home_after_a_recomputation(device: torch.device) -> None:
    """A dropped page is recomputed on its home because its input is about to be written, on that of the input."""
    written_after_a_recomputation(device, torch.get_device_module(device).current_stream())


def written_elsewhere_after_a_recomputation(device: torch.device) -> None:
    """The same on a third stream, which has read the input before, or has not."""
    for has_read in (True, False):
        third = torch.get_device_module(device).Stream(device)
        written_after_a_recomputation(device, third, has_read)


def written_after_a_recomputation(device: torch.device, writer: torch.Stream, has_read: bool = False) -> None:
    """``writer`` is the stream that writes the input, and read it before if it ``has_read``."""
    module = torch.get_device_module(device)
    side = module.Stream(device)
    with recomputing() as lms:
        for step in range(6):
            x = full(2, device)
            side.wait_stream(module.current_stream())
            with module.stream(side):
                page = x + 1
            module.current_stream().wait_stream(side)
            used = page.sum()
            crowd(4, device)  # there is no room for all
            writer.wait_stream(module.current_stream())
            with module.stream(writer):
                read = x.sum() if has_read else None
                if step == 5:  # unlike the plan
                    zero_recomputing(x, lms)
            module.current_stream().wait_stream(writer)
            expect(page, 3)
            expect(used, 3 * COUNT)
            side.wait_stream(module.current_stream())
            writer.wait_stream(module.current_stream())
            del x, page, used, read
            lms.step()


def let_go_after_a_recomputation(device: torch.device) -> None:
    """A dropped page is recomputed on its home because a third stream needs it, and the program lets go of its input,
    whose memory is used again at once where it was allocated.
    """
    module = torch.get_device_module(device)
    side, third = module.Stream(device), module.Stream(device)
    with recomputing() as lms:
        for _ in range(6):
            x = full(1, device).add_(1)  # what is written is not recomputed
            side.wait_stream(module.current_stream())
            with module.stream(side):
                page = x + 1
            module.current_stream().wait_stream(side)
            third.wait_stream(side)
            used = page.sum()
            crowd(3, device)  # there is room for one of the two
            with module.stream(third):
                again = page + 1
            read = x.sum()
            del x
            others = [full(7, device) for _ in range(2)]
            module.current_stream().wait_stream(third)
            expect(again, 4)
            expect(read, 2 * COUNT)
            expect(used, 3 * COUNT)
            side.wait_stream(module.current_stream())
            del page, used, others, again, read
            lms.step()
        recomputes = lms.stats().recomputes
    if not recomputes:
        raise Wrong("nothing was recomputed")


def slow_disk(device: torch.device) -> None:
    """A page goes to the disk in pieces, by way of two buffers, and each write takes its time."""
    move = Write._move

    def slowly(write: Write, *args: Any) -> None:
        time.sleep(0.01)
        move(write, *args)

    with (
        mock.patch.object(Write, "_move", slowly),
        mock.patch.object(StreamExecutor.__init__, "__defaults__", (COUNT // 2,)),
        torch_lms.session(limit="1GB", min_size=MIN_SIZE, host_limit=0) as lms,
    ):
        x = torch.arange(COUNT, dtype=torch.float32, device=device)
        x.add_(0)
        lms.reclaim()
        expect(x - torch.arange(COUNT, dtype=torch.float32, device=device), 0)


def fetch_given_up(device: torch.device) -> None:
    """A fetch fails once its copy is under way: the memory is freed, and the program has it next."""
    with torch_lms.session(limit="1GB", min_size=MIN_SIZE) as lms:
        x = full(3, device)
        lms.reclaim()
        torch.accelerator.synchronize(device)
        with pytest.raises(RuntimeError, match="injected"), failing_after_a_copy():
            x.add_(1)
        others = [full(5, device) for _ in range(3)]
        expect(x, 3)
        for other in others:
            expect(other, 5)


def eviction_given_up(device: torch.device) -> None:
    """An eviction fails once its copy is under way: its slot is given up, and that slab for a larger page."""
    small_slabs = mock.patch.object(HostStore.__init__, "__defaults__", (4 * COUNT, False))
    limits: dict[str, Any] = {"limit": 16 * COUNT, "min_size": MIN_SIZE, "host_limit": 12 * COUNT}
    with registering(device), small_slabs, torch_lms.session(**limits) as lms:
        x = full(3, device)
        torch.accelerator.synchronize(device)
        with pytest.raises(RuntimeError, match="injected"), failing_after_a_copy():
            lms.reclaim()
        expect(x, 3)
        del x
        larger = torch.full((3 * COUNT,), 2.0, device=device)
        lms.reclaim()
        expect(larger, 2)


def end_with_copies_under_way(device: torch.device) -> None:
    """All pages come back at the end of a session, and then its host memory goes."""
    with registering(device):
        with torch_lms.session(limit="1GB", min_size=MIN_SIZE) as lms:
            tensors = [full(n, device) for n in range(4)]
            lms.reclaim()
        for n, tensor in enumerate(tensors):
            expect(tensor, n)


PROGRAMS: dict[str, Program] = {
    program.__name__: program
    for program in (
        second_owner,
        let_go_before_an_order,
        let_go_before_a_recomputation,
        constant_let_go,
        recomputed_and_evicted,
        written_at_home_after_a_recomputation,
        written_elsewhere_after_a_recomputation,
        let_go_after_a_recomputation,
        slow_disk,
        fetch_given_up,
        eviction_given_up,
        end_with_copies_under_way,
    )
}


def difference(program: Program, device: torch.device) -> str:
    """What goes wrong with it first on ``device``, in some schedules, or could have in others; "" if nothing does."""
    for seed in range(SEEDS):
        control.schedule(device, ("lazy", "mixed", "mixed", "delayed")[seed % 4], seed)
        control.watch_races(device)
        try:
            program(device)
            torch.accelerator.synchronize(device)
            if races := control.take_races(device):
                return races[0]
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            control.schedule(device, "eager")
    return ""
