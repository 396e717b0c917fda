"""The states of a page, and the ONE table of what may happen in each.

An illegal transition raises and changes nothing. The diagram in ``docs/design.md`` is made from this table.
"""

from collections.abc import Callable
from enum import Enum

from torch_lms.errors import InvalidTransition


class State(Enum):
    """Which copies of a page's bytes exist, and what they cost."""

    __hash__ = object.__hash__  # by identity, in C: states are looked up at every birth and death

    RESIDENT = "resident"
    """One copy, on the device. Costs device bytes."""

    CLEAN = "clean"
    """Two equal copies, on the device and in a lower tier. Costs both; evicting it moves nothing."""

    EVICTING = "evicting"
    """On the device, and on its way down. Costs both until the copy has ended."""

    EVICTED = "evicted"
    """One copy, in a lower tier. Costs only there."""

    FETCHING = "fetching"
    """In a lower tier, and on its way up. Costs both."""

    DROPPED = "dropped"
    """No copy: it can be made again, from pages that live. Costs nothing."""

    DEAD = "dead"
    """The storage died. Costs nothing; nothing may happen any more. A page under way cannot die: whoever copies it
    holds its storage."""

    @property
    def on_device(self) -> bool:
        """Whether device bytes are occupied."""
        return self in _ON_DEVICE

    @property
    def in_lower_tier(self) -> bool:
        """Whether bytes of a lower tier are occupied."""
        return self in _IN_LOWER_TIER


_ON_DEVICE = frozenset({State.RESIDENT, State.CLEAN, State.EVICTING, State.FETCHING})
UNDER_WAY = frozenset({State.EVICTING, State.FETCHING})
"""Somebody is copying the page: it must be neither written nor freed, nor, while it comes, read."""

_IN_LOWER_TIER = frozenset({State.CLEAN, State.EVICTING, State.EVICTED, State.FETCHING})


class Trigger(Enum):
    """What can happen to a page."""

    __hash__ = object.__hash__

    START_EVICT = "start evict"
    FINISH_EVICT = "finish evict"
    FAIL_EVICT = "fail evict"
    RELEASE = "release"
    START_FETCH = "start fetch"
    FINISH_FETCH = "finish fetch"
    FAIL_FETCH = "fail fetch"
    READ = "read"
    WRITE = "write"
    DROP = "drop"
    REMAKE = "remake"
    DIE = "die"


TRANSITIONS: dict[tuple[State, Trigger], State] = {
    (State.RESIDENT, Trigger.READ): State.RESIDENT,
    (State.RESIDENT, Trigger.WRITE): State.RESIDENT,
    (State.RESIDENT, Trigger.START_EVICT): State.EVICTING,
    (State.RESIDENT, Trigger.DROP): State.DROPPED,
    (State.RESIDENT, Trigger.DIE): State.DEAD,
    (State.CLEAN, Trigger.READ): State.CLEAN,
    (State.CLEAN, Trigger.WRITE): State.RESIDENT,
    (State.CLEAN, Trigger.RELEASE): State.EVICTED,
    (State.CLEAN, Trigger.DIE): State.DEAD,
    (State.EVICTING, Trigger.READ): State.EVICTING,
    (State.EVICTING, Trigger.FINISH_EVICT): State.CLEAN,
    (State.EVICTING, Trigger.FAIL_EVICT): State.RESIDENT,
    (State.EVICTED, Trigger.START_FETCH): State.FETCHING,
    (State.EVICTED, Trigger.DIE): State.DEAD,
    (State.FETCHING, Trigger.FINISH_FETCH): State.CLEAN,
    (State.FETCHING, Trigger.FAIL_FETCH): State.EVICTED,
    (State.DROPPED, Trigger.REMAKE): State.RESIDENT,
    (State.DROPPED, Trigger.DIE): State.DEAD,
}


def after(state: State, trigger: Trigger, story: Callable[[], str]) -> State:
    """The state that follows; ``story`` tells of the page and what it went through, for the error."""
    try:
        return TRANSITIONS[state, trigger]
    except KeyError:
        legal = ", ".join(t.value for s, t in TRANSITIONS if s is state) or "nothing"
        raise InvalidTransition(
            f"{story()}: '{trigger.value}' is not possible while '{state.value}' (possible: {legal})"
        ) from None


def transition_table() -> str:
    """The table as Markdown, for the documentation."""
    rows = [f"| {s.value} | {t.value} | {n.value} |" for (s, t), n in TRANSITIONS.items()]
    return "\n".join(["| state | what happens | next |", "|---|---|---|", *rows])
