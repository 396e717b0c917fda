"""Readings of another process, or why there are none."""

import os
import pwd
import socket
from collections.abc import Iterator
from pathlib import Path

from torch_lms.errors import UsageError
from torch_lms.live.reading import Reading, reading_in
from torch_lms.live.sockets import check_folder, folder, socket_of, user_at_the_other_end

_MAX_WAIT_S = 30.0
"""For a reading: a session that waits for its disk answers late."""


def readings_of(pid: int) -> Iterator[Reading]:
    """The readings of process ``pid``, one a second, until its session ends.

    Raises:
        UsageError: it cannot be watched; says why, and what to do.
    """
    with _connected(pid) as connection, connection.makefile(encoding="utf-8") as lines:
        try:
            for line in lines:
                yield reading_in(line)
        except TimeoutError:
            raise UsageError(
                f"process {pid} has told nothing for {_MAX_WAIT_S:.0f} seconds: it is stopped, or hangs"
            ) from None
        except ConnectionResetError:
            return  # it was killed


def _connected(pid: int) -> socket.socket:
    _check_process(pid)
    path = socket_of(pid)
    if not folder().is_dir() or not path.exists():
        raise UsageError(
            f"process {pid} cannot be watched: it has no LMS, or was not asked to let itself be watched. Start it by "
            "`torch-lms run --watch`, or with TORCH_LMS_WATCH=1 in its environment"
        )
    check_folder()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_MAX_WAIT_S)
    try:
        connection.connect(str(path))
    except ConnectionRefusedError:
        connection.close()
        raise UsageError(
            f"process {pid} cannot be watched: {path} was left by another process of this number that was killed, "
            "and may be removed"
        ) from None
    except FileNotFoundError:
        connection.close()
        raise UsageError(f"process {pid} cannot be watched any more: its session has just ended") from None
    if user_at_the_other_end(connection) != os.geteuid():
        connection.close()
        raise UsageError(f"process {pid} cannot be watched: another user's process answers at {path}")
    return connection


def _check_process(pid: int) -> None:
    user = _user_of(pid)
    if user is None:
        left = "; its socket was left when it was killed, and may be removed" if socket_of(pid).exists() else ""
        raise UsageError(f"there is no process {pid}{left}")
    if user != os.geteuid():
        raise UsageError(f"process {pid} is {_name_of(user)}'s: only that user can watch it")


def _user_of(pid: int) -> int | None:
    """The effective user of a process; None if there is no such process."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    (users,) = [row for row in status.splitlines() if row.startswith("Uid:")]
    return int(users.split()[2])


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
