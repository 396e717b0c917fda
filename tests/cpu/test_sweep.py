"""A sample of the sweep over PyTorch's own lists (the whole: ``python -m tests.sweep``)."""

import pytest

from tests.sweep.__main__ import failures
from tests.sweep.cases import Case, all_cases
from tests.sweep.variants import judge

CASES = all_cases()
ONCE_WRONG = (
    "operator sparse.mm.reduce float64",
    "module nn.CTCLoss float32",
    "module nn.LazyConv3d float32",
    "operator cov float32",
    "operator __rpow__ float64",
    "module nn.GELU float32",
)
SAMPLE = [case for number, case in enumerate(CASES) if number % 60 == 0 or str(case) in ONCE_WRONG]


def test_the_lists_are_found() -> None:
    assert len(CASES) > 2000
    assert {case.kind for case in CASES} == {"operator", "foreach", "module", "optimizer"}


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_equal_to_the_bit(case: Case, in_pieces: bool) -> None:
    verdict = judge(case, in_pieces)
    assert failures(case, verdict) == []
    assert verdict.state == "excluded" or verdict.attempts > verdict.raised
