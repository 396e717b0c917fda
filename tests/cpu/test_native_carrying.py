"""Moves of a plan that the native interposer performs by itself: who does, what is recorded, and what goes wrong."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

import torch_lms
from tests import carrying
from tests.carrying import LIMIT, Carrying, again_and_again
from tests.fault_rig import backend_now, check_books, slot_offset, store_now, used_bytes
from tests.injection import NthCall, damage, disk_calls, failing
from tests.ways import IS_NATIVE
from torch_lms.native import load
from torch_lms.runtime.native_cpu import NativeCpuExecutor
from torch_lms.timeline import Lane

pytestmark = pytest.mark.skipif(not IS_NATIVE, reason=f"no native interposer here: {load.find().reason}")


@pytest.fixture
def expected() -> torch.Tensor:
    return carrying.expected()


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, expected: torch.Tensor) -> Iterator[Carrying]:
    monkeypatch.setenv("TORCH_LMS_PLANNING", "at-once")
    with carrying.carrying(torch.device("cpu"), expected) as session:
        yield session


def test_python_performs_few_of_the_moves(session: Carrying, expected: torch.Tensor) -> None:
    """Those that come when it looks at the heap, or with the first operation of a step."""
    assert all(map(expected.equal, session.run(4)))
    stats = session.lms.stats()
    assert stats.planned_steps == 4
    assert stats.diverged_steps == 0
    assert stats.evictions > 80
    assert session.performed < stats.evictions + stats.fetches


def test_what_is_recorded_is_as_if_python_had_moved_them(session: Carrying) -> None:
    session.run(2)
    trace, timeline, before = session.lms.trace(), session.lms.timeline(), session.lms.stats()
    session.run()
    after = session.lms.stats()
    assert [op.name for op in trace.ops].count("aten::mul_.Tensor") == 40
    assert len(timeline.levels) == len(trace.ops)
    assert max(level.resident for level in timeline.levels) <= LIMIT
    assert max(level.disk for level in timeline.levels) > LIMIT / 2
    made = {lane: [span for span in timeline.spans if span.lane is lane] for lane in Lane}
    assert abs(len(made[Lane.D2H]) - (after.evictions - before.evictions)) <= 2  # one may end in the step that follows
    assert abs(len(made[Lane.H2D]) - (after.fetches - before.fetches)) <= 2
    computed = sorted(made[Lane.COMPUTE], key=lambda span: span.start_s)
    assert sum(op.seconds for op in trace.ops) <= computed[-1].end_s - computed[0].start_s


def test_room_below_is_that_of_the_pages_there(session: Carrying) -> None:
    """Pages are born, leave, and die, and Python has never heard of them: their room is given back."""
    rooms = []
    for _ in range(6):
        session.run()
        session.lms.reclaim()
        rooms.append(used_bytes())
    assert len(set(rooms[1:])) == 1


def test_copies_cost_the_program_what_they_take_of_a_core(session: Carrying, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it uses all of them; else nothing."""
    backend = backend_now()
    assert isinstance(backend.executor, NativeCpuExecutor)
    while backend.executor.spill.effort()[1] == 0:  # as long as the program made all copies by itself
        session.run()
    worked_s, lasted_s = backend.executor.spill.effort()
    assert worked_s > 0
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert backend.overlap_penalty == pytest.approx(min(1, worked_s / lasted_s), rel=0.5)  # copies may go on
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(torch.get_num_threads() + 1))
    assert backend.overlap_penalty == 0


@pytest.mark.parametrize("number", [1, 7, 30])
@pytest.mark.parametrize("name", ["pwrite", "preadv"])
def test_a_copy_that_fails_once_is_tried_again(
    name: str, number: int, session: Carrying, expected: torch.Tensor
) -> None:
    def error(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with disk_calls(name, NthCall(getattr(os, name), number, error)) as calls:
        found = session.run()
        while calls.calls <= number and len(found) < 20:  # type: ignore[attr-defined]
            found += session.run()  # how many pages are written at once depends on time
    assert calls.calls > number  # type: ignore[attr-defined]
    check_books()
    found += session.run(3)
    assert all(map(expected.equal, found))
    assert session.lms.stats().planned_steps >= 2


def test_a_disk_that_fails_for_good_is_told(session: Carrying, expected: torch.Tensor) -> None:
    with disk_calls("preadv", failing(errno.EIO)):
        with pytest.raises(torch_lms.PageLostError, match=r"could not read back a page of .* Input/output error"):
            session.run()
        check_books()
    torch_lms.step()
    assert all(map(expected.equal, session.run(4)))


def test_a_page_damaged_on_disk_is_told(session: Carrying) -> None:
    """Though it was written at once with its neighbours: each has a checksum of its own."""

    def flip_a_bit(content: bytearray) -> None:
        content[at + 700] ^= 0x10

    pages = [torch.full((300,), float(number)) for number in range(200)]
    session.lms.reclaim()
    at = slot_offset(pages[50])
    damage(store_now(), flip_a_bit)
    with pytest.raises(torch_lms.PageLostError, match=rf"page of 1.2 kB at offset {at} .* damaged"):
        pages[50].sum()
    for number in (49, 51):
        assert pages[number].sum() == 300 * number
    pages.clear()


def test_python_waits_for_a_copy_that_takes_long(session: Carrying, expected: torch.Tensor) -> None:
    """There an interrupt reaches it."""

    def slow(call: Callable[..., int]) -> Callable[..., int]:
        def slowly(*args: object) -> int:
            time.sleep(0.01)
            return call(*args)

        return slowly

    with disk_calls("preadv", slow(os.preadv)), disk_calls("pwrite", slow(os.pwrite)):
        assert all(map(expected.equal, session.run(2)))
    assert session.performed > 40
    assert session.lms.stats().planned_steps == 2


def test_another_thread_takes_over_meanwhile(session: Carrying, expected: torch.Tensor) -> None:
    """It waits for the moves under way; then the step goes on without a plan, or with it."""
    mine = torch.arange(4096.0)

    def look() -> None:
        assert mine.sum() == 4096 * 4095 / 2
        session.lms.validate()

    def held_up(call: Callable[..., int], *args: object) -> int:
        time.sleep(0.0005)
        return call(*args)

    with again_and_again(look), disk_calls("preadv", partial(held_up, os.preadv)):
        found = session.run(6)
    assert all(map(expected.equal, found))


def test_a_fork_while_pages_move(session: Carrying, expected: torch.Tensor) -> None:
    """The child uses what was there when it began, and ends; the parent goes on."""
    is_over = threading.Event()
    codes: list[int] = []

    def fork() -> None:
        while not is_over.is_set():
            child = os.fork()
            if child == 0:
                os._exit(0 if torch.ones(3).sum() == 3 else 1)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    thread = threading.Thread(target=fork)
    thread.start()
    try:
        found = session.run(6)
    finally:
        is_over.set()
        thread.join()
    assert codes
    assert set(codes) == {0}
    assert all(map(expected.equal, found))
