"""The states of a page, and the ONE table of what may happen in each.

``Book.apply`` follows it: an illegal transition raises and changes nothing. Reading a page changes no state, nor does
writing one without a lower copy. The diagram in ``docs/design.md`` is made from this table.
"""

from enum import Enum


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
    """No copy: it can be recomputed, from pages that live. Costs nothing."""

    DEAD = "dead"
    """The storage died. Costs nothing; nothing may happen any more. A page under way cannot die: whoever copies it
    holds its storage."""

    @property
    def on_device(self) -> bool:
        """Whether device bytes are occupied."""
        return self in ON_DEVICE

    @property
    def in_lower_tier(self) -> bool:
        """Whether bytes of a lower tier are occupied."""
        return self in IN_LOWER_TIER


ON_DEVICE = frozenset({State.RESIDENT, State.CLEAN, State.EVICTING, State.FETCHING})
IN_LOWER_TIER = frozenset({State.CLEAN, State.EVICTING, State.EVICTED, State.FETCHING})

UNDER_WAY = frozenset({State.EVICTING, State.FETCHING})
"""Somebody is copying the page: it must be neither written nor freed, nor, while it comes, read."""


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
    FIND_COPY = "find copy"
    WRITE = "write"
    DROP = "drop"
    RECOMPUTE = "recompute"
    DIE = "die"


TRANSITIONS: dict[tuple[State, Trigger], State] = {
    (State.RESIDENT, Trigger.START_EVICT): State.EVICTING,
    (State.RESIDENT, Trigger.FIND_COPY): State.CLEAN,
    (State.RESIDENT, Trigger.DROP): State.DROPPED,
    (State.RESIDENT, Trigger.DIE): State.DEAD,
    (State.CLEAN, Trigger.WRITE): State.RESIDENT,
    (State.CLEAN, Trigger.RELEASE): State.EVICTED,
    (State.CLEAN, Trigger.DIE): State.DEAD,
    (State.EVICTING, Trigger.FINISH_EVICT): State.CLEAN,
    (State.EVICTING, Trigger.FAIL_EVICT): State.RESIDENT,
    (State.EVICTED, Trigger.START_FETCH): State.FETCHING,
    (State.EVICTED, Trigger.DIE): State.DEAD,
    (State.FETCHING, Trigger.FINISH_FETCH): State.CLEAN,
    (State.FETCHING, Trigger.FAIL_FETCH): State.EVICTED,
    (State.DROPPED, Trigger.RECOMPUTE): State.RESIDENT,
    (State.DROPPED, Trigger.DIE): State.DEAD,
}


def transition_table() -> str:
    """The table as Markdown, for the documentation."""
    rows = [f"| {s.value} | {t.value} | {n.value} |" for (s, t), n in TRANSITIONS.items()]
    return "\n".join(["| state | what happens | next |", "|---|---|---|", *rows])
