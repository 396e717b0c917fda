"""At which settings tests run under LMS."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """What ``torch_lms.session`` is given, and how often the body of a test runs in one session, as steps."""

    policy: str
    limit: str
    min_size: str
    repeats: int = 1

    def __str__(self) -> str:
        name = f"{self.policy}-{self.limit}-{self.min_size}"
        return name if self.repeats == 1 else f"{name}-x{self.repeats}"

    def options(self) -> dict[str, Any]:
        """For ``torch_lms.session``."""
        return {"policy": self.policy, "limit": self.limit, "min_size": self.min_size, "device": "cpu"}


# A plan is made of a kind of step that came twice. The first step of a session is unlike the others, so the fourth
# is the first that follows a plan.
_ALL = (
    Setting("reactive", "0", "1"),
    Setting("planned", "0", "1", repeats=4),
    Setting("planned", "2kB", "64"),
    Setting("reactive", "0", "1MiB"),
    Setting("planned", "2kB", "1", repeats=4),
    Setting("planned", "0", "64"),
    Setting("planned", "0", "1MiB"),
    Setting("reactive", "0", "64"),
    Setting("reactive", "2kB", "1"),
)

SETTINGS = {str(setting): setting for setting in _ALL}
"""By name."""

DEFAULT = tuple(SETTINGS)[:4]
QUICK = tuple(SETTINGS)[:2]
