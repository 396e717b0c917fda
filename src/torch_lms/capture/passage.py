"""How an operator passes through the native interposer, told at its first sight."""

from enum import IntEnum
from typing import Any

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


def passage_of(func: Any) -> tuple[Passage, bool, bool, bool]:
    """How ``func`` passes; whether it writes; whether its result is empty memory; whether it may run again after memory
    ran out.
    """
    info = describe(func)
    return _passage(func, info), bool(info.writes), info.empty, not (info.writes or info.seeded)


def _passage(func: Any, info: OpInfo) -> Passage:
    if info.opaque or info.collective or info.reads_bytes:
        return Passage.PYTHON
    if is_composite(func.name()):  # also those that take other routines while a mode is on: none is
        return Passage.INNER
    if info.retypes or not info.is_simple:
        return Passage.PYTHON
    return Passage.VIEW if info.view else Passage.PLAIN
