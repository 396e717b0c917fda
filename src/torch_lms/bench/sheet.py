"""Results in the columns of IBM's statistics of LMS, for those who kept their sheets: a row a trial that completed.

The columns are those of ``lmsstats.py`` of PyTorch LMS 1.4 and 1.5: of a run the size and the rates, of a step the
means. ``duration`` is in seconds. What the way does not tell is empty.
"""

import csv
import io
from collections.abc import Iterable
from typing import Any

from torch_lms.bench.trial import Trial

_UNITS = {"pixels": ("megapixels/sec", 1e6), "voxels": ("megavoxels/sec", 1e6)}

_ALLOCATIONS = {
    "alloc_freelist": "free",
    "alloc_cudamalloc": "",
    "alloc_reclaim_one": "one",
    "alloc_reclaim_fragments": "some",
    "alloc_reclaim_all": "all",
    "alloc_cudamalloc_retry": "retry",
}
"""IBM's names, and ours. Whether the allocator had a block or asked the driver is not seen: all count as freelist."""


def sheet(trials: Iterable[Trial]) -> str:
    """The text of a CSV file."""
    rows = [_row(trial) for trial in trials if trial.is_completed]
    rate = next((name for name in rows[0] if name.endswith("/sec")), "items/sec") if rows else "megapixels/sec"
    columns = [
        *("image_size", rate, f"median {rate}", "duration", "reclaimed_blocks", "reclaimed_bytes"),
        *_ALLOCATIONS,
        *("num_steps", "way"),
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", restval="", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(trial: Trial) -> dict[str, Any]:
    rate, scale = _UNITS.get(trial.item, (f"{trial.item}/sec", 1.0))
    mean_s = sum(trial.step_s) / len(trial.step_s)
    median_rate = (trial.items_per_s or 0.0) / scale
    row: dict[str, Any] = {
        "image_size": trial.point.get("size", ""),
        rate: f"{median_rate * (trial.step_s_median or mean_s) / mean_s:.6g}",
        f"median {rate}": f"{median_rate:.6g}",
        "duration": f"{mean_s:.6g}",
        "reclaimed_blocks": "" if trial.evictions is None else f"{trial.evictions:g}",
        "reclaimed_bytes": "" if trial.evicted_bytes is None else trial.evicted_bytes,
        "num_steps": trial.steps,
        "way": trial.way,
    }
    if trial.allocations is not None:
        for theirs, ours in _ALLOCATIONS.items():
            row[theirs] = f"{trial.allocations.get(ours, 0) / trial.steps:g}"
    return row
