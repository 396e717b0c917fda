"""Where the spill file lies, and how it is opened so that nothing of it is left behind (N18)."""

import errno
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from torch_lms.errors import StoreError, UsageError

ANOTHER_DIRECTORY = "give another directory with spill_dir= or TORCH_LMS_SPILL_DIR"

_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_NAMED = re.compile(r"torch-lms-spill-(?P<pid>\d{1,9})-[0-9a-f]+")
_NO_TMPFILE = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})
_REFUSALS = {
    errno.ENOENT: "does not exist: create it",
    errno.ENOTDIR: "is not a directory: remove what is there",
    errno.EACCES: "is not writable: allow this user to write there",
    errno.EPERM: "is not writable: allow this user to write there",
    errno.EROFS: "is on a read-only file system: mount it writable",
}


def default_spill_dir() -> Path:
    """``$TORCH_LMS_SPILL_DIR``; else the first of ``$TMPDIR``, ``/var/tmp``, ``/tmp`` that is writable and on a disk.

    Where all of them are in memory (tmpfs), the first writable one: spilling there gains nothing, but works.

    Raises:
        UsageError: none is writable.
    """
    if chosen := os.environ.get("TORCH_LMS_SPILL_DIR"):
        return Path(chosen)
    places = [Path(place) for place in (os.environ.get("TMPDIR"), "/var/tmp", "/tmp") if place]
    writable = [place for place in places if place.is_dir() and os.access(place, os.W_OK | os.X_OK)]
    if not writable:
        raise UsageError(f"none of {', '.join(map(str, places))} is a writable directory: {ANOTHER_DIRECTORY}")
    return next((place for place in writable if filesystem_of(place) not in _IN_MEMORY), writable[0])


def filesystem_of(path: str | os.PathLike[str]) -> str:
    """Type of the file system that holds ``path``, such as ``"ext4"``; ``"unknown"`` where the system does not say."""
    try:
        mounts = Path("/proc/mounts").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return "unknown"
    target = Path(path).resolve()
    kind, depth = "unknown", 0
    for line in mounts:
        _, escaped, mounted, *_ = line.split(" ")
        # a space in a path is written there as \040
        point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), escaped))
        # ">=": of several mounts on one point, the last hides the others
        if target.is_relative_to(point) and len(point.parts) >= depth:
            kind, depth = mounted, len(point.parts)
    return kind


def open_spill_file(directory: Path) -> int:
    """Descriptor of a new, empty file in ``directory`` that no one else can open and that goes with its last user.

    Raises:
        UsageError: ``directory`` is missing, not a directory, or not writable.
        StoreError: the system refuses for another reason.
    """
    try:
        return _open_nameless(directory)
    except OSError as error:
        if error.errno in _REFUSALS:
            is_there = error.errno == errno.ENOENT and directory.is_dir()  # as /proc
            refusal = "takes no files" if is_there else _REFUSALS[error.errno]
            raise UsageError(f"spill directory {directory} {refusal}, or {ANOTHER_DIRECTORY}") from error
        raise StoreError(f"cannot open a spill file in {directory}: {error.strerror}") from error


def _open_nameless(directory: Path) -> int:
    try:
        # it never has a name, and O_EXCL forbids to give it one: nothing is left however the process dies
        return os.open(directory, os.O_TMPFILE | os.O_EXCL | os.O_RDWR, 0o600)
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise
    path = directory / f"torch-lms-spill-{os.getpid()}-{secrets.token_hex(8)}"
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_RDWR, 0o600)
    # another session's clean-up may have been first: across containers a pid that seems dead may be alive
    with suppress(FileNotFoundError):
        path.unlink()
    return fd


def remove_leftovers(directory: Path) -> None:
    """Remove spill files of this user whose process was killed between naming and unlinking them."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            match = _NAMED.fullmatch(entry.name)
            if match and _is_own_file(entry.path) and not _is_alive(int(match["pid"])):
                with suppress(OSError):
                    os.unlink(entry.path)


def _is_own_file(path: str) -> bool:
    with suppress(OSError):
        status = os.lstat(path)
        return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
