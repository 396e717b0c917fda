"""What can go wrong while a program trains, and what becomes of it: a table of faults, each made to happen.

    python -m tests.faults               # the table
    python -m tests.faults --markdown
    python -m tests.faults --match disk  # faults whose name contains "disk"

Each fault happens to a training under way, or to a set of pages. Its function asserts what its row says: no number
lost, books that add up, a training that goes on in the same session and equals one without the fault to the bit, and no
file, descriptor, thread or page left over (see ``fault_rig``). What needs a process of its own is in
``fault_children``.
"""

import errno
import gc
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import torch
from rich.console import Console
from rich.table import Table

import torch_lms
from tests import fault_children
from tests.fault_rig import (
    STEPS,
    Oops,
    Training,
    check_books,
    in_child,
    nothing_left,
    numbers_after,
    session_now,
    shown,
    slot_offset,
    start_child,
    store_now,
    told,
    under_way,
)
from tests.injection import (
    NO_MEMORY,
    CannotMount,
    NthCall,
    calls_repeated,
    copies_in_python,
    damage,
    disk_calls,
    failing,
    moves_in_python,
    operation_without_memory,
    short,
    small_disk,
    waits_for_copies,
    without_tmpfile,
)
from torch_lms.capture.schema import describe
from torch_lms.engine import engine
from torch_lms.errors import ForkedPageError, PageLostError, StoreError, StoreFullError
from torch_lms.planner import Speeds
from torch_lms.runtime import api, cpu, forks, limits, native_cpu
from torch_lms.stores.disk import DiskStore

MB = 1 << 20
NOBODY = 65534

NOTHING = "nothing"
PAGE = "that page, which is named"
GOES_ON = "the training goes on"
SAME = "session goes on, books valid, same numbers"
FRESH = "the next session works, same numbers"
ENDED = "the process has ended, no file is left"


@dataclass(frozen=True, slots=True)
class Row:
    """A fault that was met.

    Attributes:
        fault: what happened.
        sees: what the user sees of it: an exception and the beginning of its message, or that the training goes on.
        lost: what is lost.
        after: the state afterwards.
    """

    fault: str
    sees: str
    lost: str = NOTHING
    after: str = SAME


class NotHere(Exception):
    """This machine or this user cannot make the fault happen."""


# -- the disk ----------------------------------------------------------------------------------------------------------


def disk_full(directory: Path) -> Row:
    """Others fill a small file system before the first page leaves, and remove their file later."""
    with _small_disk(directory, 16 * MB) as disk:
        others = disk / "others"
        with under_way(disk, limit="1GB") as run:
            with others.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize)
            session_now().set_limit(0)
            sees = told(StoreFullError, run.step, 1, words="Nothing is lost.*spill_dir with more free space")
            check_books()
            others.unlink()
            torch_lms.step()
    return Row("spill disk full (a small tmpfs, filled by others)", sees)


def disk_too_small(directory: Path) -> Row:
    """It cannot hold what must leave; a higher limit, as the message says, helps."""
    with _small_disk(directory, 32 << 10) as disk, under_way(disk, limit="1GB") as run:
        session_now().set_limit(0)
        sees = told(StoreFullError, run.step, 1, words="Nothing is lost.*or raise limit")
        check_books()
        session_now().set_limit(14 << 10)
    return Row("spill disk too small (a tmpfs of 32 KiB), then limit raised", sees)


def disk_full_by_injection(directory: Path) -> Row:
    """No block can be allocated."""
    sees = _while_disk_fails(directory, "posix_fallocate", errno.ENOSPC, "Nothing is lost.*no room for", limit="1GB")
    return Row("spill file cannot grow (ENOSPC injected)", sees)


def disk_full_while_writing(directory: Path) -> Row:
    """Blocks were promised, yet a write finds none."""
    sees = _while_disk_fails(directory, "pwrite", errno.ENOSPC, "Nothing is lost.*no room for")
    return Row("disk full in the middle of a write (ENOSPC injected)", sees)


def disk_error_on_write(directory: Path) -> Row:
    """The disk fails for a step."""
    sees = _while_disk_fails(directory, "pwrite", errno.EIO, "Nothing is lost.*Input/output error")
    return Row("disk error on write (EIO injected)", sees)


def one_write_fails(directory: Path) -> Row:
    """Another page leaves instead."""

    def error(_: object, *__: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with under_way(directory, limit=6000) as run:
        with disk_calls("pwrite", NthCall(os.pwrite, 2, error)) as pwrite:
            run.step(1)
            assert pwrite.calls > 2
        check_books()
        assert run.equals(numbers_after(2))
    return Row("disk error on one write, under a limit that leaves a choice", GOES_ON)


def disk_error_on_read(directory: Path) -> Row:
    """The bytes are still there, and are read when the disk works again."""
    with under_way(directory) as run, disk_calls("preadv", failing(errno.EIO)):
        sees = told(PageLostError, run.step, 1, words="could not read back a page of .* Input/output error")
        check_books()
        gc.collect()  # see `errors_hold_nothing`
    return Row("disk error on read (EIO injected)", sees)


def disk_error_when_the_session_ends(directory: Path) -> Row:
    """What cannot be brought back stays away, and LMS stays on."""
    with under_way(directory):
        with disk_calls("preadv", failing(errno.EIO)):
            sees = told(PageLostError, torch_lms.disable, words="could not read back")
        assert torch_lms.is_enabled()
        check_books()
    return Row("disk error while disable() brings everything back", sees, after="LMS stays on, " + SAME)


def disk_mended_within_a_step(directory: Path) -> Row:
    """As after a failed step that is repeated at once: no boundary of steps has been seen meanwhile."""
    with under_way(directory) as run:
        with disk_calls("pwrite", failing(errno.ENOSPC)):
            sees = told(StoreFullError, run.step, 1)
        run.restore()
        run.step(1)
    return Row("disk full, and room again before the step is repeated", sees)


def disk_is_slow(directory: Path, name: str) -> Row:
    """Each call of ``os.pwrite`` (or ``preadv``) moves 512 bytes."""
    buffered = partial(DiskStore, direct=False)  # so few bytes are too few for direct I/O on some disks
    with copies_in_python(), patch.object(api, "DiskStore", buffered), under_way(directory) as run:
        calls = NthCall(short(getattr(os, name), most=512), 0, failing(errno.EIO))
        with patch.object(os, name, calls):
            run.step(1)
        stats = torch_lms.stats()
        assert calls.calls > 2 * (stats.evictions if name == "pwrite" else stats.fetches) / STEPS
        check_books()
        assert run.equals(numbers_after(2))
    return Row(f"os.{name} moves less than asked, call after call", GOES_ON)


def _while_disk_fails(directory: Path, name: str, code: int, words: str, limit: int | str = 0) -> str:
    with under_way(directory, limit=limit) as run:
        fails = disk_calls if name == "pwrite" else partial(patch.object, os)
        with fails(name, failing(code)):
            if limit:
                session_now().set_limit(0)
            sees = told(StoreFullError, run.step, 1, words=words)
            check_books()
        gc.collect()  # see `errors_hold_nothing`
        torch_lms.step()
    return sees


@contextmanager
def _small_disk(directory: Path, nbytes: int) -> Iterator[Path]:
    try:
        with small_disk(directory, nbytes):
            yield directory
    except CannotMount as error:
        raise NotHere(str(error)) from error


# -- what is on disk ---------------------------------------------------------------------------------------------------


def damaged_page(directory: Path) -> Row:
    """One bit of one page has changed on disk."""

    def flip_a_bit(content: bytearray) -> None:
        content[at + MB + 12345] ^= 0x10

    with under_way(directory):
        pages = [torch.arange(300_000, dtype=torch.float32) + number for number in range(3)]
        at = slot_offset(pages[1])
        damage(store_now(), flip_a_bit)
        for _ in range(2):
            sees = told(PageLostError, pages[1].sum, words=rf"page of 1\.2 MB at offset {at} .* damaged")
        sees_at_the_end = told(PageLostError, torch_lms.disable, words=f"at offset {at} ")
        assert sees_at_the_end == sees
        check_books()
        for number in (0, 2):
            assert torch.equal(pages[number], torch.arange(300_000, dtype=torch.float32) + number)
        pages.clear()
        gc.collect()  # see `errors_hold_nothing`
    return Row("a page damaged on disk (one bit)", sees, lost=PAGE, after="other pages intact, " + SAME)


def spill_file_cut_short(directory: Path) -> Row:
    """Somebody truncates the spill file: what was there is lost, and said to be; what comes later is not."""
    with under_way(directory):
        lost = [torch.full((300_000,), float(number)) for number in range(3)]
        os.ftruncate(store_now().file.fd, min(map(slot_offset, lost)))
        sees = ""
        for tensor in lost:
            sees = told(PageLostError, tensor.sum, words="the file ends at")
        check_books()
        lost.clear()
        del tensor
        gc.collect()  # see `errors_hold_nothing`
        later = [torch.full((300_000,), float(number)) for number in range(3)]
        assert [tensor.sum().item() for tensor in later] == [0, 300_000, 600_000]
        later.clear()
    return Row("the spill file truncated while the session runs", sees, "the pages beyond, each named", SAME)


def spill_directory_deleted(directory: Path) -> Row:
    """The open file needs no directory."""
    spill = directory / "spill"
    spill.mkdir()
    with under_way(spill) as run:
        shutil.rmtree(spill)
        run.step(1)
        assert run.equals(numbers_after(2))
        spill.mkdir()  # `under_way` compares what lies there
    return Row("the spill directory deleted while the session runs", GOES_ON)


def spill_file_unreadable_by_others(directory: Path) -> Row:
    """Under an umask that hides nothing, with a name for a moment and without."""
    modes: list[int] = []
    unlink = os.unlink

    def noticed(path: str | os.PathLike[str], **at: Any) -> None:
        modes.append(stat.S_IMODE(os.stat(path, **at).st_mode))
        unlink(path, **at)

    before = os.umask(0)
    try:
        for opening in (os.open, without_tmpfile(os.open)):
            with patch.object(os, "open", opening), patch.object(os, "unlink", noticed), under_way(directory):
                status = os.fstat(store_now().file.fd)
                assert (stat.S_IMODE(status.st_mode), status.st_nlink) == (0o600, 0)
                assert os.listdir(directory) == []
                if os.geteuid() == 0:
                    _assert_closed_to_others(store_now().file.fd)
    finally:
        os.umask(before)
    assert modes == [0o600]
    return Row("another user looks for the spill file (umask 0)", "Permission denied: mode 0600, no name")


def _assert_closed_to_others(fd: int) -> None:
    os.seteuid(NOBODY)
    try:
        said = told(PermissionError, open, f"/proc/self/fd/{fd}", "rb")
    finally:
        os.seteuid(os.getuid())
    assert "Permission denied" in said


def hostile_names(directory: Path) -> Row:
    """Names like ours that are not our files: links, a directory, files of the living and of other users."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    secret = directory / "secret"
    secret.write_text("secret")
    name = f"torch-lms-spill-{ended.pid}"
    (directory / f"{name}-01").symlink_to(secret)
    (directory / f"{name}-02").mkdir()
    (directory / f"torch-lms-spill-{os.getpid()}-03").write_text("of a living process")
    (directory / f"{name}-04.txt").write_text("of another program")
    if os.geteuid() == 0:
        foreign = directory / f"{name}-05"
        foreign.write_text("of another user")
        os.chown(foreign, NOBODY, NOBODY)
    before = _contents(directory)
    with under_way(directory):
        assert _contents(directory) == before
    assert _contents(directory) == before
    return Row("links and files of others with names like ours in the spill directory", "they stay as they are")


def hostile_file_in_our_place(directory: Path) -> Row:
    """Somebody guessed the name of the spill file, and put a link or a file there."""
    secret = directory / "secret"
    secret.write_text("secret")
    ours = directory / f"torch-lms-spill-{os.getpid()}-feed"
    sees = set()
    with patch.object(os, "open", without_tmpfile(os.open)), patch.object(secrets, "token_hex", lambda _: "feed"):
        for plant in (partial(ours.symlink_to, secret), partial(ours.write_text, "x")):
            plant()
            before = _contents(directory)
            with nothing_left(directory):
                sees.add(told(StoreError, partial(torch_lms.enable, spill_dir=directory), words="File exists"))
            assert _contents(directory) == before
            ours.unlink()
    with under_way(directory):
        pass
    (row,) = (Row("a link or a file where the spill file would be made", said, after=FRESH) for said in sees)
    return row


def _contents(directory: Path) -> dict[str, str]:
    """What lies there: of links their targets, of files their text."""
    found = {}
    for path in directory.iterdir():
        if path.is_symlink():
            found[path.name] = os.readlink(path)
        else:
            found[path.name] = "a directory" if path.is_dir() else path.read_text()
    return found


# -- memory ------------------------------------------------------------------------------------------------------------


def memory_refused_to_an_operation(directory: Path) -> Row:
    """Each operation of a step in turn finds no memory. It runs again, or its error is the user's (N9)."""
    recovered = refused = views = number = 0
    with under_way(directory, recompute=False) as run:
        run.step(1)  # sizes are known from now on
        run.restore()
        while True:
            number += 1
            before = torch_lms.stats().recoveries
            error = ""
            with operation_without_memory(number) as (operations, found):
                try:
                    run.step(1)
                except RuntimeError as raised:
                    error = str(raised)
            if error:
                assert error == NO_MEMORY
                refused += 1
            else:
                assert run.equals(numbers_after(2))
            check_books()
            if operations.calls < number:
                break
            recovered += torch_lms.stats().recoveries - before
            run.restore()
            if recovered + refused + views < number:  # the page came, to show it
                assert describe(found[0]).view
                views += 1
            assert recovered + refused + views == number
        gc.collect()  # see `errors_hold_nothing`
    assert recovered
    assert refused
    sees = (
        f"{GOES_ON} ({recovered + views} ran again); PyTorch's RuntimeError for views and writes in place ({refused})"
    )
    return Row(f"no memory in an operation (each of the {number - 1} of a step in turn)", sees)


def memory_refused_to_a_page(directory: Path) -> Row:
    """There is no memory to bring a page back into: once, then for good."""
    with under_way(directory) as run:
        with _memory(NthCall(cpu.fill_storage, 1, _refused)):
            run.step(1)
        assert run.equals(numbers_after(2))
        with _memory(_refused):
            sees = told(torch_lms.WorkingSetError, run.model[0].weight.sum, words="aten::sum.*smaller batch")
    return Row("no memory for a page that comes back", sees)


def memory_refused_to_a_recomputation(directory: Path) -> Row:
    """There is no memory to recompute a page: once, then for good. The link is so slow that what can be is dropped."""
    with patch.object(engine, "Speeds", lambda *_: Speeds(1e5, 1e5)), under_way(directory) as run:
        for _ in range(4):  # until there is a plan, and a step that follows it
            run.restore()
            run.step(1)
        made = torch_lms.stats().recomputes
        assert made
        run.restore()
        refused_once = NthCall(lambda: False, 1, lambda *_: True)
        with calls_repeated(refused_once):
            run.step(1)
        assert refused_once.calls > 1
        assert torch_lms.stats().recomputes > made
        assert run.equals(numbers_after(2))
        torch_lms.step()  # what was compared is no part of the step that comes
        run.restore()
        with calls_repeated(lambda: True):
            sees = told(torch_lms.WorkingSetError, partial(run.step, 1), words="smaller batch")
    return Row("no memory to recompute a page", sees)


def memory_refused_to_an_access(directory: Path) -> Row:
    """The same, where the page comes back outside of an operation."""
    with under_way(directory) as run:
        weight = run.model[0].weight
        with _memory(_refused):
            assert weight.t()[3:].stride() == (1, weight.shape[1])  # views need none
            sees = {told(torch_lms.WorkingSetError, call) for call in (weight.tolist, partial(_pin, weight))}
        del weight
    return Row("no memory for a page that tolist() or pinned() brings back", sees.pop())


@contextmanager
def _memory(fill: Callable[..., None]) -> Iterator[None]:
    """Inside, ``fill`` gives pages that come back their memory."""
    with patch.object(cpu, "fill_storage", fill), patch.object(native_cpu, "fill_storage", fill):
        yield


def _refused(*_: object) -> None:
    raise RuntimeError(NO_MEMORY)


def _pin(tensor: torch.Tensor) -> None:
    with torch_lms.pinned(tensor):
        pass


def memory_refused_by_the_kernel(directory: Path) -> Row:
    """RLIMIT_DATA."""
    sees = in_child(fault_children.memory_limit, directory)
    return Row("the kernel refuses memory (RLIMIT_DATA), and an operation that cannot fit", sees)


def file_size_limited(directory: Path) -> Row:
    """RLIMIT_FSIZE."""
    return Row(
        "the spill file may not grow (RLIMIT_FSIZE), then may", in_child(fault_children.file_size_limit, directory)
    )


def threads_refused(directory: Path) -> Row:
    """The system starts no more threads when the store wants its own."""
    start = threading.Thread.start

    def no_more(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with nothing_left(directory), patch.object(threading.Thread, "start", NthCall(start, 2, no_more)):
        sees = told(StoreError, partial(torch_lms.enable, spill_dir=directory), words="can't start new thread")
    with under_way(directory):
        pass
    return Row("no thread can be started for the spill file", sees, after=FRESH)


def errors_hold_nothing(directory: Path) -> Row:
    """What an error or an interrupt met is freed with it, without the garbage collector (N21)."""
    for fault, kind in (
        (disk_calls("pwrite", failing(errno.EIO)), StoreFullError),
        (disk_calls("preadv", failing(errno.EIO)), PageLostError),
        (waits_for_copies(partial(NthCall, number=5, instead=_interrupted)), KeyboardInterrupt),
    ):
        with under_way(directory) as run:
            with fault:
                told(kind, run.step, 1)
            torch_lms.step()
    return Row("errors and interrupts, with the garbage collector off", "the same", after="no tensor is held, " + SAME)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


# -- the user's own code -----------------------------------------------------------------------------------------------


USERS_CODE: dict[str, Callable[[Training], Any]] = {
    "forward": lambda run: run.trap.armed.add("forward"),
    "backward": lambda run: run.trap.armed.add("backward"),
    "a tensor hook": lambda run: run.model[4].weight.register_hook(_raise_oops),
    "a post-accumulate hook": lambda run: run.model[4].weight.register_post_accumulate_grad_hook(_raise_oops),
    "a module's forward hook": lambda run: run.model[1].register_forward_hook(_raise_oops),
    "a module's backward hook": lambda run: run.model[1].register_full_backward_hook(_raise_oops),
    "an optimizer's hook": lambda run: run.optimizer.register_step_post_hook(_raise_oops),
}
"""Where it raises, and how that is arranged: what is returned is removed afterwards."""


def exception_of_the_user(directory: Path, where: str) -> Row:
    """It reaches the user as it is."""
    with under_way(directory) as run:
        handle = USERS_CODE[where](run)
        sees = told(Oops, run.step, 1, words="^in ")
        if handle is not None:
            handle.remove()
        run.trap.armed.clear()
    return Row(f"an exception in the user's code: in {where}", f"{sees} (the user's own)")


def _raise_oops(*_: object) -> None:
    raise Oops("in a hook")


def failing_operation(directory: Path) -> Row:
    """Shapes that do not go together."""
    with under_way(directory) as run:
        sees = told(RuntimeError, run.model[0], torch.ones(7), words="shape")
    return Row("an operation that PyTorch refuses", f"{sees} (PyTorch's own)")


# -- interrupts --------------------------------------------------------------------------------------------------------


def interrupt_at_every_copy(directory: Path) -> Row:
    """KeyboardInterrupt before and after the wait for each copy of a step in turn."""

    def after(wait: Callable[..., None], *args: Any) -> None:
        wait(*args)
        raise KeyboardInterrupt

    with moves_in_python(), under_way(directory) as run:
        for instead in (_interrupted, after):
            number = 0
            while True:
                number += 1
                with waits_for_copies(partial(NthCall, number=number, instead=instead)) as waits:
                    try:
                        run.step(1)
                    except KeyboardInterrupt:
                        assert waits.calls >= number
                    else:
                        assert waits.calls < number
                check_books()
                run.restore()
                if waits.calls < number:
                    break
                run.step(1)
                assert run.equals(numbers_after(2))
                run.restore()
        gc.collect()  # see `errors_hold_nothing`
    assert number > 30
    return Row(f"KeyboardInterrupt in the wait for a copy (each of the {number - 1} of a step)", "KeyboardInterrupt")


def interrupt_at_the_start_of_every_copy(directory: Path) -> Row:
    """In a process of its own: a copy that nobody waits for may write to memory that is somebody else's by then."""
    sees = in_child(fault_children.interrupts_at_the_start_of_copies, directory)
    return Row("KeyboardInterrupt when a copy has just begun", sees)


def interrupt_when_the_session_ends(directory: Path) -> Row:
    """KeyboardInterrupt while ``disable()`` brings everything back."""
    with under_way(directory):
        with waits_for_copies(partial(NthCall, number=3, instead=_interrupted)):
            sees = told(KeyboardInterrupt, torch_lms.disable)
        assert torch_lms.is_enabled()
        check_books()
    return Row("KeyboardInterrupt while disable() brings everything back", sees, after="LMS stays on, " + SAME)


def interrupt_while_waiting(directory: Path) -> Row:
    """A real SIGINT."""
    sees = in_child(fault_children.interrupt_while_waiting, directory)
    return Row("SIGINT while a copy is waited for, and with the wait's own lock taken", sees)


def interrupt_anywhere(directory: Path) -> Row:
    """A real SIGINT."""
    sees = in_child(fault_children.interrupts_everywhere, directory)
    return Row("SIGINT at each place in LMS where Python looks for signals", sees)


def sigint(directory: Path) -> Row:
    """To a process that trains."""
    code, errors = _signalled(fault_children.trains_for_ever, directory, signal.SIGINT)
    assert code == -signal.SIGINT
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    return Row("SIGINT to a training that does not catch it", "KeyboardInterrupt", "the process, as asked", ENDED)


def sigterm(directory: Path) -> Row:
    """To a process that trains."""
    code, _ = _signalled(fault_children.trains_for_ever_in_a_named_file, directory, signal.SIGTERM)
    assert code == -signal.SIGTERM
    return Row("SIGTERM to a training (no O_TMPFILE)", "ended by SIGTERM", "the process, as asked", ENDED)


def sigkill(directory: Path, named: bool = False) -> Row:
    """To a process that trains; then another one trains there. ``named``: where the file had a name for a moment."""
    body = fault_children.trains_for_ever_in_a_named_file if named else fault_children.trains_for_ever
    code, _ = _signalled(body, directory, signal.SIGKILL)
    assert code == -signal.SIGKILL
    with patch.object(os, "open", without_tmpfile(os.open) if named else os.open), under_way(directory):
        pass
    how = " (no O_TMPFILE)" if named else ""
    return Row(f"SIGKILL to a training, and a restart{how}", "ended by SIGKILL", "the process", FRESH)


def sigkill_before_unlink(directory: Path) -> Row:
    """At the only moment at which a file can stay behind: the next session removes it."""
    with start_child(fault_children.dies_before_its_file_is_unlinked, directory) as child:
        child.communicate(timeout=120)
    assert child.returncode == -signal.SIGKILL
    (left,) = directory.iterdir()
    assert not stat.S_IMODE(left.stat().st_mode) & 0o077, "others can read it"
    torch_lms.enable(spill_dir=directory)
    assert os.listdir(directory) == []
    torch_lms.disable()
    with under_way(directory):
        pass
    return Row("SIGKILL before the spill file is unlinked, and a restart", "ended by SIGKILL", "the process", FRESH)


def _signalled(body: Callable[[Path], str], directory: Path, number: signal.Signals) -> tuple[int, str]:
    """Send the signal to a training under way: how it ends, with nothing in ``directory``, and what it says."""
    with start_child(body, directory) as child:
        assert child.stdout is not None
        said = child.stdout.readline()
        if said != "under way\n":
            child.kill()
            raise AssertionError(f"{said!r} {child.communicate()[1][-2000:]}")
        child.send_signal(number)
        try:
            _, errors = child.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
    assert os.listdir(directory) == []
    return child.returncode, errors


# -- forks -------------------------------------------------------------------------------------------------------------


def fork_with_evicted_pages(directory: Path) -> Row:
    """There is no room to bring everything back before the fork; the child may not touch what stayed away."""
    with under_way(directory) as run:
        kept = torch.arange(1000.0)
        with patch.object(forks, "auto_limit", lambda device: limits.AutoLimit(0, "a test says so", 0)):
            received, sent = os.pipe()
            child = os.fork()
            if child == 0:
                _tell_and_leave(sent, partial(told, ForkedPageError, kept.sum, words="moved to disk"))
        os.close(sent)
        with os.fdopen(received) as answer:
            sees = answer.read()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, sees
        check_books()
        assert kept.sum() == 499_500
        del kept
        run.step(1)
        assert run.equals(numbers_after(2))
    return Row("fork with evicted pages that the child then touches", f"in the child {sees}; {GOES_ON} in the parent")


def _tell_and_leave(pipe: int, find_out: Callable[[], str]) -> None:
    """In a forked child: say what was seen, and end without a word to anybody else."""
    code = 1
    try:
        assert not torch_lms.is_enabled()
        os.write(pipe, find_out().encode())
        code = 0
    except BaseException:
        os.write(pipe, traceback.format_exc().encode())
    finally:
        os._exit(code)


# -- the table ---------------------------------------------------------------------------------------------------------

FAULTS: dict[str, Callable[[Path], Row]] = {
    fault.__name__.replace("_", "-"): fault
    for fault in (
        disk_full,
        disk_too_small,
        file_size_limited,
        disk_full_by_injection,
        disk_full_while_writing,
        disk_mended_within_a_step,
        disk_error_on_write,
        one_write_fails,
        disk_error_on_read,
        disk_error_when_the_session_ends,
        damaged_page,
        spill_file_cut_short,
        spill_directory_deleted,
        spill_file_unreadable_by_others,
        hostile_names,
        hostile_file_in_our_place,
        memory_refused_to_an_operation,
        memory_refused_to_a_page,
        memory_refused_to_a_recomputation,
        memory_refused_to_an_access,
        memory_refused_by_the_kernel,
        threads_refused,
        errors_hold_nothing,
        failing_operation,
        interrupt_at_every_copy,
        interrupt_at_the_start_of_every_copy,
        interrupt_when_the_session_ends,
        interrupt_while_waiting,
        interrupt_anywhere,
        sigint,
        sigterm,
        sigkill,
        sigkill_before_unlink,
        fork_with_evicted_pages,
    )
}
FAULTS["sigkill-in-a-named-file"] = partial(sigkill, named=True)
FAULTS |= {f"short-{name}": partial(disk_is_slow, name=name) for name in ("pwrite", "preadv")}
FAULTS |= {
    f"exception-in-{where.replace(' ', '-')}": partial(exception_of_the_user, where=where) for where in USERS_CODE
}

KNOWN_BROKEN: dict[str, str] = {}
"""Faults that are not met yet, and why."""

_COLUMNS = ("fault", "what the user sees", "lost", "afterwards")


def rows(names: list[str]) -> Iterator[tuple[str, Row | str, bool]]:
    """Make each fault happen: its name, its row or why there is none, and whether that is as expected."""
    for name in names:
        directory = Path(tempfile.mkdtemp(prefix="torch-lms-faults-"))
        try:
            row = FAULTS[name](directory)
            if name in KNOWN_BROKEN:
                print(f"{name} is met, and is still listed as known to be broken", file=sys.stderr)
            yield name, row, name not in KNOWN_BROKEN
        except NotHere as error:
            yield name, f"not on this machine: {error}", True
        except Exception as error:
            if name in KNOWN_BROKEN:
                yield name, f"not met yet: {KNOWN_BROKEN[name]}", True
            else:
                traceback.print_exc()
                yield name, f"FAILED: {shown(str(error))}", False
        finally:
            shutil.rmtree(directory, ignore_errors=True)


@click.command()
@click.option("--match", default="", help="Only faults whose name contains this.")
@click.option("--markdown", is_flag=True, help="Print a table in Markdown.")
def main(match: str, markdown: bool) -> None:
    """Make every fault happen, and print what became of it."""
    os.environ.setdefault("TORCH_LMS_PLANNING", "at-once")  # a process that makes plans would be left
    torch.set_num_threads(1)
    found = list(rows([name for name in FAULTS if match in name]))
    lines = [astuple(row) if isinstance(row, Row) else (name, row, "", "") for name, row, _ in found]
    if markdown:
        for line in (_COLUMNS, ("---",) * len(_COLUMNS), *lines):
            print(f"| {' | '.join(line)} |")
    else:
        table = Table(*_COLUMNS, title="Faults, each made to happen")
        for line in lines:
            table.add_row(*line)
        Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False).print(table)
    met = sum(isinstance(row, Row) for _, row, _ in found)
    print(f"{met} of {len(found)} faults met with nothing lost beyond what the table says", file=sys.stderr)
    sys.exit(not all(expected for _, _, expected in found))


if __name__ == "__main__":
    main()
