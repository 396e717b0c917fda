"""What the pager does about each event, on a device that is a table (see ``pager_rig``)."""

from collections.abc import Callable
from typing import Any

import pytest
from pager_events import Event, Exported, LimitChanged, OpBegins, OpEnds, Pinned, Reclaim, Restore, StepEnded, Unpinned
from pager_rig import Interrupt, Rig, failing, kind_and_fields, new_rig

from torch_lms.errors import InvariantError, PageLostError, StoreError, StoreFullError
from torch_lms.pager import Action, Discard, FinishEvict, FinishFetch, Release, StartEvict, StartFetch
from torch_lms.residency import State, Tier

RigOf = Callable[..., Rig]
HOST, DISK = Tier.HOST, Tier.DISK
OUT_OF_MEMORY = RuntimeError("out of memory")


def down(*pages: int, tier: Tier = DISK) -> list[Action]:
    """All start, then each is waited for and freed."""
    return [StartEvict(page, tier) for page in pages] + [
        action for page in pages for action in (FinishEvict(page), Release(page))
    ]


def up(*pages: int) -> list[Action]:
    return [StartFetch(page) for page in pages] + [FinishFetch(page) for page in pages]


def with_pages(rig: Rig, *sizes: int, first: int = 1) -> Rig:
    """Pages numbered from ``first``, each used in an operation of its own, so of different age."""
    for page, nbytes in enumerate(sizes, start=first):
        rig.create(page, nbytes)
        rig.op(reads=[page])
    return rig


def evicted(rig: Rig, *sizes: int) -> Rig:
    with_pages(rig, *sizes).tell(Reclaim())
    assert set(rig.states().values()) == {State.EVICTED}
    return rig


def grow_old(rig: Rig) -> None:
    """So many operations that no page counts as just used."""
    for _ in range(20):
        rig.op()


# -- room before the operation ---------------------------------------------------------------------------------------


def test_nothing_moves_while_all_fits(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 40, 60)
    assert rig.op(reads=[1], writes=[2]) == []
    assert rig.pager.room == 0
    assert rig.pager.counters.evictions == 0


def test_an_operation_without_pages_costs_nothing(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 100)
    assert rig.pager.op_begins((), 0) == ()
    assert rig.pager.op_ends((), ()) == ()


def test_room_for_what_an_operation_creates_is_made_before_it_runs(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 50, 50)
    assert rig.tell(OpBegins((2,), 30)) == down(1)
    rig.create(3, 30)
    assert rig.pager.book.ledger.peak_device == 100
    assert rig.tell(OpEnds((2,), ())) == []


def test_room_for_what_an_operation_uses_is_made_before_it_is_fetched(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100), 60)
    with_pages(rig, 70, first=2)
    assert rig.op(reads=[1]) == [*down(2), *up(1)]
    assert rig.pager.book.ledger.peak_device == 70


def test_no_more_leaves_than_must(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 25, 25, 25, 25)
    assert rig.op(new_bytes=30) == down(1, 2)


def test_all_copies_are_started_before_one_is_waited_for(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100), 20, 20, 20)
    assert rig.op(reads=[1, 2, 3]) == up(1, 2, 3)
    grow_old(rig)
    rig.op(writes=[1, 2, 3])
    assert rig.tell(Reclaim()) == down(1, 2, 3)


def test_more_is_created_than_the_limit(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 50)
    assert rig.op(new_bytes=1000) == down(1)


# -- who leaves ------------------------------------------------------------------------------------------------------


def test_a_clean_page_leaves_first_and_nothing_is_copied(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100), 50)
    rig.op(reads=[1])
    with_pages(rig, 50, first=2)
    grow_old(rig)
    assert rig.op(new_bytes=10) == [Release(1)]
    assert (rig.pager.counters.clean_drops, rig.pager.counters.evictions) == (1, 1)


def test_victims_by_inactivity_times_size(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 10, 60, 30)
    assert rig.op(new_bytes=5) == down(2)  # 10 x 3, 60 x 2, 30 x 1


def test_a_use_makes_young(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 50, 50)
    rig.op(reads=[1])
    assert rig.op(new_bytes=10) == down(2)


def test_what_an_operation_uses_stays(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 50, 50)
    assert rig.op(reads=[1, 2], new_bytes=50) == []


def test_what_another_running_operation_uses_stays(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 50, 25, 25)
    rig.tell(OpBegins((1,), 0))
    assert rig.tell(OpBegins((), 60)) == down(2, 3)
    rig.tell(OpEnds((1,), ()))


def test_an_unpageable_page_stays(rig_of: RigOf) -> None:
    rig = rig_of(100)
    rig.create(1, 60, unpageable="shared memory")
    with_pages(rig, 40, first=2)
    assert rig.op(new_bytes=90) == down(2)
    assert rig.tell(Reclaim()) == []


@pytest.mark.parametrize("limit", [0, 1, 10])
def test_under_a_limit_that_holds_nothing_all_leaves_but_what_is_in_use(rig_of: RigOf, limit: int) -> None:
    rig = rig_of(limit)
    for page in range(4):
        assert rig.tell(OpBegins((), 50)) == []
        rig.create(page, 50)
        assert rig.tell(OpEnds((), ())) == down(page)
    rig.tell(OpBegins((0, 3), 0))
    assert rig.pager.book.ledger.device == 100
    rig.read([0, 3])
    assert rig.tell(OpEnds((0, 3), ())) == [Release(0), Release(3)]
    assert rig.pager.book.ledger.device == 0


def test_the_limit_is_soft_for_the_operation_that_runs(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100), 80, 80)
    rig.tell(OpBegins((1, 2), 0))
    rig.read([1, 2])
    assert rig.pager.room == -60
    rig.tell(OpEnds((1, 2), ()))
    assert rig.pager.room == 20


# -- reading and writing ---------------------------------------------------------------------------------------------


def test_reading_leaves_the_lower_copy(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100), 50)
    rig.op(reads=[1])
    assert rig.state(1) is State.CLEAN
    assert rig.pager.book.ledger.disk == 50


def test_writing_gives_the_lower_copy_up(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100), 50)
    rig.tell(OpBegins((1,), 0))
    rig.write([1])
    assert rig.tell(OpEnds((1,), (1,))) == [Discard(1, DISK)]
    assert rig.state(1) is State.RESIDENT
    assert rig.pager.book.ledger.disk == 0


def test_a_written_page_is_copied_again(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100), 50)
    rig.op(writes=[1])
    assert rig.tell(Reclaim()) == down(1)
    rig.op(reads=[1])


def test_it_may_die_while_its_operation_runs(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 50, 50)
    rig.tell(OpBegins((1, 2), 0))
    assert rig.die(1) == []
    assert rig.tell(OpEnds((1, 2), (1, 2))) == []
    assert rig.pager.book[2].pins == 0


# -- tiers -----------------------------------------------------------------------------------------------------------


def test_host_first_then_disk(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(300, host=100), 60, 60, 40, 60)
    rig.tell(Reclaim())
    assert {page.id: page.tier for page in rig.pager.book} == {1: HOST, 2: DISK, 3: HOST, 4: DISK}
    assert (rig.pager.book.ledger.host, rig.pager.book.ledger.disk) == (100, 120)


def test_room_given_up_is_used_again(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100, host=60, disk=None), 60)
    rig.op(writes=[1])
    rig.die(1)
    with_pages(rig, 60, first=2)
    assert rig.tell(Reclaim()) == down(2, tier=HOST)


def test_a_full_tier_gives_up_copies_of_pages_that_stay(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100, disk=60), 60)
    with_pages(rig, 40, first=2)
    rig.tell(OpBegins((1,), 0))
    rig.create(3, 30)
    assert rig.tell(Reclaim()) == [Discard(1, DISK), *down(2)]
    assert rig.state(1) is State.RESIDENT
    rig.tell(OpEnds((1,), ()))


def test_a_copy_that_would_not_make_room_enough_is_kept(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100, disk=60), 30)
    with_pages(rig, 70, first=2)
    rig.tell(OpBegins((1,), 0))
    assert rig.tell(Reclaim()) == []
    assert rig.state(1) is State.CLEAN
    rig.tell(OpEnds((1,), ()))


def test_with_all_tiers_full_the_operation_fails_and_nothing_is_lost(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100, host=30, disk=30), 40, 40)
    with pytest.raises(StoreFullError) as error:
        rig.tell(OpBegins((2,), 30))
    assert str(error.value) == (
        "10 B more must leave the device to stay under the limit of 100 B, and no lower tier can take them (host holds "
        "0 B of at most 30 B, disk holds 0 B of at most 30 B). Nothing is lost. Raise host_limit, choose a spill_dir "
        "with more free space, or raise limit"
    )
    assert rig.pager.book[2].pins == 0
    assert rig.op(reads=[1, 2], new_bytes=20) == []


def test_pages_that_fit_leave_before_the_tiers_are_called_full(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100, disk=50), 60, 40)
    assert rig.op(new_bytes=30) == down(2)
    with pytest.raises(StoreFullError):
        rig.op(new_bytes=100)


def test_no_tier_at_all(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100, disk=None), 100)
    with pytest.raises(StoreFullError):
        rig.op(new_bytes=1)
    rig.op(writes=[1])


def test_after_an_operation_full_tiers_are_no_error(rig_of: RigOf) -> None:
    rig = rig_of(100, disk=50)
    rig.tell(OpBegins((), 0))
    rig.create(1, 200)
    assert rig.tell(OpEnds((), ())) == []
    assert rig.pager.room == -100


# -- failures --------------------------------------------------------------------------------------------------------


def test_where_a_copy_cannot_start_the_next_tier_is_tried(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100, host=100), 50)
    rig.refuse = failing(StartEvict(1, HOST))
    assert rig.tell(Reclaim()) == [StartEvict(1, HOST), *down(1)]


@pytest.mark.parametrize("event", [OpBegins((), 60), Reclaim()])
def test_where_a_copy_fails_on_the_way_the_next_tier_is_tried(rig_of: RigOf, event: Event) -> None:
    rig = with_pages(rig_of(100, host=100), 50)
    rig.refuse = failing(FinishEvict(1))
    assert rig.tell(event) == [StartEvict(1, HOST), FinishEvict(1), *down(1)]


def test_where_a_page_cannot_leave_another_does(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 50, 50)
    rig.refuse = failing(FinishEvict(1))
    assert rig.op(new_bytes=10) == [StartEvict(1, DISK), FinishEvict(1), *down(2)]
    assert rig.state(1) is State.RESIDENT


def test_a_tier_that_failed_is_asked_once_for_an_operation_and_again_for_the_next(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 100)
    rig.refuse = failing(StartEvict(1, DISK))
    with pytest.raises(StoreFullError):
        rig.op(new_bytes=10)
    assert rig.done == [StartEvict(1, DISK)]
    assert rig.op(new_bytes=10) == down(1)


def test_when_all_tiers_fail_the_error_says_why(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 100)
    rig.refuse = failing(FinishEvict(1), error=StoreError("Input/output error on /dev/sdz"))
    with pytest.raises(StoreFullError, match=r"Nothing is lost.*Input/output error on /dev/sdz"):
        rig.op(new_bytes=10)
    assert rig.states() == {1: State.RESIDENT}


def test_a_tier_that_fails_for_thousands_of_pages(rig_of: RigOf) -> None:
    """Each is tried, one after the other: that must not be a recursion."""
    rig = rig_of(3000)
    for page in range(3000):
        rig.create(page, 1)
    rig.refuse = lambda action: StoreError("broken") if isinstance(action, FinishEvict) else None
    with pytest.raises(StoreFullError):
        rig.op(new_bytes=1)


def test_a_lost_page_is_an_error_for_its_operation_alone(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100), 20, 20, 20)
    lost = PageLostError("damaged")
    rig.refuse = failing(FinishFetch(2), error=lost)
    with pytest.raises(PageLostError) as error:
        rig.tell(OpBegins((1, 2, 3), 0))
    assert error.value is lost
    assert rig.states() == {1: State.CLEAN, 2: State.EVICTED, 3: State.CLEAN}
    assert {page.pins for page in rig.pager.book} == {0}
    rig.op(reads=[1, 2, 3])


def test_a_device_without_room_gets_a_second_try_with_all_else_gone(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100), 20)
    with_pages(rig, 20, 20, first=2)
    rig.refuse = failing(StartFetch(1), error=OUT_OF_MEMORY)
    assert rig.op(reads=[1, 3]) == [StartFetch(1), *down(2), *up(1)]


def test_a_device_without_room_after_all(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100), 20, 20)
    rig.refuse = failing(StartFetch(2), error=OUT_OF_MEMORY, times=2)
    with pytest.raises(RuntimeError) as error:
        rig.tell(OpBegins((1, 2), 0))
    assert error.value is OUT_OF_MEMORY
    assert rig.states() == {1: State.CLEAN, 2: State.EVICTED}
    rig.op(reads=[1, 2])


def test_an_error_that_is_no_outcome_passes_and_leaves_the_page(rig_of: RigOf) -> None:
    """Such as a RuntimeError of the device while a page is freed: it was not, and both its copies are whole."""
    rig = evicted(rig_of(100), 50)
    rig.op(reads=[1])
    rig.refuse = raising(RuntimeError, Release(1))
    with pytest.raises(RuntimeError):
        rig.tell(Reclaim())
    assert rig.state(1) is State.CLEAN


def raising(kind: type[BaseException], wanted: Action) -> Callable[[Action], None]:
    """Unlike ``failing``, thrown into the pager, not sent to it."""

    def refuse(action: Action) -> None:
        if kind_and_fields(action) == kind_and_fields(wanted):
            raise kind

    return refuse


# -- interrupts ------------------------------------------------------------------------------------------------------


def a_bit_of_everything() -> Rig:
    """Pages in every state at rest, in both tiers, and little room."""
    rig = new_rig(100, host=60, disk=200)
    evicted(rig, 10, 20, 30, 40)
    rig.op(reads=[1, 2])
    rig.op(writes=[1])
    with_pages(rig, 30, 20, first=5)
    rig.check()
    return rig


EVENTS: dict[str, Event] = {
    "operation": OpBegins((1, 2, 3, 4), 5),
    "new bytes": OpBegins((), 80),
    "export": Exported((2, 4), "address escaped"),
    "pin": Pinned((3, 4)),
    "reclaim": Reclaim(),
    "restore": Restore((1, 2, 3, 4, 5, 6)),
    "limit": LimitChanged(0),
}


@pytest.mark.parametrize("when", ["before", "after", "error"])
@pytest.mark.parametrize("name", EVENTS)
def test_an_interrupt_at_any_action_leaves_all_in_order(name: str, when: str) -> None:
    """Before an action, or after it was done, or an error of an unknown kind instead of it."""
    event = EVENTS[name]
    count = len(a_bit_of_everything().tell(event))
    assert count
    for position in range(count):
        rig = a_bit_of_everything()

        def is_here(action: Action, rig: Rig = rig, position: int = position) -> bool:
            return len(rig.done) == position + 1

        def refuse(action: Action, is_here: Callable[[Action], bool] = is_here) -> None:
            if is_here(action):
                raise Interrupt if when == "before" else OUT_OF_MEMORY

        if when == "after":
            rig.interrupt_after = is_here
        else:
            rig.refuse = refuse
        with pytest.raises((Interrupt, RuntimeError)):
            rig.tell(event)
        rig.refuse, rig.interrupt_after = (lambda action: None), (lambda action: False)
        rig.check()
        assert {page.pins for page in rig.pager.book} == {0}
        assert not {copy for copy in rig.lower if rig.pager.book[copy].tier is None} - discarded(rig, position)
        rig.tell(event)
        rig.check()
        everyone = tuple(rig.truth)
        rig.op(reads=everyone)
        rig.read(page for page in everyone if rig.state(page).on_device)


def discarded(rig: Rig, position: int) -> set[int]:
    """Pages whose copies were just being given up when the interrupt came, and those that were to follow."""
    return {1, 2, 3, 4} if isinstance(rig.done[position], Discard) else set()


def test_an_interrupted_eviction_gives_up_what_there_is_of_the_copy(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 50)
    rig.interrupt_after = lambda action: isinstance(action, StartEvict)
    with pytest.raises(Interrupt):
        rig.tell(Reclaim())
    assert rig.done == [StartEvict(1, DISK), Discard(1, DISK)]
    assert rig.lower == {}
    assert rig.state(1) is State.RESIDENT


def test_when_freeing_was_interrupted_the_lower_copy_counts(rig_of: RigOf) -> None:
    """The device's may be gone: whoever took the page for resident would read nothing."""
    rig = with_pages(rig_of(100), 50)
    rig.interrupt_after = lambda action: isinstance(action, Release)
    with pytest.raises(Interrupt):
        rig.tell(Reclaim())
    rig.interrupt_after = lambda action: False
    assert rig.op(reads=[1]) == up(1)


def test_an_interrupt_ends_no_copy_of_another_page(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 30, 30, 30)
    rig.refuse = failing(FinishEvict(2), error=Interrupt())
    with pytest.raises(Interrupt):
        rig.tell(Reclaim())
    assert rig.states() == {1: State.EVICTED, 2: State.RESIDENT, 3: State.EVICTED}


# -- raw access ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resident", [True, False])
def test_an_exported_page_comes_back_and_stays(rig_of: RigOf, resident: bool) -> None:
    rig = evicted(rig_of(100), 50)
    if resident:
        rig.op(reads=[1])
    assert rig.tell(Exported((1,), "address escaped")) == [*([] if resident else up(1)), Discard(1, DISK)]
    assert rig.pager.book[1].unpageable == "address escaped"
    rig.write([1])  # whoever has the address, unseen
    assert rig.tell(Reclaim()) == []
    rig.op(reads=[1], new_bytes=1000)


def test_where_all_is_there_an_export_calls_for_nothing(rig_of: RigOf) -> None:
    """Whoever has it done would close the fast path."""
    rig = with_pages(rig_of(100), 30, 30)
    assert rig.pager.exported((1,), "address escaped") == ()
    assert rig.pager.invalidated((2,)) == ()
    assert rig.pager.book[1].unpageable == "address escaped"


def test_the_first_reason_for_staying_is_kept(rig_of: RigOf) -> None:
    rig = rig_of(100)
    rig.create(1, 50, unpageable="shared memory")
    rig.tell(Exported((1,), "address escaped"))
    assert rig.pager.book[1].unpageable == "shared memory"


def test_an_export_that_failed_pins_nothing(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100), 50)
    rig.refuse = failing(FinishFetch(1))
    with pytest.raises(StoreError):
        rig.tell(Exported((1,), "address escaped"))
    assert rig.pager.book[1].unpageable == ""
    assert rig.pager.book[1].pins == 0


# -- sizes, deaths, pins ---------------------------------------------------------------------------------------------


def test_a_resized_page_costs_its_new_size(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 40)
    assert rig.resize(1, 60) == []
    assert (rig.pager.book.ledger.device, rig.pager.book.ledger.live) == (60, 60)


def test_resizing_is_a_write(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100), 40)
    rig.op(reads=[1])
    assert rig.resize(1, 20) == [Discard(1, DISK)]


def test_after_it_grew_others_leave(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 50, 50)
    rig.tell(Pinned((2,)))
    assert rig.resize(2, 80) == down(1)
    rig.tell(Unpinned((2,)))


@pytest.mark.parametrize("state", [State.RESIDENT, State.CLEAN, State.EVICTED])
def test_what_died_costs_nothing(rig_of: RigOf, state: State) -> None:
    rig = with_pages(rig_of(100, host=100), 50)
    if state is not State.RESIDENT:
        rig.tell(Reclaim())
    if state is State.CLEAN:
        rig.op(reads=[1])
    assert rig.die(1) == ([] if state is State.RESIDENT else [Discard(1, HOST)])
    ledger = rig.pager.book.ledger
    assert (ledger.device, ledger.live, ledger.host, ledger.disk) == (0, 0, 0, 0)


def test_pinned_pages_come_back_and_stay(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100), 60, 60)
    assert rig.tell(Pinned((1,))) == up(1)
    assert rig.tell(Reclaim()) == []
    assert rig.op(reads=[2]) == up(2)
    assert rig.tell(Unpinned((1,))) == []
    assert rig.tell(Reclaim()) == [Release(1)]


def test_pins_nest(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 50)
    rig.tell(Pinned((1,)))
    rig.tell(Pinned((1,)))
    rig.tell(Unpinned((1,)))
    assert rig.tell(Reclaim()) == []
    rig.tell(Unpinned((1,)))
    assert rig.tell(Reclaim()) == down(1)


def test_pins_that_cannot_be_had_are_undone(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100), 50, 50)
    rig.refuse = failing(FinishFetch(2))
    with pytest.raises(StoreError):
        rig.tell(Pinned((1, 2)))
    assert {page.pins for page in rig.pager.book} == {0}


def test_when_the_pins_end_what_exceeds_the_limit_leaves(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100), 60, 60)
    rig.tell(Pinned((1, 2)))
    assert rig.pager.room == -20
    rig.tell(Unpinned((1, 2)))
    assert rig.pager.room >= 0


# -- all at once -----------------------------------------------------------------------------------------------------


def test_reclaim(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 10, 20, 30)
    rig.tell(OpBegins((2,), 0))
    rig.tell(Reclaim())
    assert rig.states() == {1: State.EVICTED, 2: State.RESIDENT, 3: State.EVICTED}
    rig.tell(OpEnds((2,), ()))
    assert rig.tell(Reclaim()) == down(2)
    assert rig.tell(Reclaim()) == []


def test_restore_heeds_no_limit(rig_of: RigOf) -> None:
    rig = evicted(rig_of(10), 50, 50)
    assert rig.tell(Restore((1, 2))) == up(1, 2)
    assert rig.pager.room == -90
    assert {page.pins for page in rig.pager.book} == {0}


def test_restore_of_what_is_there(rig_of: RigOf) -> None:
    assert with_pages(rig_of(100), 50).tell(Restore((1,))) == []


def test_what_was_restored_does_not_leave_again_for_what_is_to_be_restored(rig_of: RigOf) -> None:
    """A session that ends takes success to mean that all is back: what is not would be gone for good."""
    rig = evicted(rig_of(1000), 20, 20, 20)
    with_pages(rig, 20, 20, first=4)
    rig.refuse = failing(StartFetch(2), error=OUT_OF_MEMORY)
    rig.tell(Restore((1, 2, 3, 4)))
    assert rig.states() == {1: State.CLEAN, 2: State.CLEAN, 3: State.CLEAN, 4: State.RESIDENT, 5: State.EVICTED}


def test_what_cannot_be_restored_is_an_error(rig_of: RigOf) -> None:
    rig = evicted(rig_of(1000), 20, 20, 20)
    rig.refuse = failing(StartFetch(2), error=OUT_OF_MEMORY, times=2)
    with pytest.raises(RuntimeError):
        rig.tell(Restore((1, 2, 3)))
    assert {page.pins for page in rig.pager.book} == {0}
    rig.tell(Restore((1, 2, 3)))
    assert set(rig.states().values()) == {State.CLEAN}


def test_a_lower_limit_holds_at_once(rig_of: RigOf) -> None:
    rig = with_pages(rig_of(100), 50, 50)
    assert rig.tell(LimitChanged(60)) == down(1)
    assert rig.pager.limit == 60


def test_a_higher_limit_moves_nothing(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100), 50, 50)
    assert rig.tell(LimitChanged(1000)) == []


# -- figures ---------------------------------------------------------------------------------------------------------


def test_demand_is_the_peak_of_the_step_wherever_the_bytes_were(rig_of: RigOf) -> None:
    rig = evicted(rig_of(10), 30, 30, 30)
    rig.die(1)
    rig.tell(StepEnded())
    assert rig.pager.counters.demand_bytes == 90
    rig.tell(StepEnded())
    assert rig.pager.step_demand_bytes == 60
    assert rig.pager.counters.demand_bytes == 90  # of the largest step
    assert rig.pager.counters.steps == 2


def test_bytes_are_counted_when_they_have_moved(rig_of: RigOf) -> None:
    rig = evicted(rig_of(100), 30, 20)
    rig.refuse = failing(FinishFetch(1))
    with pytest.raises(StoreError):
        rig.op(reads=[1])
    rig.op(reads=[1])
    counters = rig.pager.counters
    assert (counters.evictions, counters.evicted_bytes) == (2, 50)
    assert (counters.fetches, counters.fetched_bytes) == (1, 30)


@pytest.mark.parametrize(("new_bytes", "source"), [(0, "free"), (5, "one"), (40, "some"), (200, "all")])
def test_where_room_came_from(rig_of: RigOf, new_bytes: int, source: str) -> None:
    rig = with_pages(rig_of(100), 25, 25, 25, 25)
    before = counted(rig)
    rig.tell(OpBegins((4,), new_bytes))
    after = counted(rig)
    assert {name: after[name] - before[name] for name in after} == {name: int(name == source) for name in after}
    rig.tell(OpEnds((4,), ()))


def counted(rig: Rig) -> dict[str, int]:
    counters: Any = rig.pager.counters
    return {name: getattr(counters, f"room_from_{name}") for name in ("free", "one", "some", "all")}


# -- validate --------------------------------------------------------------------------------------------------------


def test_validate_finds_a_page_that_may_leave_and_is_not_offered() -> None:
    rig = with_pages(new_rig(100), 50)
    rig.pager.book[1].pins = 1
    with pytest.raises(InvariantError, match=r"page 1 .*a candidate for eviction: True"):
        rig.pager.validate()


def test_validate_finds_a_wrong_book() -> None:
    rig = with_pages(new_rig(100), 50)
    rig.pager.book.ledger.device += 1
    with pytest.raises(InvariantError, match="the ledger says"):
        rig.pager.validate()
