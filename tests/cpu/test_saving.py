"""A model that is larger than the limit is saved within it, and its file equals that of stock PyTorch (N11)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torch_lms
from torch_lms.capture.saving import Saving

safetensors = pytest.importorskip("safetensors.torch")
save_file = safetensors.save_file  # as transformers has it: bound before LMS is on

SIDE, COUNT = 128, 12
NBYTES = SIDE * SIDE * 4
LIMIT = COUNT * NBYTES // 3
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.complex64, torch.float8_e4m3fn)


def new_weights() -> dict[str, Tensor]:
    """Of several types, with small ones, one of another's storage, an empty one and a number among them."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        f"layer {number} ä": torch.randn(SIDE, SIDE, generator=generator).to(DTYPES[number % len(DTYPES)])
        for number in range(COUNT)
    }
    weights["bias"] = torch.randn(5, generator=generator)
    weights["part"] = torch.randn(2 * SIDE, SIDE, generator=generator)[SIDE:]
    weights["empty"] = torch.zeros(0, 3)
    weights["number"] = torch.tensor(1.5)
    return weights


def by_torch_save(weights: dict[str, Tensor], path: Path) -> None:
    torch.save({name: value.clone() if name == "part" else value for name, value in weights.items()}, path)


SAVES: dict[str, Callable[[dict[str, Tensor], Path], Any]] = {
    "save_file, bound before": lambda weights, path: save_file(weights, path, metadata={"format": "pt"}),
    "save_file": lambda weights, path: safetensors.save_file(weights, str(path)),
    "save": lambda weights, path: path.write_bytes(safetensors.save(weights)),
    "torch.save": by_torch_save,
}


@pytest.mark.parametrize("way", SAVES)
def test_the_file_is_that_of_stock_pytorch(tmp_path: Path, way: str) -> None:
    SAVES[way](new_weights(), tmp_path / "weights")
    expected = (tmp_path / "weights").read_bytes()
    with torch_lms.session(limit=LIMIT, min_size=1024) as lms:
        weights = new_weights()
        lms.reclaim()
        torch_lms.reset_stats()
        SAVES[way](weights, tmp_path / "weights")
        stats = lms.stats()
        lms.validate()
        assert (tmp_path / "weights").read_bytes() == expected
        assert stats.unpaged_bytes == {}
        if way != "save":  # that has all of it in memory, and its result, too
            assert stats.peak_resident_bytes <= LIMIT
    assert list(tmp_path.iterdir()) == [tmp_path / "weights"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_the_file_of_before_stays_until_the_new_one_is_whole(
    tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_bytes(b"of before")

    def fail(self: Saving, path: str, tensors: dict[str, Tensor]) -> None:
        assert Path(path).exists()
        raise error

    with torch_lms.session(limit=LIMIT, min_size=1024) as lms:
        weights = new_weights()
        with monkeypatch.context() as broken:
            broken.setattr(Saving, "_fill", fail)
            with pytest.raises(type(error)):
                save_file(weights, tmp_path / "weights")
        assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"of before"]
        save_file(weights, tmp_path / "weights")
        lms.validate()
        loaded = safetensors.load_file(tmp_path / "weights")
        assert all(torch.equal(loaded[name].view(torch.uint8), weights[name].view(torch.uint8)) for name in ["part"])


def test_over_the_file_that_it_was_loaded_from(tmp_path: Path) -> None:
    save_file(new_weights(), tmp_path / "weights")
    expected = (tmp_path / "weights").read_bytes()
    with torch_lms.session(limit=LIMIT, min_size=1024):
        weights = safetensors.load_file(tmp_path / "weights")
        save_file(weights, tmp_path / "weights")
        assert (tmp_path / "weights").read_bytes() == expected
        weights["part"].neg_().neg_()
        save_file(weights, tmp_path / "weights")
    assert (tmp_path / "weights").read_bytes() == expected
