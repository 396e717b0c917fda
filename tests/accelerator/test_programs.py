"""Programs on several streams under LMS, in schedules that delay what is not waited for; and that they can fail."""

import pytest
import torch

from tests.accelerator import fuzz, mutants, programs

RANDOM = 60


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_programs_written_for_one_wait(name: str, device: torch.device) -> None:
    assert programs.difference(programs.PROGRAMS[name], device) == ""


@pytest.mark.parametrize("first", range(0, RANDOM, 10))
def test_random_programs(first: int, device: torch.device) -> None:
    verdicts = [fuzz.verdict(seed, device) for seed in range(first, first + 10)]
    assert [found.difference for found in verdicts if found.difference] == []
    assert sum(found.evictions for found in verdicts) > 0


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_every_wait_that_may_be_left_out_is_there(mutant: mutants.Mutant) -> None:
    without = mutant.applied(mutant.file.read_text())
    if not mutant.is_native:
        compile(without, mutant.file.name, "exec")


@pytest.mark.parametrize(
    "name", ["freeing after a copy: for that copy", "home for a copy up", "native: home for a copy up"]
)
def test_a_wait_that_is_left_out_is_missed(name: str) -> None:
    number = [mutant.name for mutant in mutants.MUTANTS].index(name)
    assert mutants.found_by_process(number, programs=5)


def test_without_a_mutant_nothing_goes_wrong() -> None:
    assert mutants.found_by_process(-1, programs=1) == ""
