"""Tests that fail under LMS only, and why that is no fault."""

from dataclasses import dataclass
from fnmatch import fnmatch


@dataclass(frozen=True, slots=True)
class Known:
    """Patterns as of shells, for the file, the test, and the setting."""

    file: str
    test: str
    settings: str
    reason: str

    def covers(self, file: str, test: str, setting: str) -> bool:
        """Whether this names it."""
        return fnmatch(file, self.file) and fnmatch(test, self.test) and fnmatch(setting, self.settings)


KNOWN: tuple[Known, ...] = ()
