"""One call of a road, on stock PyTorch or with LMS, and everything there is to see of it."""

import ctypes
import random
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torch_lms
from tests.roads.exceptions import ADDRESSES, IDENTITIES
from tests.roads.observe import digest, error_text, fill, is_writable, observed, settled
from tests.roads.roads import Road
from tests.roads.states import OTHER_ARGUMENTS, State
from torch_lms.runtime.api import Lms

Seen = list[tuple[str, str]]
"""What was looked at, in order, and what it looked like."""

Way = Callable[[State], AbstractContextManager[Lms | None]]


_RAISED = "the error"
_numbers = count()
_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p


class _Empty(TorchDispatchMode):
    """A mode that does nothing (N22)."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def stock(state: State) -> Iterator[None]:
    """Without LMS."""
    yield None


@contextmanager
def empty_mode(state: State) -> Iterator[None]:
    """Without LMS, under a dispatch mode that does nothing."""
    with _Empty():
        yield None


@contextmanager
def paged(state: State) -> Iterator[Lms]:
    """With LMS, which evicts whatever is not in use."""
    with torch_lms.session(limit=state.limit, min_size=1) as lms:
        yield lms
        lms.validate()


def takes(road: Road, pattern: str, state: State) -> bool:
    """Whether stock PyTorch accepts such a call."""
    x = state.make()
    try:
        _call(road, pattern, x, _names(road, pattern, x))
    except Exception:
        return False
    return True


def outcome(road: Road, pattern: str, state: State, way: Way) -> Seen:
    """Call ``road`` with a tensor in ``state``, and look at everything, before and after it was evicted and written."""
    looked_at: list[tuple[str, Any]] = []
    x = None if state.inside else state.make()
    try:
        with way(state) as lms:
            x = state.make() if x is None else x
            names = _names(road, pattern, x)
            if lms is not None:
                state.prepare(lms, x)
            _look(looked_at, road, pattern, x, names, lms)
        looked_at.append(("the tensor after the session", observed(x)))
    except Exception as error:
        looked_at.append(("the end", error_text(error)))
    return [(what, digest(observation)) for what, observation in looked_at]


def has_raised(seen: Seen) -> bool:
    """Whether the call raised an error."""
    return any(what == _RAISED for what, _ in seen)


def _look(
    looked_at: list[tuple[str, Any]], road: Road, pattern: str, x: torch.Tensor, names: dict[str, Any], lms: Lms | None
) -> None:
    def look(what: str, of: Any) -> None:
        try:
            looked_at.append((what, observed(of)))
        except Exception as error:
            looked_at.append((what, error_text(error)))

    def write(what: str, how: Callable[[], Any]) -> None:
        try:
            how()
        except Exception as error:
            looked_at.append((what, error_text(error)))

    result: Any = None
    poison()
    try:
        result = _meant(road, _call(road, pattern, x, names), x)
        looked_at.append(("result", f"{type(result).__name__}{' x itself' if result is x else ''}"))
    except Exception as error:
        looked_at.append((_RAISED, error_text(error)))
    evict_and_poison(lms)
    result = settled(result)
    look("result", result)
    look("the tensor", x)
    if is_writable(result):
        write("writing through the result", lambda: fill(result))
        evict_and_poison(lms)
        look("the tensor, after a write through the result", x)
        look("the result, after a write through it", result)
    write("writing to the tensor", lambda: _change(x))
    evict_and_poison(lms)
    if is_writable(result):
        look("the result, after a write to the tensor", result)
    look("the tensor, after a write to it", x)


def evict_and_poison(lms: Lms | None) -> None:
    """Nothing that is not in use stays, and the memory given back is used by others."""
    if lms is not None:
        lms.reclaim()
    poison()


def poison() -> None:
    """Fill free memory, with another number each time: what is read from it equals nothing."""
    number = next(_numbers) % 255 + 1
    blocks = [(_libc.malloc(size), size) for size in range(64, 384, 16) for _ in range(3)]
    for address, size in blocks:
        ctypes.memset(address, number, size)
    for address, _ in blocks:
        _libc.free(ctypes.c_void_p(address))


def _names(road: Road, pattern: str, x: torch.Tensor) -> dict[str, Any]:
    """What the names in ``pattern`` stand for."""
    used = set(re.findall(r"\b[a-z]\b", pattern))
    names = {"x": x, "torch": torch, **{name: make() for name, make in OTHER_ARGUMENTS.items() if name in used}}
    if road.family == "UntypedStorage":
        names["s"] = x.untyped_storage()
    if road.family == "TypedStorage":
        names["t"] = x._typed_storage()
    return names


def _call(road: Road, pattern: str, x: torch.Tensor, names: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    return road.call(pattern, names)


def _meant(road: Road, result: Any, x: torch.Tensor) -> Any:
    """In place of an address, what is there."""
    if str(road) in ADDRESSES and isinstance(result, int):
        return memoryview((ctypes.c_byte * x.element_size()).from_address(result))
    return type(result).__name__ if str(road) in IDENTITIES else result


def _change(x: torch.Tensor) -> None:
    with torch.no_grad():
        if x.dtype is torch.bool:
            x.logical_not_()
        else:
            x.add_(1)
