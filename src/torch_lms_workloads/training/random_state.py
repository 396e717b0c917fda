"""Random numbers: where they begin, and all of their state."""

import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.backends import cudnn

_NO_SEARCH = {
    "benchmark": False,
    **dict.fromkeys(("enabled", "benchmark_limit", "deterministic", "allow_tf32", "fp32_precision")),
}
"""For ``cudnn.flags``: no search for the fastest algorithm, which may end otherwise each time; None leaves a flag."""

STRIDE = 1_000_003
"""Between the seeds of ranks."""


def random_state() -> dict[str, Any]:
    """Of torch, its accelerator, numpy and Python, in what ``torch.load`` takes for harmless."""
    name, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "accelerator": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "numpy": (name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest),
        "python": random.getstate(),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """What ``random_state`` gave."""
    torch.set_rng_state(state["torch"])
    if state["accelerator"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["accelerator"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])


def seed_everything(seed: int, rank: int = 0) -> None:
    """The same on each rank gives all the same network; another on each rank other noise."""
    seed = (seed + STRIDE * rank) % 2**32
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Algorithms that give the same each time. Where there is none, torch warns and names the operation."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
    mode = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with cudnn.flags(**_NO_SEARCH):
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
