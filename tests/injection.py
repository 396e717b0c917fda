"""Ways to make things fail: a disk that errs, is full, or moves less than asked; memory that is refused."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from torch_lms.capture.call import Call
from torch_lms.native import load
from torch_lms.runtime import api
from torch_lms.runtime.cpu import CpuExecutor
from torch_lms.runtime.native_cpu import NativeCpuExecutor
from torch_lms.runtime.native_interposer import NativeFastPath
from torch_lms.stores.copies import Copy
from torch_lms.stores.disk import DiskStore

NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"

_calls: dict[str, Callable[..., int]] = {}
"""That stand in for those of ``os`` now."""


@contextmanager
def disk_calls(name: str, call: Callable[..., int]) -> Iterator[Callable[..., int]]:
    """Inside, ``call`` stands in for ``os.pwrite`` or ``os.preadv``. Where the native interposer copies, it moves no
    page, but says whether, and when, that fails: it is given a device that takes and gives anything.
    """
    native = load.find().native
    _calls[name] = call
    try:
        if native is not None:
            native.hinder(_hindrance)
        with patch.object(os, name, call):
            yield call
    finally:
        del _calls[name]
        if native is not None and not _calls:
            native.hinder(None)


def _hindrance(is_read: bool, nbytes: int) -> int:
    call = _calls.get("preadv" if is_read else "pwrite")
    if call is None:
        return 0
    device = os.open("/dev/zero", os.O_RDWR)
    buffer = bytearray(nbytes)
    try:
        call(device, [memoryview(buffer)] if is_read else memoryview(buffer), 0)
    except OSError as error:
        return error.errno or errno.EIO
    finally:
        os.close(device)
    return 0


@contextmanager
def in_place_of(owner: Any, name: str, new: Callable[[Callable[..., Any]], Any]) -> Iterator[Any]:
    """Inside, what ``new`` makes of a method stands in for it. Gives that."""
    call = new(getattr(owner, name))
    with patch.object(owner, name, call):
        yield call


def counted(owner: Any, name: str) -> AbstractContextManager[Any]:
    """Inside, calls of a method are counted: see ``NthCall.calls`` of what it gives."""
    return in_place_of(owner, name, partial(NthCall, number=0, instead=None))


def waits_for_copies(new: Callable[[Callable[..., Any]], Any]) -> AbstractContextManager[Any]:
    """Inside, what ``new`` makes of the method that waits for a copy stands in for it, whoever copies. Gives that."""
    native = load.find().native
    owner, name = (Copy, "wait") if native is None else (native.Spill, "finish")
    return in_place_of(owner, name, new)


def starts_of_copies(name: str, new: Callable[[Callable[..., Any]], Any]) -> AbstractContextManager[Any]:
    """The same for the method that starts one: a "write", or a "read"."""
    native = load.find().native
    if native is None:
        return in_place_of(DiskStore, name, new)
    return in_place_of(native.Spill, {"write": "start_evict", "read": "start_fetch"}[name], new)


@contextmanager
def nobody_hears_of_copies() -> Iterator[None]:
    """Inside, nobody hears that a copy has ended before somebody waits for it: what moves does not depend on time."""
    native = load.find().native
    with patch.object(CpuExecutor, "landed", lambda _: []), patch.object(NativeCpuExecutor, "landed", lambda _: []):
        if native is not None:
            native.be_silent(True)
        try:
            yield
        finally:
            if native is not None:
                native.be_silent(False)


@contextmanager
def moves_in_python() -> Iterator[None]:
    """Inside, the native interposer has each move of a plan performed in Python."""

    def nobody(_: NativeFastPath, backend: Any, _plan: object) -> tuple[Any, ...]:
        return None, None, backend.recomputer.calls, -1, 0, 0.0, 0

    with patch.object(NativeFastPath, "_carrier", nobody):
        yield


@contextmanager
def calls_repeated(refuses: Callable[[], bool]) -> Iterator[None]:
    """Inside, ``refuses`` is asked before a call is repeated, whoever does so: whether there is no memory for it."""
    native = load.find().native
    repeat = Call.repeat

    def asked(call: Call, storages: Any) -> None:
        if refuses():
            raise RuntimeError(NO_MEMORY)
        repeat(call, storages)

    with patch.object(Call, "repeat", asked):
        if native is not None:
            native.refuse(refuses)
        try:
            yield
        finally:
            if native is not None:
                native.refuse(None)


@contextmanager
def copies_in_python() -> Iterator[None]:
    """Sessions that begin inside have their pages copied in Python, whichever interposer they have."""
    with patch.object(api, "NativeCpuExecutor", lambda disk, _: CpuExecutor(disk)):
        yield


def step_of_many_pages(
    device: torch.device | None = None, halfway: Callable[[], object] = lambda: None
) -> torch.Tensor:
    """Makes forty pages of 16 KiB, writes each, and uses them in the opposite order."""
    kept = [torch.ones(64, 64, device=device) * number for number in range(40)]
    total = torch.zeros(64, 64, device=device)
    for page in kept:
        total = total + page.mul_(2)
    halfway()
    for page in reversed(kept):
        total = total * 0.5 + page
    return total


class CannotMount(Exception):
    """This process has no right to mount a file system."""


def failing(code: int) -> Callable[..., int]:
    """A system call that always fails with ``code``."""

    def call(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return call


def short(call: Callable[..., int], most: int = 8192) -> Callable[..., int]:
    """A write (or read) that moves at most ``most`` bytes per call."""

    def shortened(fd: int, buffer: Any, offset: int) -> int:
        if isinstance(buffer, Sequence) and not isinstance(buffer, memoryview):
            return call(fd, [buffer[0][:most]], offset)
        return call(fd, buffer[:most], offset)

    return shortened


def damage(store: DiskStore, change: Callable[[bytearray], None]) -> None:
    """Change the first 4 MiB of the spill file behind the store's back."""
    with open(f"/proc/self/fd/{store.file.fd}", "r+b", buffering=0) as file:
        content = bytearray(file.read(4 << 20))
        change(content)
        file.seek(0)
        file.write(content)
        os.fsync(file.fileno())


def without_tmpfile(real_open: Callable[..., int]) -> Callable[..., int]:
    """``os.open``, as on a file system that has no O_TMPFILE."""

    def call(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real_open(path, flags, *args, **kwargs)

    return call


@contextmanager
def small_disk(directory: Path, nbytes: int) -> Iterator[Path]:
    """A real file system of ``nbytes`` at ``directory``.

    Raises:
        CannotMount: an ordinary user has no right to it.
    """
    mount = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "torch-lms-test", str(directory)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotMount(f"cannot mount a small tmpfs here: {error}") from error
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


class NthCall:
    """Stands in for ``call``, and does ``instead`` at its n-th call.

    Args:
        call: the function or method in whose place it stands.
        number: 1 for the first; 0 for none of them.
        instead: is given the call and its arguments; None if ``number`` is 0.

    Attributes:
        calls: how many there were.
    """

    def __init__(self, call: Callable[..., Any], number: int, instead: Callable[..., Any]) -> None:
        self.calls = 0
        self._call, self._number, self._instead = call, number, instead

    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        return lambda *args, **kwargs: self(instance, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self._number:
            return self._instead(self._call, *args, **kwargs)
        return self._call(*args, **kwargs)


@contextmanager
def operation_without_memory(number: int) -> Iterator[tuple[NthCall, list[Any]]]:
    """The n-th operation that LMS runs finds no memory; run again, it does. Gives all calls, and the one refused."""
    found: list[Any] = []

    def refused(_: object, func: Any, *__: object, **___: object) -> None:
        found.append(func)
        raise RuntimeError(NO_MEMORY)

    operator = type(torch.ops.aten.add.Tensor)
    with patch.object(operator, "__call__", NthCall(operator.__call__, number, refused)) as counted:
        yield counted, found
