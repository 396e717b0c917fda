"""Pages of the CPU on their way to a file and back, where the native interposer copies them."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.ways import IS_NATIVE
from torch_lms.native import load
from torch_lms.native.module import Spilling

pytestmark = pytest.mark.skipif(not IS_NATIVE, reason=f"no native interposer here: {load.find().reason}")

PAGES = 80
NBYTES = 9_000
FOR_EVER_S = 1e6
DAMAGED = -2


class File:
    """A file with pages: page n is filled with n."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        native = load.find().native
        assert native is not None
        self.spill: Spilling = native.Spill(self.fd, 2)
        self.spill.grant(0, 1 << 20)
        self.reads = 0
        self.pages = [torch.full((NBYTES,), number, dtype=torch.uint8) for number in range(PAGES)]
        for number, page in enumerate(self.pages):
            assert self.spill.start_evict(number, page.untyped_storage())
        assert [self.spill.finish(number, FOR_EVER_S) for number in range(PAGES)] == [0] * PAGES
        for page in self.pages:
            page.fill_(255)

    def fetch(self, numbers: list[int]) -> list[int | None]:
        """How each of these copies ended."""
        for number in numbers:
            self.spill.start_fetch(number, self.pages[number].untyped_storage())
        return [self.spill.finish(number, FOR_EVER_S) for number in numbers]

    def is_there(self, number: int) -> bool:
        return bool((self.pages[number] == number).all())

    def count(self, is_read: bool, _: int) -> int:
        self.reads += is_read
        return 0


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    file = File(tmp_path / "pages")
    yield file
    file.spill.close()
    os.close(file.fd)


def hindered(file: File, numbers: list[int]) -> list[int | None]:
    native = load.find().native
    assert native is not None
    native.hinder(file.count)
    try:
        return file.fetch(numbers)
    finally:
        native.hinder(None)


def test_small_pages_are_read_at_once_in_any_order(file: File) -> None:
    """Backward needs them last first, and some that left early among the others."""
    numbers = list(range(PAGES - 1, 9, -1))
    for place, number in ((3, 0), (9, 1), (20, 2)):
        numbers.insert(place, number)
    assert hindered(file, numbers) == [0] * len(numbers)
    assert all(map(file.is_there, numbers))
    assert file.reads < len(numbers) / 3


def test_what_lies_far_apart_is_read_by_itself(file: File) -> None:
    """Nobody asked for what lies between."""
    numbers = [0, 15, 30]
    assert hindered(file, numbers) == [0, 0, 0]
    assert file.reads == 3
    assert all(map(file.is_there, numbers))
    assert not file.is_there(1)


def test_a_damaged_page_costs_its_neighbours_nothing(file: File) -> None:
    os.pwrite(file.fd, b"other bytes", file.spill.place(20)[0] + 100)
    failures = file.fetch(list(range(PAGES)))
    assert failures == [DAMAGED if number == 20 else 0 for number in range(PAGES)]
    assert all(file.is_there(number) for number in range(PAGES) if number != 20)


def test_a_file_that_ends_early_costs_those_before_nothing(file: File) -> None:
    last = max(file.spill.place(number)[0] for number in range(PAGES))
    os.ftruncate(file.fd, last)
    failures = file.fetch(list(range(PAGES)))
    assert [number for number, failure in enumerate(failures) if failure] == [
        number for number in range(PAGES) if file.spill.place(number)[0] == last
    ]
    assert sum(map(file.is_there, range(PAGES))) == PAGES - 1


@pytest.mark.parametrize("is_up", [False, True])
def test_a_small_copy_is_not_left_for_ever(is_up: bool, file: File) -> None:
    """Nobody waits for it, and no other comes: it begins when somebody asks what has ended."""
    if is_up:
        file.spill.start_fetch(7, file.pages[7].untyped_storage())
    else:
        file.spill.discard(7)
        assert file.spill.start_evict(7, file.pages[7].untyped_storage())
    until = time.monotonic() + 60
    while 7 not in file.spill.landed():
        assert time.monotonic() < until
        time.sleep(0.001)
    assert file.spill.finish(7, FOR_EVER_S) == 0
    assert not is_up or file.is_there(7)


def test_the_end_of_a_large_copy_is_not_left(file: File) -> None:
    """Though it is small: all of it comes, and nobody asks for that."""
    page = torch.arange(1_300_000, dtype=torch.uint8)
    file.spill.grant(1 << 20, 2 << 20)
    assert file.spill.start_evict(PAGES, page.untyped_storage())
    assert file.spill.finish(PAGES, FOR_EVER_S) == 0
    expected = page.clone()
    page.zero_()
    file.spill.start_fetch(PAGES, page.untyped_storage())
    until = time.monotonic() + 60
    while page[-1] != expected[-1]:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert file.spill.finish(PAGES, FOR_EVER_S) == 0
    assert page.equal(expected)


def test_a_small_copy_is_given_up_before_it_begins(file: File) -> None:
    file.spill.start_fetch(7, file.pages[7].untyped_storage())
    file.spill.discard(7)
    assert not file.spill.has(7)
    assert file.fetch([6, 8]) == [0, 0]
