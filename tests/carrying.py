"""Sessions whose steps follow a plan, and the moves that Python is asked to perform in them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import torch

import torch_lms
from tests.fault_rig import check_books
from tests.injection import step_of_many_pages
from torch_lms.engine import Speeds, engine
from torch_lms.runtime import api
from torch_lms.runtime.native_moves import Moves

LIMIT = 20 * 4 * 64 * 64
"""Of the forty pages of a step, half fit."""

WARM_UP = 6


class Carrying:
    """A session in which steps follow a plan.

    Attributes:
        performed: moves that Python was asked to perform, since it began.
    """

    def __init__(self, lms: api.Lms, device: torch.device) -> None:
        self.lms = lms
        self.performed = 0
        self._device = device

    def run(self, steps: int = 1, halfway: Callable[[], object] = lambda: None) -> list[torch.Tensor]:
        """What they gave, on the host, and too small for a page."""
        found = []
        for _ in range(steps):
            found.append(step_of_many_pages(self._device, halfway).sum(0).cpu())
            torch_lms.step()
        return found


def expected() -> torch.Tensor:
    """What each step gives."""
    return step_of_many_pages().sum(0)


@contextmanager
def again_and_again(look: Callable[[], object]) -> Iterator[None]:
    """Inside, another thread calls ``look`` all the time. What that raises is raised at the end."""
    is_over = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        while not is_over.is_set():
            try:
                look()
                time.sleep(1e-4)  # locks are not fair
            except BaseException as error:
                failures.append(error)
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if failures:
        raise failures[0]


@contextmanager
def carrying(device: torch.device, expected: torch.Tensor, recompute: bool = False) -> Iterator[Carrying]:
    """A session on ``device``, from the first planned step on. At its end the books must add up.

    Args:
        device: of the pages.
        expected: what each step gives.
        recompute: whether pages are recomputed, where that is possible, rather than moved.
    """
    perform = Moves.perform
    slow = mock.patch.object(engine, "Speeds", return_value=Speeds(1e5, 1e5)) if recompute else nullcontext()
    with slow, torch_lms.session(limit=LIMIT, min_size=1024, device=device, recompute=recompute) as lms:
        session = Carrying(lms, device)
        assert all(map(expected.equal, session.run(WARM_UP)))
        lms.reset_stats()

        def counted(moves: Moves, asked: object, *args: object) -> bool:
            session.performed += len(asked)  # type: ignore[arg-type]
            return perform(moves, asked, *args)  # type: ignore[arg-type]

        with mock.patch.object(Moves, "perform", counted):
            yield session
            check_books()
