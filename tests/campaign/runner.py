"""Runs parts, each in a process of its own and within its time, and keeps what they found."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tests import accelerator
from tests.campaign.found import ROOT
from tests.campaign.parts import Part

FORMAT = 1
PASSED, FAILED, TIMED_OUT, NOT_RUN = "passed", "failed", "timed out", "not run"
_GRACE_S = 10.0
"""From the wish that a process ends to its end."""


@dataclass
class Kept:
    """The results so far, as a file: ``parts`` by name."""

    target: Path
    parts: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, target: Path) -> "Kept":
        """From ``target``, if it is there.

        Raises:
            ValueError: it holds something else.
        """
        if not target.exists():
            return cls(target, {})
        found = json.loads(target.read_text())
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError(f"{target} holds no results of this campaign")
        return cls(target, found["parts"])

    def keep(self, name: str, outcome: dict[str, Any]) -> None:
        """Add an outcome, and write all."""
        self.parts[name] = outcome
        plain = {"format": FORMAT, "parts": self.parts}
        self.target.parent.mkdir(parents=True, exist_ok=True)
        written = self.target.with_suffix(".new")
        written.write_text(json.dumps(plain, indent=1) + "\n")
        written.replace(self.target)

    def passed(self, name: str) -> bool:
        """Whether the part has passed, now or before."""
        return name in self.parts and self.parts[name]["status"] == PASSED


def run(part: Part, device: str, limit_s: float, config: Path) -> dict[str, Any]:
    """Run a part; what came of it. Its own output goes to standard error."""
    is_tiny = device == accelerator.NAME
    environment = accelerator.autoloading() | {"XDG_CONFIG_HOME": str(config)} if is_tiny else dict(os.environ)
    # what counts are steps once there is a plan
    environment |= {"PYTHONUNBUFFERED": "1", "TORCH_LMS_PLANNING": "at-once"}
    with tempfile.TemporaryDirectory(prefix="torch-lms-campaign-") as folder:
        found = Path(folder) / "found.json"
        command = [sys.executable, "-m", "tests.campaign.part", part.name, "--on", device]
        command += ["--folder", folder, "--found", str(found), *(["--tiny"] if is_tiny else [])]
        began_s = time.monotonic()
        code = _ended(command, environment, limit_s)
        seconds = time.monotonic() - began_s
        told = json.loads(found.read_text()) if found.exists() else {}
    status = {None: TIMED_OUT, 0: PASSED}.get(code, FAILED)
    failures = told.get("failures", [])
    if code is None:
        failures = [*failures, f"ended after {limit_s:.0f} s"]
    elif code and not failures:
        failures = [f"the process ended with {code}"]
    outcome = {"status": status, "seconds": seconds, "taken": datetime.now(UTC).isoformat(timespec="seconds")}
    versions = {"commit": _commit(), "torch": torch.__version__}
    told = {name: told.get(name) or empty for name, empty in (("summary", ""), ("rows", []), ("figures", {}))}
    return {**outcome, **versions, **told, "failures": failures}


def not_run(why: str) -> dict[str, Any]:
    """The outcome of a part that was left out."""
    return {"status": NOT_RUN, "seconds": 0.0, "failures": [why], "summary": "", "rows": [], "figures": {}}


def _ended(command: list[str], environment: dict[str, str], limit_s: float) -> int | None:
    """The exit code of ``command``; None if it was ended after ``limit_s``. None of its children is left."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=sys.stderr, start_new_session=True)
    with process, _ending(process):
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None


@contextmanager
def _ending(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    try:
        yield
    finally:
        for sent in (signal.SIGTERM, signal.SIGKILL):  # torchrun's workers have groups of their own; it ends them
            try:
                os.killpg(process.pid, sent)
                process.wait(_GRACE_S)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def _commit() -> str:
    """Of the repository; "" where that is not known."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
