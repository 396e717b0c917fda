"""Runs a script or a module as ``python`` runs it: same ``__main__``, argv, path, traceback, exit code and signals."""

import builtins
import os
import pkgutil
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from torch_lms.cli.traceback_filter import hide_our_frames

_NO_SUCH_SCRIPT = 2
# The module that Python started. It must outlive its replacement: the interpreter goes on using its dictionary without
# owning it, and once the traceback that also holds it is cut, CPython 3.11 crashes at exit.
_STARTED_AS_MAIN = sys.modules["__main__"]


def run_as_main(target: str, arguments: Sequence[str], *, is_module: bool) -> None:
    """Run ``target`` (a script, a directory or zip file with ``__main__.py``, or a module's name) as the program.

    What it raises passes through, and is shown at the top without the frames that stand above the program. So a caller
    lets it pass: then Python itself prints it, sets the exit code and, after Ctrl-C, ends by the signal.
    """
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    path = os.path.join(os.getcwd(), target)
    code = None
    if is_module:
        _set_arguments("-m", arguments, first_on_path=os.getcwd())
    elif pkgutil.get_importer(path) is not None:  # a directory or a zip file
        _set_arguments(target, arguments, first_on_path=None)
        sys.path.insert(0, path)
    else:
        _set_arguments(target, arguments, first_on_path=os.path.dirname(os.path.realpath(path)))
        code = _load(path, main)
    try:
        if code is not None:
            exec(code, main.__dict__)
        else:
            # Python's own way to run these (its main.c calls it by this name), so that all they see is the same.
            run_module = runpy._run_module_as_main  # type: ignore[attr-defined]
            run_module(target if is_module else "__main__", alter_argv=is_module)
    except BaseException as error:
        ours = error.__traceback__
        _show_from(None if ours is None else ours.tb_next)
        raise


def exit_code_of(error: BaseException | None) -> int:
    """The exit code that Python gives a program which ended with ``error`` (as a shell shows it, for Ctrl-C)."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    return 1  # a message, which Python prints


def _set_arguments(name: str, arguments: Sequence[str], *, first_on_path: str | None) -> None:
    sys.argv = [name, *arguments]
    if sys.flags.safe_path:
        return
    # The first entry is the directory of the command itself, which the program must not find its modules in.
    if first_on_path is None:
        del sys.path[:1]
    else:
        sys.path[:1] = [first_on_path]


def _load(path: str, main: ModuleType) -> CodeType:
    """Compile the script at ``path``; ``main`` gets the attributes that Python gives a script's module."""
    try:
        with open(path, "rb") as file:
            compiled: CodeType | None = pkgutil.read_code(file)
        source = b"" if compiled else Path(path).read_bytes()
    except OSError as error:
        print(f"torch-lms run: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        raise SystemExit(_NO_SUCH_SCRIPT) from None
    loader_type = SourcelessFileLoader if compiled else SourceFileLoader
    loader = loader_type("__main__", path)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=loader, __builtins__=builtins)
    if compiled:
        return compiled
    try:
        return compile(source, path, "exec", dont_inherit=True)
    except SyntaxError:
        _show_from(None)
        raise


def _show_from(own: TracebackType | None) -> None:
    """Have the hook in force show only the traceback ``own``, should the exception under way end the process."""
    hook = sys.excepthook

    def shortened(kind: type[BaseException], error: BaseException, _whole: TracebackType | None) -> None:
        error.__traceback__ = own
        hide_our_frames(error)
        sys.last_traceback = error.__traceback__
        hook(kind, error, error.__traceback__)

    sys.excepthook = shortened
