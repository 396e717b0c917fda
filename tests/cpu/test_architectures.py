"""Networks of other libraries, made small and fed by rules that know none of them: two of all."""

import pytest

# First: beside a build of PyTorch for the CPU, torchvision needs it.
pytest.importorskip("torch_lms.transformers", exc_type=ImportError)
pytest.importorskip("timm")

from tests.architectures.judge import judge
from tests.architectures.networks import names


@pytest.mark.parametrize("name", ["timm:convnext", "transformers:bert"])
def test_trained_below_its_demand(name: str) -> None:
    verdict = judge(name)
    assert (verdict.state, verdict.detail) == ("equal", "")
    assert verdict.demand_bytes > 0
    assert all(peak <= 1 for peak in verdict.peaks.values()), verdict.peaks
    assert name in names()


def test_what_cannot_be_made_is_left_out() -> None:
    verdict = judge("torchvision:vgg19")
    assert verdict.state == "left out"
    assert "parameters" in verdict.detail
