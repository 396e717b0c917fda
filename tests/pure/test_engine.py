"""What the engine does around the pager, on a device that is a table (see ``pager_rig``)."""

from collections.abc import Callable
from unittest import mock

import pytest
from pager_events import Event, Exported, OpBegins, Pinned, Reclaim
from pager_rig import Interrupt, Rig

from torch_lms.pager import Action

RigOf = Callable[..., Rig]


@pytest.mark.parametrize("event", [OpBegins((1,), 60), Pinned((1,)), Exported((1,), "its address")])
@pytest.mark.parametrize("calls", range(2))
def test_an_interrupt_between_actions_leaves_no_pins(rig_of: RigOf, event: Event, calls: int) -> None:
    """It comes when the engine looks at the clock: before the first action, or later."""
    rig = rig_of(100)
    for page in (1, 2):
        rig.create(page, 50)
    rig.tell(Reclaim())
    rig.op(reads=[2])
    marks = [*[0] * calls, Interrupt(), *[0] * 10]
    with mock.patch.object(Rig, "mark", side_effect=marks), pytest.raises(Interrupt):
        rig.tell(event)
    assert not any(page.pins for page in rig.pager.book)
    rig.pager.validate()


@pytest.mark.parametrize("calls", [2, 3])
def test_an_interrupt_after_the_last_action_of_an_operation_leaves_no_pins(rig_of: RigOf, calls: int) -> None:
    test_an_interrupt_between_actions_leaves_no_pins(rig_of, OpBegins((1,), 60), calls)


def test_what_is_recorded_while_room_is_short_is_read_as_a_trace(rig_of: RigOf) -> None:
    rig = rig_of(100)
    engine = rig.engine
    rig.create(1, 80)
    engine.step_begins(is_short=True)
    assert engine.record is not None
    rig.op(reads=[1])
    rig.tell(OpBegins((1,), 50))
    rig.create(2, 50)
    engine.op_ends((1,), (1,))
    rig.die(2)
    engine.step_ended()
    engine.step_begins(is_short=False)
    assert engine.record is None
    trace = engine.trace
    assert trace is not None
    assert [(op.pages, op.writes, op.creates) for op in trace.ops] == [((0,), (), ()), ((0,), (0,), (1,))]
    assert [(page.nbytes, page.born, page.dead) for page in trace.pages] == [(80, -1, 2), (50, 1, 1)]


def test_what_works_beside_a_step_is_no_part_of_it(rig_of: RigOf) -> None:
    """Of the pages that it creates, those are that an operation of the step uses later."""
    rig = rig_of(200)
    engine, is_aside = rig.engine, False
    engine._is_aside = lambda: is_aside
    rig.create(1, 80)
    engine.step_begins(is_short=True)
    rig.op(reads=[1])
    is_aside = True
    rig.tell(OpBegins((), 30))
    rig.create(2, 20)
    rig.create(3, 10)
    engine.op_ends((), ())
    rig.op(reads=[1, 3])
    rig.die(3)
    is_aside = False
    rig.op(reads=[1, 2])
    rig.die(2)
    engine.step_ended()
    engine.step_begins(is_short=False)
    trace = engine.trace
    assert trace is not None
    assert [op.pages for op in trace.ops] == [(0,), (0, 1)]
    assert [(page.nbytes, page.born, page.dead) for page in trace.pages] == [(80, -1, 2), (20, -1, 1)]


def test_a_step_in_which_all_fits_is_not_recorded(rig_of: RigOf) -> None:
    rig = rig_of(100)
    rig.engine.step_begins(is_short=False)
    rig.create(1, 10)
    rig.op(reads=[1])
    rig.engine.step_ended()
    rig.engine.step_begins(is_short=False)
    assert rig.engine.trace is None
    assert rig.engine.timeline is None


def test_before_any_page_moves_somebody_is_told(rig_of: RigOf) -> None:
    told: list[int] = []
    rig = rig_of(100)
    rig.engine._before_moving = lambda: told.append(len(rig.done))
    rig.create(1, 50)
    rig.op(reads=[1])
    assert not told, "nothing moved"
    seen: list[Action] = rig.tell(Reclaim())
    assert seen
    assert told == [0], "before the first action"
