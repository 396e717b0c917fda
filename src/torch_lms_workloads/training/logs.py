"""What is recorded of a training: ``log.jsonl``, and the same for TensorBoard if that is installed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LINES = "log.jsonl"
BOARD = "tensorboard"


class Log:
    """In a folder; without one nothing is written."""

    def __init__(self, folder: Path | None, step: int) -> None:
        """``step``: what is on record after it was done by a run that was interrupted, and will be done again."""
        self._lines = self._board = None
        if folder is None:
            return
        path = folder / LINES
        kept = [line for line in _whole_lines(path) if json.loads(line)["step"] <= step]
        path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        self._lines = path.open("a", encoding="utf-8")
        self._board = _board(folder / BOARD, step)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Of one step: numbers by name."""
        if self._lines is not None:
            self._lines.write(json.dumps({"step": step, **values}) + "\n")
            self._lines.flush()
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
        if self._board is not None:
            self._board.close()


def _whole_lines(path: Path) -> list[str]:
    """But for one that was being written when the process was killed."""
    if not path.is_file():
        return []
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=False) if line.endswith("}")]


def _board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=step + 1)
