"""A model that is larger than the limit is loaded, used and trained within it, whoever loads it (N12)."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import same_bits
from documents import ROOT
from torch import Tensor, nn

import torch_lms
from torch_lms.runtime.executor import CAN_SWAP
from torch_lms.targets.torchvision_operators import define_torchvision_operators

pytestmark = pytest.mark.skipif(not CAN_SWAP, reason="what is loaded cannot leave before PyTorch 2.12")

WIDTH, LAYERS = 128, 12
WEIGHTS_NBYTES = LAYERS * WIDTH * (WIDTH + 1) * 4
LIMIT = WEIGHTS_NBYTES // 3


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)))


@functools.cache
def checkpoint_in(folder: Path) -> Path:
    """A model, and its weights in files of two kinds."""
    model = new_model()
    torch.save(model.state_dict(), folder / "model.pt")
    torch.save(model, folder / "whole.pt")
    pytest.importorskip("safetensors.torch").save_file(model.state_dict(), folder / "model.safetensors")
    return folder


def with_weights(weights: dict[str, Tensor]) -> nn.Module:
    with torch.device("meta"):
        model = new_model()
    model.load_state_dict(weights, assign=True)
    return model


def by_torch_load(folder: Path, **options: Any) -> nn.Module:
    return with_weights(torch.load(folder / "model.pt", **options))


def whole_by_torch_load(folder: Path) -> nn.Module:
    return torch.load(folder / "whole.pt", weights_only=False)


def by_safetensors(folder: Path) -> nn.Module:
    from safetensors.torch import load_file

    return with_weights(load_file(folder / "model.safetensors"))


def by_reading(folder: Path) -> nn.Module:
    """Not by mapping."""
    import safetensors.torch

    try:
        weights = safetensors.torch.load_file(folder / "model.safetensors", backend="pread")
    except TypeError:  # an older version, which can only map it
        weights = read_bytes(folder / "model.safetensors")
    return with_weights(weights)


def by_safe_open(folder: Path) -> nn.Module:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        return with_weights({name: file.get_slice(name)[:] for name in file.keys()})  # noqa: SIM118


WAYS: dict[str, Callable[[Path], nn.Module]] = {
    "torch.load": by_torch_load,
    "torch.load, mapped": functools.partial(by_torch_load, mmap=True),
    "torch.load of a model": whole_by_torch_load,
    "load_file": by_safetensors,
    "safe_open": by_safe_open,
    "load_file, read": by_reading,
}


def used(model: nn.Module) -> list[Tensor]:
    """What it gives, and its weights after two steps."""
    torch.manual_seed(1)
    with torch.no_grad():
        given = model(torch.randn(8, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [given, *(parameter.detach() for parameter in model.parameters())]


@pytest.mark.parametrize("way", WAYS)
def test_a_model_larger_than_the_limit(tmp_path: Path, way: str) -> None:
    folder = checkpoint_in(tmp_path)
    expected = used(WAYS[way](folder))
    with torch_lms.session(limit=LIMIT, min_size=1024) as lms:
        model = WAYS[way](folder)
        assert lms.stats().resident_bytes <= LIMIT
        found = used(model)
        lms.validate()
        stats = lms.stats()
    assert same_bits(found, expected)
    assert stats.peak_resident_bytes <= LIMIT
    assert not stats.unpaged_bytes


def read_bytes(path: Path) -> dict[str, Tensor]:
    return pytest.importorskip("safetensors.torch").load(path.read_bytes())


def read_file(path: Path) -> dict[str, Tensor]:
    return pytest.importorskip("safetensors.torch").load_file(path)


@pytest.mark.parametrize(
    ("load", "name"), [(torch.load, "model.pt"), (read_file, "model.safetensors"), (read_bytes, "model.safetensors")]
)
def test_tensors_that_are_no_parameters(tmp_path: Path, load: Callable[[Path], dict[str, Tensor]], name: str) -> None:
    """As buffers are, or weights that are merged."""
    folder = checkpoint_in(tmp_path)

    def doubled() -> list[Tensor]:
        values = load(folder / name)
        for value in values.values():
            value *= 2
        return [values[key] for key in sorted(values)]

    expected = doubled()
    with torch_lms.session(limit=LIMIT, min_size=512) as lms:
        values = doubled()
        lms.reclaim()
        stats = lms.stats()
        lms.validate()
    assert same_bits(values, expected)
    assert (stats.resident_bytes, stats.unpaged_bytes) == (0, {})
    assert stats.peak_resident_bytes <= LIMIT


def test_from_pretrained(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    define_torchvision_operators()
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=300, n_positions=32, n_embd=128, n_layer=6, n_head=4)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    tokens = torch.arange(32).view(2, 16)

    def generated() -> list[Tensor]:
        model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
        with torch.no_grad():
            logits = model(tokens).logits
        return [logits, *(value.clone() for value in model.state_dict().values())]

    expected = generated()
    weights = sum(value.nbytes for value in expected[1:])
    with torch_lms.session(limit=weights // 3, min_size=1024) as lms:
        with torch.no_grad():
            model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
            assert lms.stats().resident_bytes <= weights // 3
            logits = model(tokens).logits
        stats = lms.stats()
        lms.validate()
    assert same_bits([logits, *model.state_dict().values()], expected)
    assert stats.peak_resident_bytes <= weights // 3
    assert not stats.unpaged_bytes


def test_the_page_on_weights_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    define_torchvision_operators()
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/tutorials/fine-tuning.md").read_text()
    program = re.search(r"test_loading.py runs it -->\n```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert program is not None
    exec(program[1], {})
    assert re.search(r"in loaded files 4\d\d MB\n +evicted +0 B", capsys.readouterr().out)


def test_a_file_that_a_program_maps_itself(tmp_path: Path) -> None:
    """Whoever has the whole may read in it what is written to a part: neither leaves."""
    (tmp_path / "bytes").write_bytes(bytes(1 << 14))
    with torch_lms.session(limit=0, min_size=1024) as lms:
        whole = torch.UntypedStorage.from_file(str(tmp_path / "bytes"), False, 1 << 14)
        part = torch.empty(0).set_(whole[: 1 << 13])
        part.fill_(1)
        lms.reclaim()
        assert torch.empty(0).set_(whole)[:4].tolist() == [1, 1, 1, 1]
        assert sum(lms.stats().unpaged_bytes.values()) > 0


def test_a_tensor_that_is_taken_twice_from_one_file(tmp_path: Path) -> None:
    """Both show the same memory, as without LMS."""
    from safetensors import safe_open

    folder = checkpoint_in(tmp_path)
    with torch_lms.session(limit=0, min_size=1024) as lms, safe_open(folder / "model.safetensors", "pt") as file:
        first = file.get_tensor("0.0.weight")
        first.zero_()
        lms.reclaim()
        assert not file.get_tensor("0.0.weight").any()
        assert not lms.stats().unpaged_bytes


def test_a_truncated_checkpoint(tmp_path: Path) -> None:
    """The error is the loader's own, and the session goes on."""
    folder = checkpoint_in(tmp_path)
    cut = tmp_path / "cut.pt"
    cut.write_bytes((folder / "model.pt").read_bytes()[:-5000])
    with torch_lms.session(limit=LIMIT, min_size=1024) as lms:
        with pytest.raises(RuntimeError, match="PytorchStreamReader"):
            torch.load(cut)
        assert same_bits(used(by_torch_load(folder)), used(by_torch_load(folder)))
        lms.validate()
