"""Takes our frames out of a traceback where they stand between the script and the operation that failed.

    File "train.py", line 9, in <module>                <- the script's line
    File ".../torch/_compile.py", in inner              <- how torch calls a dispatch mode
    File ".../torch_lms/capture/mode.py", in ...        <- ours
    File ".../torch/_ops.py", in __call__               <- how a mode calls the operation

Under ``python`` only the first is there. A bug of ours (an error below capture other than ``LmsError``) keeps them all.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from torch_lms.errors import LmsError

_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_CAPTURE = _PACKAGE + "capture" + os.sep
_BEFORE_MODE = ("torch/_compile.py", "torch/_dynamo/eval_frame.py")
_AFTER_MODE = ("torch/_ops.py",)


def hide_our_frames(error: BaseException) -> None:
    """Shorten the tracebacks of ``error`` and of the errors that led to it."""
    for each in list(_with_causes(error, set())):
        entries = list(_entries(each.__traceback__))
        if entries and not _is_our_bug(each, entries[-1]):
            each.__traceback__ = _linked(_without_ours(entries))


def _with_causes(error: BaseException | None, seen: set[int]) -> Iterator[BaseException]:
    """Yield ``error``, its causes and contexts, and the parts of groups, each once."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield error
    grouped = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for other in (error.__cause__, error.__context__, *grouped):
        yield from _with_causes(other, seen)


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _file(entry: TracebackType) -> str:
    return entry.tb_frame.f_code.co_filename


def _is_our_bug(error: BaseException, last: TracebackType) -> bool:
    """Whether it was raised below capture, and is neither meant for users nor a Ctrl-C that happened to come there."""
    ours = _file(last).startswith(_PACKAGE) and not _file(last).startswith(_CAPTURE)
    return ours and not isinstance(error, LmsError | KeyboardInterrupt)


def _without_ours(entries: list[TracebackType]) -> list[TracebackType]:
    """Omit the entries of capture and of what it calls, and torch's entries right before and after them."""
    kept: list[TracebackType] = []
    rest = iter(entries)
    for entry in rest:
        if not _file(entry).startswith(_CAPTURE):
            kept.append(entry)
            continue
        while kept and _file(kept[-1]).endswith(_BEFORE_MODE):
            kept.pop()
        # The same iterator goes on: all of ours below this entry are passed, too.
        beyond = next((below for below in rest if not _file(below).startswith(_PACKAGE)), None)
        if beyond is not None and not _file(beyond).endswith(_AFTER_MODE):
            kept.append(beyond)
    return kept


def _linked(entries: list[TracebackType]) -> TracebackType | None:
    """Link ``entries`` into one traceback."""
    for entry, following in zip(entries, [*entries[1:], None], strict=True):
        entry.tb_next = following
    return entries[0] if entries else None
