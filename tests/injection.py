"""Ways to make things fail: a disk that errs, is full, or moves less than asked; memory that is refused."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from torch_lms.stores.disk import DiskStore

NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"


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
    with open(f"/proc/self/fd/{store._file.fd}", "r+b", buffering=0) as file:
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
        instead: is given the call and its arguments.

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
