"""Where the sockets of watched processes are, and who may use them: the user of the process, and nobody else."""

import os
import socket
import stat
import struct
from pathlib import Path

from torch_lms.errors import UsageError

_PEER = struct.Struct("3i")
"""What Linux tells of whoever is at the other end: process, user, group."""


def folder() -> Path:
    """Of this user's sockets. The same whatever the environment says, so that both sides find it."""
    return Path(f"/tmp/torch-lms-{os.geteuid()}")


def socket_of(pid: int) -> Path:
    """The socket of a process of this user's."""
    return folder() / f"{pid}.sock"


def check_folder() -> None:
    """Refuse a folder that somebody else can use.

    Raises:
        UsageError: it is another user's, no folder, or open to others.
    """
    found = os.lstat(folder())
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UsageError(
            f"{folder()} must be a folder of this user's that is closed to all others (mode 0700): remove it, and "
            "start the program to be watched anew"
        )


def user_at_the_other_end(connection: socket.socket) -> int:
    """The number of the user whose process is at the other end of a Unix socket."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, user, _ = _PEER.unpack(told)
    return int(user)
