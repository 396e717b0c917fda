"""Which threads work beside the training."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from torch_lms.runtime.asides import Asides


@pytest.fixture(name="other")
def of_another_thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as other:
        yield other


def test_a_thread_that_goes_on_from_step_to_step_is_one(other: ThreadPoolExecutor) -> None:
    asides = Asides()
    asides.thread_begins()
    other.submit(asides.thread_begins).result()
    assert not other.submit(asides.is_one).result(), "it may be part of the first step"
    asides.step_ends()
    assert other.submit(asides.is_one).result()
    assert len(asides.threads) == 1
    assert not asides.is_one()
    other.submit(asides.thread_ends).result()
    asides.step_ends()
    assert not asides.threads


def test_a_thread_that_begins_within_a_step_is_none(other: ThreadPoolExecutor) -> None:
    asides = Asides()
    asides.thread_begins()
    asides.step_ends()
    other.submit(asides.thread_begins).result()
    assert not other.submit(asides.is_one).result()


def test_a_thread_that_nobody_knows_is_none(other: ThreadPoolExecutor) -> None:
    """As autograd's own."""
    asides = Asides()
    asides.step_ends()
    assert not other.submit(asides.is_one).result()


def test_whoever_ends_the_steps_is_none(other: ThreadPoolExecutor) -> None:
    asides = Asides()
    asides.thread_begins()
    other.submit(asides.thread_begins).result()
    other.submit(asides.step_ends).result()
    assert not other.submit(asides.is_one).result()
    assert asides.is_one()
