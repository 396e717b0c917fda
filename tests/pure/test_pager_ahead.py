"""Copies that go on beside the operations that follow (N6), on a device that is a table (see ``pager_rig``)."""

from collections.abc import Callable, Sequence

import pytest
from pager_events import Invalidated, Reclaim, Restore, TransfersDone
from pager_rig import Done, Foreseeing, Interrupt, Rig, failing

from torch_lms.errors import PageLostError, StoreError
from torch_lms.pager import Discard, FinishEvict, FinishFetch, Release, StartEvict, StartFetch
from torch_lms.policy import Prefetch
from torch_lms.residency import State, Tier

DISK = Tier.DISK
NewRig = Callable[..., Rig]


@pytest.fixture
def new_rig(rig_of: NewRig) -> NewRig:
    """Makes rigs with pages 1, 2, ... of the sizes given, all away or all there."""

    def make(*sizes: int, limit: int = 100, away: bool = False) -> Rig:
        rig = rig_of(limit, policy=Foreseeing())
        for page, nbytes in enumerate(sizes, start=1):
            rig.create(page, nbytes)
        if away:
            rig.tell(Reclaim())
        return rig

    return make


def beside(
    rig: Rig, *, leaving: Sequence[int] = (), coming: Sequence[int] = (), new_bytes: int = 0, waits: bool = False
) -> Done:
    """An operation on no page, beside which copies begin."""
    rig.pager.policy.next = Prefetch(leaving, coming, waits=waits)  # type: ignore[attr-defined]
    return rig.op(new_bytes=new_bytes)


def test_a_page_leaves_beside_the_program(new_rig: NewRig) -> None:
    rig = new_rig(40)
    assert beside(rig, leaving=[1]) == [StartEvict(1, DISK)]
    assert rig.op() == []
    assert rig.tell(TransfersDone((1,))) == [FinishEvict(1)]
    assert rig.state(1) is State.CLEAN
    assert beside(rig, leaving=[1]) == [Release(1)]
    assert rig.pager.counters.evictions == 1
    assert rig.pager.counters.clean_drops == 0


def test_a_policy_may_have_the_program_wait_until_pages_have_left(new_rig: NewRig) -> None:
    rig = new_rig(30, 30)
    copied = [StartEvict(1, DISK), StartEvict(2, DISK), FinishEvict(1), Release(1), FinishEvict(2), Release(2)]
    assert beside(rig, leaving=[1, 2], waits=True) == copied
    assert rig.pager.counters.evictions == 2
    rig = new_rig(30, 30)
    rig.refuse = failing(FinishEvict(1), error=StoreError("injected"))
    beside(rig, leaving=[1, 2], waits=True)
    assert rig.states() == {1: State.RESIDENT, 2: State.EVICTED}


def test_a_page_comes_beside_the_program(new_rig: NewRig) -> None:
    rig = new_rig(40, away=True)
    assert beside(rig, coming=[1]) == [StartFetch(1)]
    assert rig.tell(TransfersDone((1,))) == [FinishFetch(1)]
    assert rig.op(reads=[1]) == []


def test_bytes_under_way_occupy_the_device(new_rig: NewRig) -> None:
    rig = new_rig(40)
    beside(rig, leaving=[1])
    assert rig.pager.room == 60
    rig = new_rig(40, away=True)
    beside(rig, coming=[1])
    assert rig.pager.room == 60


def test_whoever_needs_a_page_under_way_waits_for_it_alone(new_rig: NewRig) -> None:
    rig = new_rig(30, 30)
    beside(rig, leaving=[1, 2])
    assert rig.op(writes=[1]) == [FinishEvict(1)]
    assert rig.states() == {1: State.RESIDENT, 2: State.EVICTING}
    rig = new_rig(30, 30, away=True)
    beside(rig, coming=[1, 2])
    assert rig.op(reads=[2]) == [FinishFetch(2)]
    assert rig.states() == {1: State.FETCHING, 2: State.CLEAN}


def test_room_comes_from_what_is_leaving_first(new_rig: NewRig) -> None:
    rig = new_rig(50, 50)
    beside(rig, leaving=[2])
    assert rig.op(new_bytes=50) == [FinishEvict(2), Release(2)]
    assert rig.state(1) is State.RESIDENT


def test_where_nothing_else_is_left_pages_that_come_go_again(new_rig: NewRig) -> None:
    rig = new_rig(50, away=True)
    beside(rig, coming=[1])
    assert rig.op(new_bytes=100) == [FinishFetch(1), Release(1)]


def test_fetches_begin_in_order_and_only_where_there_is_room(new_rig: NewRig) -> None:
    rig = new_rig(40, 70, 10, away=True)
    assert beside(rig, coming=[1, 2, 3], new_bytes=5) == [StartFetch(1)]
    assert beside(rig, coming=[1, 2, 3], new_bytes=5) == []


def test_a_page_in_use_does_not_leave(new_rig: NewRig) -> None:
    rig = new_rig(40)
    rig.pager.policy.next = Prefetch([1], [])  # type: ignore[attr-defined]
    assert rig.op(reads=[1]) == []


def test_a_copy_down_that_fails_leaves_the_page_there(new_rig: NewRig) -> None:
    rig = new_rig(40)
    rig.refuse = failing(FinishEvict(1), error=StoreError("injected"))
    beside(rig, leaving=[1])
    assert rig.tell(TransfersDone((1,))) == [FinishEvict(1)]
    assert rig.state(1) is State.RESIDENT
    assert rig.pager.counters.evicted_bytes == 0


def test_a_copy_up_that_fails_is_told_to_whoever_needs_the_page(new_rig: NewRig) -> None:
    rig = new_rig(40, away=True)
    rig.refuse = failing(FinishFetch(1), error=PageLostError("injected"), times=2)
    beside(rig, coming=[1])
    rig.tell(TransfersDone((1,)))
    assert rig.state(1) is State.EVICTED
    with pytest.raises(PageLostError):
        rig.op(reads=[1])
    assert rig.op(reads=[1]) == [StartFetch(1), FinishFetch(1)]


def test_a_device_without_memory_refuses_a_page_that_nobody_needs_yet(new_rig: NewRig) -> None:
    rig = new_rig(40, 40, away=True)
    rig.refuse = failing(StartFetch(1), error=RuntimeError("out of memory"))
    assert beside(rig, coming=[1, 2]) == [StartFetch(1)]
    assert rig.states() == {1: State.EVICTED, 2: State.EVICTED}


@pytest.mark.parametrize("away", [False, True])
def test_a_page_that_died_is_gone_though_an_interrupt_came_meanwhile(new_rig: NewRig, away: bool) -> None:
    """Nobody says a second time that it died."""
    rig = new_rig(40, away=away)
    beside(rig, leaving=[] if away else [1], coming=[1] if away else [])
    rig.refuse = failing((FinishEvict, FinishFetch)[away](1), error=Interrupt())
    with pytest.raises(Interrupt):
        rig.die(1)
    assert list(rig.pager.book) == []
    assert rig.lower == {}
    rig.pager.validate()


@pytest.mark.parametrize("away", [False, True])
def test_a_page_whose_storage_died_before_its_copy_began(new_rig: NewRig, away: bool) -> None:
    rig = new_rig(40, away=away)
    beside(rig, **{"coming" if away else "leaving": [1]})
    assert rig.die(1) == [(FinishEvict, FinishFetch)[away](1), Discard(1, DISK)]
    assert not rig.pager.book


@pytest.mark.parametrize("away", [False, True])
def test_nobody_copies_memory_that_is_about_to_go(new_rig: NewRig, away: bool) -> None:
    rig = new_rig(40, away=away)
    beside(rig, **{"coming" if away else "leaving": [1]})
    assert rig.tell(Invalidated((1,))) == [(FinishEvict, FinishFetch)[away](1)]
    assert rig.state(1) is State.CLEAN


def test_to_end_is_to_wait_for_all(new_rig: NewRig) -> None:
    rig = new_rig(20, 20, 20, away=True)
    rig.op(reads=[1])
    beside(rig, coming=[2])
    assert rig.tell(Restore((1, 2, 3))) == [StartFetch(3), FinishFetch(2), FinishFetch(3)]
