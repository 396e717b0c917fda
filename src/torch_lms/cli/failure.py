"""Errors as the command line shows them: one line that says what to do, and an exit code."""

import sys

from torch_lms.errors import LmsError, UsageError

FAILED = 1
BAD_USAGE = 2
INTERRUPTED = 130


def explain(error: LmsError) -> int:
    """Say what went wrong on standard error; gives the exit code."""
    print(f"torch-lms: error: {' '.join(str(error).split())}", file=sys.stderr)
    return BAD_USAGE if isinstance(error, UsageError) else FAILED
