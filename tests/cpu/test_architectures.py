"""Networks of other libraries, made small and fed by rules that know none of them: two of all."""

import pytest

# First: beside a build of PyTorch for the CPU, torchvision needs it.
pytest.importorskip("torch_lms.transformers", exc_type=ImportError)
pytest.importorskip("timm")

from tests.architectures.judge import judge
from tests.architectures.networks import names


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("timm:convnext", "train"),
        ("timm:convnext", "channels-last"),
        ("transformers:bert", "train"),
        ("transformers:bert", "checkpoint"),
        ("transformers:gpt2", "infer"),
        ("transformers:gpt2", "generate"),
    ],
)
def test_below_its_demand(name: str, way: str) -> None:
    verdict = judge(name, way)
    assert (verdict.state, verdict.detail) == ("equal", "")
    assert verdict.demand_bytes > 0
    assert all(peak <= 1 for peak in verdict.peaks.values()), verdict.peaks
    assert name in names()


def test_what_cannot_be_made_or_used_is_left_out() -> None:
    large, unable = judge("torchvision:vgg19"), judge("timm:convnext", "generate")
    assert large.state == unable.state == "left out"
    assert "parameters" in large.detail
    assert "generates nothing" in unable.detail
