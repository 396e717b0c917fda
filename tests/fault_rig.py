"""What a fault happens to: a small training under way, which must go on afterwards as if nothing had been."""

import gc
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torch_lms
from tests.bits import same_bits
from torch_lms.runtime import api
from torch_lms.runtime.backend import DeviceBackend
from torch_lms.runtime.native_cpu import NativeCpuExecutor
from torch_lms.runtime.session import Session
from torch_lms.stores.disk import DiskStore
from torch_lms.stores.spill_file import ALIGNMENT

ROOT = Path(__file__).parents[1]
STEPS = 3
_MESSAGE_LENGTH = 80


class Oops(Exception):
    """The user's own exception."""


class _Trap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, armed: set[str]) -> torch.Tensor:  # type: ignore[override]
        ctx.armed = armed
        if "forward" in armed:
            raise Oops("in forward")
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        if "backward" in ctx.armed:
            raise Oops("in backward")
        return grad * 2, None


class Trap(nn.Module):
    """Doubles its input; raises ``Oops`` where it is ``armed``: in "forward", in "backward"."""

    def __init__(self) -> None:
        super().__init__()
        self.armed: set[str] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Twice ``x``."""
        return _Trap.apply(x, self.armed)


class Training:
    """A small network; a step that failed can be taken back and done again."""

    def __init__(self, width: int = 16) -> None:
        torch.manual_seed(0)
        self.trap = Trap()
        self.width = width
        self.model = nn.Sequential(
            nn.Linear(width, 24), nn.Tanh(), nn.Dropout(0.2), self.trap, nn.Linear(24, width, bias=False)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def step(self, number: int) -> None:
        """Step ``number``, which draws the same numbers whenever it is done."""
        torch.manual_seed(number)
        self.optimizer.zero_grad()
        self.model(torch.randn(8, self.width)).square().mean().backward()
        self.optimizer.step()

    def tensors(self) -> list[torch.Tensor]:
        """Parameters and optimizer state."""
        state = [value for its in self.optimizer.state.values() for value in its.values()]
        return [tensor.detach() for tensor in (*self.model.parameters(), *state)]

    def save(self) -> None:
        """Keep all numbers as they are now."""
        self._saved = [tensor.clone() for tensor in self.tensors()]

    def restore(self) -> None:
        """Go back to the numbers saved last."""
        self.optimizer.zero_grad()
        for tensor, saved in zip(self.tensors(), self._saved, strict=True):
            tensor.copy_(saved)

    def equals(self, expected: list[torch.Tensor]) -> bool:
        """Whether its numbers are ``expected``. Compares copies: what becomes an array cannot leave any more."""
        return same_bits([tensor.clone() for tensor in self.tensors()], expected)


@cache
def numbers_after(steps: int) -> list[torch.Tensor]:
    """The numbers after so many steps, without LMS."""
    assert not torch_lms.is_enabled()
    run = Training()
    for number in range(steps):
        run.step(number)
    return run.tensors()


@contextmanager
def under_way(
    directory: Path, limit: int | str = 0, policy: str = "planned", recompute: bool = True
) -> Iterator[Training]:
    """A training after its first step, in a session that spills to ``directory``.

    When the block ends, whatever happened there, the training goes on from that step in the same session, and all that
    a session promises is checked: numbers, books, pages that died, descriptors, threads, files.
    """
    expected = numbers_after(STEPS)
    numbers_after(2)
    with nothing_left(directory), _ended_at_any_rate():
        with torch_lms.session(limit=limit, min_size=1, spill_dir=directory, policy=policy, recompute=recompute) as lms:
            run = Training()
            run.step(0)
            run.save()
            run.restore()
            living = living_pages()
            yield run
            check_books()
            run.restore()
            for number in range(1, STEPS):
                run.step(number)
            check_books()
            assert run.equals(expected)
            assert lms.stats().evictions > 0
            run.optimizer.zero_grad()
            assert living_pages() == living, "pages of the failed step are still alive"
        assert same_bits(run.tensors(), expected)


@contextmanager
def nothing_left(directory: Path) -> Iterator[None]:
    """Whatever happens in the block leaves no file, no descriptor and no thread, also without the garbage collector."""
    before = (_names(directory), *_held_by_process())
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    assert not torch_lms.is_enabled()
    assert (_names(directory), *_held_by_process()) == before, "files, descriptors or threads are left"


@contextmanager
def _ended_at_any_rate() -> Iterator[None]:
    """A session that a bug has broken does not live on: those who come next need their own."""
    try:
        yield
    except BaseException:
        if api._running is not None:
            store_now()._writers.close()  # copies under way end before their memory goes
            store_now()._readers.close()
            if isinstance(executor := backend_now().executor, NativeCpuExecutor):
                executor.spill.close()
            api._running._session._let_go()
            api._running._let_go()
            api._running = None
        raise


def check_books() -> None:
    """The books add up, nothing is pinned, and the store holds room for each page that is away and for no other."""
    session = session_now()
    session.validate()
    assert not session.lock._is_owned(), "the session's lock is still held"  # type: ignore[attr-defined]
    assert torch.is_grad_enabled(), "gradients are off"
    pages = list(backend_now().engine.pager.book)
    assert not any(page.pins for page in pages), "pages are still pinned"
    assert len(pages) == session.page_count
    store_now().validate()
    # A copy that nobody waits for any more holds its page until it ends: on a thread that does not wait for us.
    deadline = time.monotonic() + 5
    while _is_room_lost():
        assert time.monotonic() < deadline, "room is lost below"
        session.validate()


def _is_room_lost() -> bool:
    below = [page for page in backend_now().engine.pager.book if page.state.in_lower_tier]
    return used_bytes() != sum(-(-page.nbytes // ALIGNMENT) * ALIGNMENT for page in below)


def used_bytes() -> int:
    """Of the spill file, by pages."""
    executor = backend_now().executor
    granted = executor.spill.free_bytes() if isinstance(executor, NativeCpuExecutor) else 0
    return store_now().used_bytes - granted


def session_now() -> Session:
    """The session that is on."""
    session = api.current_session()
    assert session is not None
    return session


def backend_now() -> DeviceBackend:
    """Its only device."""
    with session_now().standing_still() as (backend,):
        return backend


def store_now() -> DiskStore:
    """Its spill file."""
    store = backend_now().executor._disk  # type: ignore[attr-defined]
    assert isinstance(store, DiskStore)
    return store


def living_pages() -> int:
    """How many storages are pages now."""
    return len(backend_now().engine.pager.book)


def slot_offset(tensor: torch.Tensor) -> int:
    """Where the page of ``tensor`` lies in the spill file."""
    entry = session_now().find(tensor.untyped_storage())
    assert entry is not None
    executor = backend_now().executor
    if isinstance(executor, NativeCpuExecutor):
        return executor.spill.place(entry.page)[0]
    return int(executor._copies[entry.page].slot.offset)  # type: ignore[attr-defined]


def told(kind: type[BaseException], call: Callable[..., Any], *args: Any, words: str = "") -> str:
    """What the user sees of ``call``, which must raise exactly ``kind``, with ``words`` (a pattern) in its message."""
    found, message = "no error", ""
    try:
        call(*args)
    except kind as error:
        found, message = type(error).__name__, str(error)
    assert found == kind.__name__, f"{found} in place of {kind.__name__}: {message}"
    assert re.search(words, message), f"no {words!r} in: {message}"
    return shown(f"{found}: {message}".removesuffix(": "))


def shown(message: str) -> str:
    """The beginning of ``message``, without the paths of this machine."""
    line = re.sub(r"(/[\w.-]+){2,}", "DIR", message.strip().replace("\n", " "))
    return line if len(line) <= _MESSAGE_LENGTH else f"{line[:_MESSAGE_LENGTH].rstrip()}..."


def start_child(body: Callable[[Path], str], directory: Path) -> "subprocess.Popen[str]":
    """A process that runs ``body(directory)``, which stands in a module of its own, and prints what it returns."""
    script = (
        "import sys; from pathlib import Path; "
        f"from {body.__module__} import {body.__name__} as body; print(body(Path(sys.argv[1])), flush=True)"
    )
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", script, str(directory)]
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


def in_child(body: Callable[[Path], str], directory: Path, timeout_s: float = 240) -> str:
    """What ``body(directory)`` returned in a process of its own; it must end well."""
    with start_child(body, directory) as process:
        output, errors = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, f"ended with {process.returncode}: {errors[-3000:]}"
    return output.splitlines()[-1]


def _names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory)) if directory.is_dir() else []


def _held_by_process() -> tuple[int, int]:
    """File descriptors and threads."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()
