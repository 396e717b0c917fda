"""A program under LMS that goes on until it is told to end, and a terminal to run it in."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LMS = [sys.executable, "-m", "torch_lms"]

TRAINING = """
import os, sys, time
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
optimizer = torch.optim.Adam(model.parameters())
steps = 0
while steps < 6 or not os.path.exists(sys.argv[1]):
    loss = model(torch.ones(16, 512)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    steps += 1
    if steps < 7:
        print(f"step {steps}: {loss.item().hex()}", flush=True)
    elif len(sys.argv) > 2:
        time.sleep(0.01)
"""
"""Six steps and more, until the file that it is given exists. With a second argument it pauses between later ones."""

OPTIONS = ["--limit", "10MB", "--min-size", "256KiB"]
"""About half of what the training needs."""

PATIENCE_S = 60.0


class Terminal:
    """What a process writes to a terminal, and what can be seen there."""

    def __init__(self, lines: int = 30, columns: int = 100) -> None:
        import pyte

        self.screen = pyte.Screen(columns, lines)
        self.text = ""
        self._stream = pyte.Stream(self.screen)
        self._master, self.slave = pty.openpty()
        self.resize(lines, columns)

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    @property
    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display]

    def until(self, is_there: Callable[[list[str]], bool]) -> list[str]:
        """Read until ``is_there`` of the rows."""
        ends_s = time.monotonic() + PATIENCE_S
        while not is_there(self.rows):
            assert time.monotonic() < ends_s, "\n".join(self.rows)
            self.read(0.2)
        return self.rows

    def read(self, patience_s: float) -> bool:
        """Read once; whether there was something."""
        if not select.select([self._master], [], [], patience_s)[0]:
            return False
        written = os.read(self._master, 65536).decode(errors="replace")
        self.text += written
        self._stream.feed(written)
        return True

    def read_all(self) -> None:
        """Read until nothing more comes."""
        while self.read(0.5):
            pass

    def close(self) -> None:
        os.close(self._master)
        os.close(self.slave)


@contextmanager
def in_terminal(command: list[str], folder: Path, terminal: Terminal) -> Iterator["subprocess.Popen[bytes]"]:
    """Run ``command`` there. It must have ended by itself when the block ends."""
    environment = {**os.environ, "TERM": "xterm-256color"}
    slave = terminal.slave
    with subprocess.Popen(command, cwd=folder, stdin=slave, stdout=slave, stderr=slave, env=environment) as process:
        try:
            yield process
            ends_s = time.monotonic() + PATIENCE_S
            while process.poll() is None and time.monotonic() < ends_s:
                terminal.read(0.1)
            terminal.read_all()
        finally:
            process.kill()


@contextmanager
def watched(folder: Path, *options: str, lms: list[str] | None = None) -> Iterator["subprocess.Popen[str]"]:
    """A training that can be watched, from its sixth step on. It ends with the block."""
    (folder / "train.py").write_text(TRAINING)
    command = [*(lms or [*LMS, "run", "--watch"]), *OPTIONS, *options, "train.py", "end", "slowly"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            lines = iter(process.stdout.readline, "")
            assert any(line.startswith("step 6") for line in lines), process.communicate()
            yield process
        finally:
            (folder / "end").touch()
            try:
                process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()


def watch(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    """``torch-lms watch`` from another process."""
    command = [*LMS, "watch", *arguments]
    return subprocess.run(command, text=True, capture_output=True, timeout=PATIENCE_S, **options)  # type: ignore[call-overload,no-any-return]
