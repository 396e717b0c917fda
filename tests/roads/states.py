"""The states in which a session can meet a tensor, and the other arguments of a call."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torch_lms.runtime.api import Lms

SIDE = 4
MIB = 1 << 20

_NUMBERS = [
    [0.05 + 0.01 * (SIDE * row + column) + 0.6 * (row == column) for column in range(SIDE)] for row in range(SIDE)
]
"""Between 0 and 1, all different, with a dominant diagonal: in the domain of most functions."""

_INTEGERS = [[(row + column) % SIDE for column in range(SIDE)] for row in range(SIDE)]
"""Valid as indices, and as lengths but for the zeros."""


class Plain(torch.Tensor):
    """A subclass without a dispatch of its own."""


class Dispatching(torch.Tensor):
    """A subclass that dispatches, and has bytes of its own (``_make_subclass``)."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_dispatch__(func, types, args, kwargs or {})


def unseen() -> torch.Tensor:
    """Made by a constructor that shows no operation."""
    return torch.tensor(_NUMBERS)


def made() -> torch.Tensor:
    """Made by an operation."""
    return unseen() * 1


def _foreign() -> torch.Tensor:
    return torch.frombuffer(bytearray(np.array(_NUMBERS, np.float32).tobytes()), dtype=torch.float32).view(SIDE, SIDE)


def _view() -> torch.Tensor:
    part = torch.zeros(SIDE + 2, 3 * SIDE)[1 : SIDE + 1, 2 : 2 * SIDE + 2 : 2]
    return part.copy_(unseen()).t()


def _integers(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(_INTEGERS, dtype=dtype) * 1


def _bools() -> torch.Tensor:
    return torch.tensor(_INTEGERS) > 1


def _evict(lms: Lms, x: torch.Tensor) -> None:
    lms.reclaim()


def _fetch(lms: Lms, x: torch.Tensor) -> None:
    lms.reclaim()
    x.sum()


def _leave(lms: Lms, x: torch.Tensor) -> None:
    pass


@dataclass(frozen=True, slots=True)
class State:
    """What a tensor is and has gone through when it is handed to a call.

    Attributes:
        name: for people.
        make: a new tensor, always with the same content.
        inside: whether it is made during the session, not before.
        prepare: what happens between its making and the call.
        limit: of the session.
        kind: of its numbers; calls that suit one state suit the others of its kind.
        is_first_only: whether only calls with the tensor as first argument are of interest.
    """

    name: str
    make: Callable[[], torch.Tensor]
    inside: bool = True
    prepare: Callable[[Lms, torch.Tensor], None] = _evict
    limit: int = 0
    kind: str = "numbers"
    is_first_only: bool = False


STATES = {
    state.name: state
    for state in (
        State("away", made),
        State("unseen", unseen, prepare=_leave),
        State("foreign", _foreign, prepare=_leave, is_first_only=True),
        State("before", unseen, inside=False, prepare=_leave),
        State(
            "parameter before", lambda: torch.nn.Parameter(unseen()), inside=False, prepare=_leave, is_first_only=True
        ),
        State("fetched", made, prepare=_fetch, limit=MIB, is_first_only=True),
        State("view", _view, is_first_only=True),
        State("parameter", lambda: torch.nn.Parameter(made()), is_first_only=True),
        State("subclass", lambda: made().as_subclass(Plain), is_first_only=True),
        State("dispatching", lambda: torch.Tensor._make_subclass(Dispatching, made())),
        State("int64", lambda: _integers(torch.int64), kind="int64"),
        State("int32", lambda: _integers(torch.int32), kind="int32"),
        State("uint8", lambda: _integers(torch.uint8), kind="uint8"),
        State("bool", _bools, kind="bool"),
        State("int64 rebuilt", lambda: copy.deepcopy(_integers(torch.int64)), kind="int64"),
    )
}


OTHER_ARGUMENTS: dict[str, Callable[[], Any]] = {
    "f": made,
    "i": lambda: _integers(torch.int64),
    "b": _bools,
}
"""What may stand beside the tensor in a call: numbers, indices, a mask."""
