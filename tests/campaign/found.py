"""What a part is told, and what it finds."""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Where:
    """The device, by its type; tiny sizes or real ones; a folder for what parts leave for each other."""

    device: str
    is_tiny: bool
    folder: Path

    @property
    def torch_device(self) -> torch.device:
        """The first device of the type."""
        return torch.device(self.device, 0)


@dataclass
class Found:
    """What a part has found so far. It is written with each new row, so nothing is lost if the part is ended.

    Attributes:
        rows: what, and the figure, for people.
        figures: for programs.
        failures: what went wrong; none if the part has passed.
        summary: the rows in a few words.
    """

    target: Path
    rows: list[tuple[str, str]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    summary: str = ""

    def row(self, what: str, figure: str) -> None:
        """Add a row."""
        self.rows.append((what, figure))
        print(f"  {what}: {figure}", file=sys.stderr, flush=True)
        self.save()

    def fail(self, why: str) -> None:
        """The part has not passed."""
        self.failures.append(why)
        print(f"  FAILED: {why}", file=sys.stderr, flush=True)
        self.save()

    def save(self) -> None:
        """Write all."""
        plain = asdict(self)
        del plain["target"]
        written = self.target.with_suffix(".new")
        written.write_text(json.dumps(plain))
        written.replace(self.target)
