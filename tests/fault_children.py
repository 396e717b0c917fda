"""Faults that need a process of their own. Each function runs there, and returns what the user sees."""

import faulthandler
import inspect
import os
import resource
import signal
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import torch_lms
from tests.fault_rig import Training, check_books, numbers_after, session_now, told, under_way
from tests.injection import NthCall, disk_calls, moves_in_python, starts_of_copies, without_tmpfile
from torch_lms.machine.memory import read_host_memory
from torch_lms.runtime.malloc import Heap

MB = 1 << 20
_HANGS_AFTER_S = 60
_SOURCES = str(Path(torch_lms.__file__).parent)


# -- limits of the kernel ----------------------------------------------------------------------------------------------


def file_size_limit(directory: Path) -> str:
    """RLIMIT_FSIZE: the spill file cannot grow, until the limit is raised."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    with under_way(directory, limit="1GB") as run:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40 << 10, hard))
        session_now().set_limit(0)
        sees = told(torch_lms.StoreFullError, run.step, 1, words="Nothing is lost.*RLIMIT_FSIZE")
        check_books()
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        torch_lms.step()
    return sees


def memory_limit(directory: Path) -> str:
    """RLIMIT_DATA below what the limit allows: what can leave leaves, a result that never fits is made in pieces, and
    what cannot be cut is said.
    """
    torch.set_num_threads(1)
    torch.ones(64, 64) @ torch.ones(64, 64)
    with under_way(directory, limit="64GB") as run:
        allowed = read_host_memory().data_used + 100 * MB
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))
        kept = [torch.full((2 * MB,), float(number)) for number in range(24)]  # 200 MB
        assert torch_lms.stats().recoveries > 0
        run.step(1)
        assert run.equals(numbers_after(2))
        wide = torch.ones(10, 1000).expand(10_000, 10, 1000)
        assert wide.contiguous().shape == wide.shape  # 400 MB
        assert torch_lms.stats().in_pieces == 1
        sees = told(torch_lms.WorkingSetError, partial(wide.cumsum, 0), words="smaller batch")
        for number, tensor in enumerate(kept):
            assert tensor.min() == tensor.max() == number
        kept.clear()
        del wide, tensor
    return sees


# -- signals -----------------------------------------------------------------------------------------------------------


def trains_for_ever(directory: Path) -> str:
    """Says so once it pages, and never ends by itself."""
    torch.set_num_threads(1)
    torch_lms.enable(limit=0, min_size=1, spill_dir=directory)
    run = Training(width=512)
    number = 0
    while True:
        run.step(number)
        number += 1
        if number == 3:
            assert torch_lms.stats().evictions > 0
            print("under way", flush=True)


def trains_for_ever_in_a_named_file(directory: Path) -> str:
    """The same where the file system has no nameless files."""
    with patch.object(os, "open", without_tmpfile(os.open)):
        return trains_for_ever(directory)


def dies_before_its_file_is_unlinked(directory: Path) -> str:
    """Killed at the only moment at which the spill file has a name."""

    def killed(path: str | os.PathLike[str], **_: Any) -> None:
        assert Path(path).is_relative_to(directory)
        os.kill(os.getpid(), signal.SIGKILL)

    with patch.object(os, "open", without_tmpfile(os.open)), patch.object(os, "unlink", killed):
        return trains_for_ever(directory)


# -- interrupts --------------------------------------------------------------------------------------------------------


def interrupts_at_the_start_of_copies(directory: Path) -> str:
    """KeyboardInterrupt when a copy has begun, but nobody has been told yet. The disk takes its time over that copy."""
    delays, read = [0.0], os.preadv

    def after(start: Callable[..., Any], *args: Any) -> None:
        delays.append(0.02)
        start(*args)
        raise KeyboardInterrupt

    def slow(*args: Any) -> int:
        time.sleep(delays.pop() if delays else 0)
        return read(*args)

    counts = []
    for name in ("write", "read"):
        with moves_in_python(), under_way(directory) as run, disk_calls("preadv", slow):
            number, interrupted = 0, True
            while interrupted:
                number, interrupted = number + 1, False
                with starts_of_copies(name, partial(NthCall, number=number, instead=after)) as copies:
                    try:
                        run.step(1)
                    except KeyboardInterrupt:
                        interrupted = True
                assert interrupted == (copies.calls >= number)
                check_books()
                run.restore()
            counts.append(number - 1)
    assert min(counts) > 20
    return f"KeyboardInterrupt, at each of {counts[0]} writes and {counts[1]} reads"


# -- Ctrl-C at every place where Python looks for signals --------------------------------------------------------------

Place = tuple[str, int, str]


class SignalAt:
    """Sends this process a real SIGINT as a call from, or into, LMS begins: there Python looks for signals.

    Args:
        place: the line of the caller and the function that it calls; None only counts.
        number: at which of its calls.
    """

    def __init__(self, place: Place | None = None, number: int = 1) -> None:
        self.found: Counter[Place] = Counter()
        self.is_sent = False
        self._place, self._number = place, number

    def __enter__(self) -> "SignalAt":
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: types.FrameType, event: str, _: object) -> None:
        caller = frame.f_back
        if event != "call" or caller is None or _resumes(frame):
            return
        if _SOURCES not in caller.f_code.co_filename and _SOURCES not in frame.f_code.co_filename:
            return
        place = (caller.f_code.co_filename, caller.f_lineno, frame.f_code.co_name)
        self.found[place] += 1
        if place == self._place and self.found[place] == self._number:
            sys.settrace(None)
            self.is_sent = True
            signal.raise_signal(signal.SIGINT)


def _resumes(frame: types.FrameType) -> bool:
    """Whether this is a generator going on: what is raised here would pass by its ``finally``, unlike a signal."""
    return bool(frame.f_code.co_flags & inspect.CO_GENERATOR) and frame.f_lasti > 10


def interrupts_everywhere(directory: Path) -> str:
    """One SIGINT per step, each at another place; then the step again."""
    torch.set_num_threads(1)
    heap_trims = patch.object(Heap, "_is_too_much", return_value=True)  # else the process's memory decides, as it is
    with heap_trims, under_way(directory, policy="reactive") as run:  # which goes the same way in each step
        run.step(1)
        run.restore()
        with SignalAt() as counted:
            run.step(1)
        reached = 0
        for (file, line, callee), calls in counted.found.items():
            faulthandler.dump_traceback_later(_HANGS_AFTER_S, exit=True)
            run.restore()
            where = f"{file.removeprefix(_SOURCES)}:{line} calls {callee}"
            try:
                reached += _is_interrupted(run, (file, line, callee), (calls + 1) // 2)
                check_books()
                run.restore()
                run.step(1)
                check_books()
                assert run.equals(numbers_after(2))
            except BaseException as error:
                raise AssertionError(f"after Ctrl-C where {where}") from error
        faulthandler.cancel_dump_traceback_later()
        assert reached > 0.95 * len(counted.found), f"{reached} of {len(counted.found)} places were reached again"
    return f"KeyboardInterrupt, at each of {reached} places"


def _is_interrupted(run: Training, place: Place, number: int) -> bool:
    """Whether a step got to ``place``, where the user must see its SIGINT.

    Not every step does: how long copies take decides what goes by the native interposer.
    """
    for _ in range(10):
        with SignalAt(place, number) as interrupt:
            try:
                run.step(1)
            except KeyboardInterrupt:
                return True
        assert not interrupt.is_sent, "the SIGINT was lost"
        run.restore()
        number = 1
    return False


def interrupt_while_waiting(directory: Path) -> str:
    """SIGINT while a copy is waited for; and when the wait has just taken a lock, which must not stay locked."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(_HANGS_AFTER_S / 4, exit=True)
    write, slow = os.pwrite, threading.Event()

    def held_up(call: Callable[..., int], *args: Any) -> int:
        os.kill(os.getpid(), signal.SIGINT)  # by an I/O thread: the main thread waits, or will in a moment
        slow.wait(0.2)
        return call(*args)

    with under_way(directory) as run:
        with disk_calls("pwrite", NthCall(write, 3, held_up)):
            sees = told(KeyboardInterrupt, run.step, 1)
        check_books()
        run.restore()
        interrupted = _interrupted_once(threading.Condition.__enter__)
        with patch.object(threading.Condition, "__enter__", interrupted), suppress(KeyboardInterrupt):
            run.step(1)
        check_books()
    faulthandler.cancel_dump_traceback_later()
    return sees


def _interrupted_once(enter: Callable[..., bool]) -> Callable[..., bool]:
    """``Condition.__enter__``: the first time that LMS waits for an event, a SIGINT finds its lock just taken."""
    found: list[str] = []

    def interrupted(condition: threading.Condition) -> bool:
        taken = enter(condition)
        caller = sys._getframe(2).f_code.co_filename  # behind `Event.wait`
        if not found and threading.current_thread() is threading.main_thread() and caller.startswith(_SOURCES):
            found.append(caller)
            signal.raise_signal(signal.SIGINT)
        return taken

    return interrupted
