"""The largest value that fits is one answer, wherever the search begins."""

from collections.abc import Callable
from itertools import chain

import pytest

from torch_lms.answers.search import largest_that_fits

STARTS = (*range(1, 40), *(round(1.7**n) for n in range(7, 35)))
LIMIT = 1e9


def answers(fits: Callable[[int], bool], granule: int = 1) -> set[int]:
    return {largest_that_fits(fits, granule, start) for start in STARTS}


@pytest.mark.parametrize("granule", [1, 3, 16, 100])
@pytest.mark.parametrize("power", [0.3, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("constant", [0.0, 0.5, 0.99])
def test_it_is_the_largest_to_a_hundredth(granule: int, power: float, constant: float) -> None:
    """What is needed grows by any power, beside what is always there."""

    def fits(value: int) -> bool:
        return constant * LIMIT + 7 * float(value) ** power <= LIMIT

    (found,) = answers(fits, granule)
    true = ((1 - constant) * LIMIT / 7) ** (1 / power) // granule * granule
    assert found % granule == 0
    assert 0.99 * true <= found <= true


def test_small_answers_are_exact() -> None:
    for true in range(300):
        assert answers(lambda value, true=true: value <= true) == {true}


def test_none_fits() -> None:
    assert answers(lambda value: False) == {0}


@pytest.mark.parametrize("bump", [(1000, 1300), (3000, 4000), (4096, 8000), (900, 2047), (8192, 16384)])
def test_what_needs_more_for_a_while_is_passed(bump: tuple[int, int]) -> None:
    """As where operations are done in another way from some size on: it fits, does not, and fits again."""
    (found,) = answers(lambda value: value <= 20_000 and not bump[0] <= value < bump[1])
    assert found == pytest.approx(20_000, rel=0.01)


def test_needs_that_jump_up_and_down_give_one_answer() -> None:
    """Within a power of two any value may fit or not: it is the same from everywhere, and one that fits."""
    for seed in range(50):

        def fits(value: int, seed: int = seed) -> bool:
            return value <= 3000 or (value < 6000 and hash((value, seed)) % 3 > 0)

        (found,) = answers(fits)
        assert fits(found)
        assert 3000 * 0.99 <= found < 6000


def test_what_fits_wherever_another_does_is_told_no_less() -> None:
    """As a step with LMS does, whose search begins at the answer without; however either jumps."""
    for seed in range(200):

        def stock(value: int, seed: int = seed) -> bool:
            return value < 5000 and hash((value, seed)) % 3 > 0

        def paged(value: int, seed: int = seed, stock: Callable[[int], bool] = stock) -> bool:
            return stock(value) or (value < 9000 and hash((value, seed, 1)) % 4 == 0)

        without = largest_that_fits(stock, 1, 64)
        assert largest_that_fits(paged, 1, without) >= without


def test_few_values_are_tried() -> None:
    """From a thousandth and from a thousand times the answer: ten doublings or halvings, and eight halves."""
    for start in (13, 13_000, 13_000_000):
        tried: list[int] = []

        def fits(value: int, tried: list[int] = tried) -> bool:
            tried.append(value)
            return value <= 12_896

        assert largest_that_fits(fits, 1, start) == 12_896
        assert len(set(tried)) <= 2 + 11 + 8


def test_no_try_is_far_above_what_fits() -> None:
    """Steps that are absurdly large need not be traced, unless it begins there."""
    for start in chain(range(1, 100), [1000, 5000]):
        tried: list[int] = []

        def fits(value: int, tried: list[int] = tried) -> bool:
            tried.append(value)
            return value <= 5000

        largest_that_fits(fits, 1, start)
        assert max(tried) <= 4 * 5000
