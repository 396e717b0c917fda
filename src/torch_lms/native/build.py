"""Builds the native interposer for the PyTorch that is installed, once, into the user's cache."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

MODULE = "torch_lms_native"
"""The name that the extension is imported by."""

_SOURCES = Path(__file__).with_name("csrc")
_TORCH = Path(torch.__file__).parent
_TIMEOUT_S = 600
_LINES_OF_ERROR = 6


class CannotBuild(Exception):
    """Why there is no native interposer, in a line."""


def cached_file() -> Path:
    """Where the extension for this PyTorch, this Python and these sources is kept, or would be.

    The directory is $TORCH_LMS_CACHE, else ``torch-lms`` in $XDG_CACHE_HOME or ``~/.cache``.
    """
    return cache_directory() / f"{MODULE}-torch{torch.__version__}-{_fingerprint()}{_suffix()}"


def shipped_file() -> Path:
    """Where a wheel has the extension for the minor version of this PyTorch."""
    minor = ".".join(torch.__version__.split(".")[:2])
    return Path(__file__).with_name("lib") / f"{MODULE}-torch{minor}{_suffix()}"


def build(target: Path) -> None:
    """Build the extension as ``target``. Of two processes, the second waits for the first, and uses what it built.

    Raises:
        CannotBuild: there is no compiler, no headers, or no room; or the compiler failed.
    """
    compiler = _compiler()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_suffix(".lock")):
            if not target.exists():
                _compile(compiler, target)
    except OSError as error:
        raise CannotBuild(f"{target.parent} cannot be written ({error.strerror or error})") from error


def _compile(compiler: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        objects = {source: made.with_name(f"{source.stem}.o") for source in sorted(_SOURCES.glob("*.cpp"))}
        commands = [[compiler, *_options(), "-c", str(source), "-o", str(to)] for source, to in objects.items()]
        with ThreadPoolExecutor(len(commands)) as pool:
            list(pool.map(_run, commands))
        _run([compiler, "-shared", *map(str, objects.values()), "-o", str(made), *_libraries()])
        os.replace(made, target)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise CannotBuild(f"{command[0]} took more than {_TIMEOUT_S} s") from error
    if done.returncode:
        raise CannotBuild(f"{command[0]} failed: {_first_error(done.stderr)}")


def _first_error(output: str) -> str:
    lines = [line for line in output.splitlines() if "error" in line] or output.splitlines()
    return "; ".join(lines[:_LINES_OF_ERROR]) or "it says nothing"


def _compiler() -> str:
    """The compiler's path.

    Raises:
        CannotBuild: it is missing, or a header is.
    """
    chosen = os.environ.get("CXX", "g++")
    compiler = shutil.which(chosen)
    if compiler is None:
        raise CannotBuild(f"there is no C++ compiler ({chosen})")
    headers, _, python_headers = _includes()
    for header in (headers / "torch" / "library.h", python_headers / "Python.h"):
        if not header.exists():
            raise CannotBuild(f"a header is missing: {header}")
    return compiler


def _includes() -> tuple[Path, Path, Path]:
    """Where the headers of PyTorch, of its C++ API and of Python are."""
    headers = _TORCH / "include"
    return headers, headers / "torch" / "csrc" / "api" / "include", Path(sysconfig.get_paths()["include"])


def _options() -> list[str]:
    return [
        *("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden"),
        f"-DTORCH_EXTENSION_NAME={MODULE}",
        "-DAT_PER_OPERATOR_HEADERS",  # without them every source reads the declarations of all operators
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *(f"-isystem{path}" for path in _includes()),
    ]


def _libraries() -> list[str]:
    return [f"-L{_TORCH / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Inside, no other process is."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cache_directory() -> Path:
    """Where what was built, and what was found out about this machine, is kept."""
    chosen = os.environ.get("TORCH_LMS_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-lms"


def _fingerprint() -> str:
    """Of all that the extension depends on, beside PyTorch's version."""
    found = hashlib.sha256()
    found.update(f"{torch.version.git_version} {_suffix()}".encode())
    for source in sorted(_SOURCES.iterdir()):
        found.update(source.read_bytes())
    return found.hexdigest()[:16]


def _suffix() -> str:
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


if __name__ == "__main__":  # for a wheel: ``nox -s wheels``
    build(shipped_file())
