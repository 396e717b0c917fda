"""Steps that leave their plan, and come back to it."""

from collections.abc import Sequence

import pytest

from torch_lms.planner import Speeds, make_plan
from torch_lms.policy import Plan, PlanCursor, Rejoining
from torch_lms.trace import Living, Recorder

LAYERS = 6
WEIGHTS = range(100, 100 + LAYERS)
SPARE = 200
X = 300
NBYTES = 50


class Step:
    """Follows a plan for a step of layers: each makes of a weight and the result before another, and in the end each
    weight is updated. A page that the plan does not use lives, too.
    """

    def __init__(self, first: int = X) -> None:
        self.cursor = PlanCursor(self._plan(), dict.fromkeys([*WEIGHTS, SPARE, X], NBYTES))
        self.rejoining: Rejoining | None = None
        self.followed: list[bool] = []
        self._page = first
        self._next = 1000

    @staticmethod
    def _plan() -> Plan:
        recorder = Recorder([Living(page, NBYTES) for page in (*WEIGHTS, SPARE, X)])
        page = X
        for number, weight in enumerate(WEIGHTS):
            recorder.begins("layer", [page, weight], NBYTES, float(number))
            recorder.created(Living(page := 1000 + number, NBYTES))
        for number, weight in enumerate(WEIGHTS):
            recorder.begins("update", [weight], 0, float(LAYERS + number))
            recorder.wrote([weight])
        for number in range(LAYERS - 1):
            recorder.died(1000 + number)
        recorder.finish(2.0 * LAYERS)
        return make_plan(recorder.trace(), 6 * NBYTES, recorder.numbers, Speeds(1e9, 1e9))

    def does(self, name: str, *pages: int) -> None:
        if self.rejoining is None:
            self.cursor.op_begins(name, pages)
            if self.cursor.has_diverged:
                self.rejoining = Rejoining(self.cursor)
        if self.rejoining is not None and self.rejoining.op_begins(name, pages):
            self.rejoining = None
        self.followed.append(self.rejoining is None)

    def creates(self, nbytes: int = NBYTES) -> int:
        self._next += 1
        (self.rejoining or self.cursor).created(self._next, nbytes)
        if self.rejoining is None and self.cursor.has_diverged:
            self.rejoining = Rejoining(self.cursor)
        return self._next

    def layers(self, *numbers: int, nbytes: int = NBYTES) -> None:
        for number in numbers:
            self.does("layer", self._page, WEIGHTS[number])
            self._page = self.creates(nbytes)

    def updates(self, numbers: Sequence[int] = range(LAYERS)) -> None:
        for number in numbers:
            self.does("update", WEIGHTS[number])


@pytest.fixture
def step() -> Step:
    return Step()


def test_a_step_like_the_plan_never_leaves_it(step: Step) -> None:
    step.layers(*range(LAYERS))
    step.updates()
    assert all(step.followed)
    assert step.cursor.is_done
    assert step.cursor.followed_ops == 2 * LAYERS


def test_what_is_left_out_is_passed(step: Step) -> None:
    """The result of layer 1 takes the place of that of layer 3."""
    step.layers(0, 1, 4, 5)
    step.updates()
    assert all(step.followed)
    assert step.cursor.has_rejoined
    assert not step.cursor.is_done
    assert step.cursor.position == 2 * LAYERS - 1


def test_what_the_plan_has_meanwhile_counts_as_done(step: Step) -> None:
    other = Step()
    step.layers(0, 1, 4)
    other.layers(0, 1, 2, 3, 4)
    assert [step.cursor.next_use(page) for page in WEIGHTS] == [other.cursor.next_use(page) for page in WEIGHTS]
    assert {page for page in step.cursor.due if page in WEIGHTS} == {
        page for page in other.cursor.due if page in WEIGHTS
    }
    assert step.cursor.due


def test_what_is_done_beside_does_not_matter(step: Step) -> None:
    step.layers(0, 1)
    step.does("norm", SPARE)
    step.does("another", step.creates())
    step.creates()
    step.layers(2, 3, 4, 5)
    step.updates()
    assert step.followed == [True] * 2 + [False] * 2 + [True] * (2 * LAYERS - 2)


def test_what_is_too_large_is_no_page_of_the_plan(step: Step) -> None:
    step.layers(0, 1, nbytes=NBYTES + 1)
    step.layers(2, 3, 4, 5)
    step.updates()
    assert step.cursor.outgrown is None
    assert step.followed == [True, False, False, *[True] * (2 * LAYERS - 3)]


def test_a_page_that_the_plan_does_not_use_may_take_the_place_of_one(step: Step) -> None:
    """Another batch each time, of some that live on."""
    step = Step(SPARE)
    step.layers(*range(LAYERS))
    step.updates()
    assert all(step.followed)
    assert step.cursor.is_done


def test_a_page_that_was_used_keeps_its_place(step: Step) -> None:
    step.layers(0)
    step.does("layer", SPARE, WEIGHTS[0])
    assert step.rejoining is not None


def test_a_weight_is_not_taken_for_another(step: Step) -> None:
    step.layers(*range(LAYERS))
    step.updates((3, 1, 0, 2, 4, 5))
    assert step.followed[LAYERS:] == [True, False, False, False, True, True]


def test_far_ahead_one_operation_is_not_enough(monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    """They may be the plan's by chance: three in a row are not."""
    monkeypatch.setattr("torch_lms.policy.rejoining._NEAR", 3)
    step.updates((4,))
    assert step.followed == [False]
    step.layers(0, 1, 2)
    step.updates((3, 4, 5))
    assert step.followed == [False, True, True, True, False, False, True]


def test_a_chance_is_given_up_where_it_goes_wrong(monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    monkeypatch.setattr("torch_lms.policy.rejoining._NEAR", 3)
    step.updates((2, 3))
    step.does("another", SPARE)
    step.updates((4, 5))
    assert not any(step.followed)


def test_what_died_meanwhile_is_not_known(step: Step) -> None:
    step.layers(0)
    step.does("another", SPARE)
    page = step.creates()
    assert step.rejoining is not None
    step.rejoining.died(page)
    step.rejoining.died(WEIGHTS[5])
    step.layers(1, 2, 3, 4)
    assert step.followed == [True, False, True, True, True, True]
    assert step.cursor.number_of(WEIGHTS[5]) is None
