"""What is said in one line of what moved: by a notebook after each cell, by a view beside the program."""

from torch_lms.units import format_bytes, format_seconds


def moved_and_held(evicted_bytes: int, fetched_bytes: int, stall_s: float, peak_bytes: int, limit_bytes: int) -> str:
    """As in "out 1.2 GB, in 1.3 GB, waited 20 ms; peak so far 4 GB, limit 4.2 GB".

    Args:
        evicted_bytes: copied from the device, of what is told of.
        fetched_bytes: copied back.
        stall_s: seconds that the program waited for these copies.
        peak_bytes: the most on the device since counting began.
        limit_bytes: in force now.
    """
    return (
        f"out {format_bytes(evicted_bytes)}, in {format_bytes(fetched_bytes)}, waited {format_seconds(stall_s)}; "
        f"peak so far {format_bytes(peak_bytes)}, limit {format_bytes(limit_bytes)}"
    )
