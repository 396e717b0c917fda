"""The parent's side of a worker process: one question at a time, and an answer whatever becomes of the child."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.upstream.outcome import Outcome

_ROOT = Path(__file__).parents[2]
_SECONDS_TO_IMPORT = 300


class CannotImport(Exception):
    """A test file that cannot be imported, with the last line of why."""


class Worker:
    """A process that has imported one test file. It is started when it is needed, and anew after it died.

    Attributes:
        seconds: what one run of a test may take.
        tests: of the file that was imported.
        absent: what that imports in vain.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder, self.seconds = folder, seconds
        self._process: subprocess.Popen[str] | None = None
        self._file = ""
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as this)
        self.tests: list[str] = []
        self.absent: list[str] = []

    def load(self, file: str) -> None:
        """Have ``file`` imported."""
        if self._process is None or self._file != file:
            self.close()
            self._file = file
            self._start()

    def ask(self, test: str, way: str, repeats: int = 1) -> Outcome:
        """Run a test of the file in one of the ways (see ``running``)."""
        self.load(self._file)
        assert self._process is not None
        began = time.monotonic()
        try:
            print(json.dumps([test, way, repeats]), file=self._process.stdin, flush=True)
            line = self._answer(self.seconds)
        except BrokenPipeError:  # it died of what the last test left behind
            line = ""
        outcome = Outcome(**json.loads(line)) if line else self._obituary(time.monotonic() - began)
        if outcome.stuck:
            self.close()
        return outcome

    def close(self) -> None:
        """End the process, and what it started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # it leads a group of its own
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.stdout.close()  # not read to its end: what left the group may hold the other end
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        self._said.seek(0)
        self._said.truncate()
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
            "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(_ROOT), str(_ROOT / "src")])),
            "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "tests.upstream.worker", str(self._folder), self._file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd=self._folder / "test",
            env=environment,
            start_new_session=True,
        )
        line = self._answer(_SECONDS_TO_IMPORT)
        if not line:
            detail = self._last_words()
            self.close()
            raise CannotImport(detail)
        told = json.loads(line)
        self.tests, self.absent = told["tests"], told["absent"]

    def _answer(self, seconds: float) -> str:
        """A line, or nothing if the process died or the time ran out. Its children may hold its end of the pipe."""
        assert self._process is not None
        death = os.pidfd_open(self._process.pid)
        try:
            ready, _, _ = select.select([self._process.stdout, death], [], [], seconds)
        finally:
            os.close(death)
        return self._process.stdout.readline() if self._process.stdout in ready else ""

    def _obituary(self, seconds: float) -> Outcome:
        assert self._process is not None
        code = self._process.poll()
        if code is None and seconds < self.seconds:  # it has closed its pipe, and is about to end
            code = self._process.wait(self.seconds)
        words = self._last_words()
        self.close()
        if code is None:
            return Outcome("timed out", f"after {seconds:.0f} s", seconds=seconds)
        end = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return Outcome("crashed", f"{end}: {words}" if words else end, seconds=seconds)

    def _last_words(self) -> str:
        """Of a crash in C++, what Python was doing; else the last line."""
        self._said.seek(0)
        lines = [line.strip() for line in self._said.read().decode(errors="replace").splitlines() if line.strip()]
        frames = [number for number, line in enumerate(lines) if "most recent call first" in line]
        return lines[min(frames[-1] + 1, len(lines) - 1)] if frames else (lines or [""])[-1][:300]
