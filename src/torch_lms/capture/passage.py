"""How an operator passes through the native interposer, told at its first sight."""

from enum import IntEnum
from typing import Any, NamedTuple

from torch_lms.capture.schema import OpInfo, describe, is_composite


class Passage(IntEnum):
    """As ``native/csrc/interposer.h`` has it."""

    INNER = 0
    """Made of others, which come by one by one."""

    VIEW = 1
    """Touches no byte."""

    PLAIN = 2
    """Nothing need be known of its tensors but which storages they are views of."""

    PYTHON = 3
    """The dispatch mode has it."""


class Described(NamedTuple):
    """What the native interposer must know of an operator.

    Attributes:
        passage: how it passes.
        name: as plans have it.
        writes: positions of the arguments that it writes.
        is_empty: its result is memory as it came, and C++ may fill it unseen.
        is_seeded: it draws random numbers.
        takes_lists: of tensors, and treats each index by itself.
        searches: it chooses an algorithm by the memory that it finds free.
        is_repeatable: called again with the same, it gives the same bits.
        numbers_matter: the sizes of its results may depend on numbers among its arguments.
        grows: these may be far larger than sizes and numbers among its arguments tell.
    """

    passage: Passage
    name: str
    writes: list[int]
    is_empty: bool
    is_seeded: bool
    takes_lists: bool
    searches: bool
    is_repeatable: bool
    numbers_matter: bool
    grows: bool


def described(func: Any) -> Described:
    """What the native interposer must know of ``func``."""
    info = describe(func)
    writes = [position for position, _ in info.writes]
    flags = info.empty, info.seeded, bool(info.list_args), info.searches, info.repeatable
    return Described(_passage(func, info), info.name, writes, *flags, info.numbers_matter, info.grows)


def _passage(func: Any, info: OpInfo) -> Passage:
    if info.opaque or info.collective or info.reads_bytes:
        return Passage.PYTHON
    if is_composite(func.name()):  # also those that take other routines while a mode is on: none is
        return Passage.INNER
    if info.retypes or not info.is_simple:
        return Passage.PYTHON
    return Passage.VIEW if info.view else Passage.PLAIN
