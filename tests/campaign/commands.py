"""Commands that parts run."""

import subprocess
import sys

from tests.campaign.found import ROOT


class CommandFailed(Exception):
    """A command ended with another code than 0; says with which, and its last line."""


def run(*arguments: str, may_fail: bool = False) -> str:
    """Run python with ``arguments`` in the root of the repository; what it writes goes on to standard error, too.

    Raises:
        CommandFailed: it failed, and must not.
    """
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            print(line, end="", file=sys.stderr, flush=True)
            lines.append(line)
    if process.returncode and not may_fail:
        said = [line.strip() for line in lines if line.strip()] or ["nothing was said"]
        raise CommandFailed(f"{' '.join(arguments[:4])} ended with {process.returncode}: {said[-1]}")
    return "".join(lines)
