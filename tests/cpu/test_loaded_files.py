"""The file that weights were loaded from is their lower tier: what is only read is never written anywhere (N26)."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bits import same_bits
from torch import Tensor

import torch_lms
from torch_lms.errors import PageLostError
from torch_lms.runtime.api import Lms
from torch_lms.runtime.executor import CAN_SWAP
from torch_lms.stores.loaded_file import LoadedFile

pytestmark = pytest.mark.skipif(not CAN_SWAP, reason="what is loaded cannot leave before PyTorch 2.12")

SIDE, COUNT = 128, 12
NBYTES = SIDE * SIDE * 4
WEIGHTS_NBYTES = COUNT * NBYTES
LIMIT = WEIGHTS_NBYTES // 3
MIN_SIZE = NBYTES // 2

Weights = dict[str, Tensor]


def by_safetensors(path: Path) -> Weights:
    from safetensors.torch import load_file

    return load_file(path)


def by_torch(path: Path) -> Weights:
    return torch.load(path, mmap=True)


LOADS: dict[str, Callable[[Path], Weights]] = {"safetensors": by_safetensors, "torch.load": by_torch}


@pytest.fixture(params=LOADS)
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Weights]:
    """Loads weights from the file ``tmp_path / "weights"``."""
    generator = torch.Generator().manual_seed(0)
    weights = {f"w{index}": torch.randn(SIDE, SIDE, generator=generator) / SIDE**0.5 for index in range(COUNT)}
    if request.param == "safetensors":
        pytest.importorskip("safetensors.torch").save_file(weights, tmp_path / "weights")
    else:
        torch.save(weights, tmp_path / "weights")
    return lambda: LOADS[request.param](tmp_path / "weights")


def product(weights: Weights) -> Tensor:
    """By operations of which only the weights are pages."""
    result = torch.ones(4, SIDE)
    for weight in weights.values():
        result = result @ weight
    return result


def take_steps(lms: Lms, weights: Weights, expected: Tensor) -> None:
    """Twelve, which all give the same."""
    for _ in range(12):
        assert same_bits(product(weights), expected)
        torch_lms.step()
        lms.validate()


def test_what_is_only_read_is_written_nowhere(load: Callable[[], Weights]) -> None:
    expected = product(load())
    with torch_lms.session(limit=LIMIT, min_size=MIN_SIZE) as lms:
        weights = load()
        take_steps(lms, weights, expected)
        stats = lms.stats()
    assert (stats.evicted_bytes, stats.disk_bytes, stats.unpaged_bytes) == (0, 0, {})
    assert stats.file_bytes == WEIGHTS_NBYTES
    assert stats.fetched_bytes > 0
    assert stats.peak_resident_bytes <= LIMIT
    assert same_bits(product(weights), expected)


def test_following_a_plan(load: Callable[[], Weights], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_LMS_PLANNING", "at-once")
    expected = product(load())
    with torch_lms.session(limit=LIMIT, min_size=MIN_SIZE) as lms:
        weights = load()
        take_steps(lms, weights, expected)
        weights["w3"].neg_()
        torch_lms.step()
        assert same_bits(product(weights), -expected)
        lms.validate()
        stats = lms.stats()
    assert stats.planned_steps > 0
    assert stats.file_bytes == WEIGHTS_NBYTES - NBYTES


def test_tensors_that_were_written_unseen(load: Callable[[], Weights]) -> None:
    """Those below ``min_size``, which is lowered later."""
    expected = {name: weight + 1 for name, weight in load().items()}
    with torch_lms.session(limit=LIMIT, min_size=2 * NBYTES) as lms:
        weights = load()
        for weight in weights.values():
            weight.add_(1)
        lms._session.set_min_size(MIN_SIZE)
        product(weights)
        lms.reclaim()
        assert lms.stats().resident_bytes == 0
        assert same_bits(list(weights.values()), list(expected.values()))


def test_what_is_written_is_not_in_the_file_any_more(load: Callable[[], Weights], tmp_path: Path) -> None:
    before = (tmp_path / "weights").read_bytes()
    with torch_lms.session(limit=LIMIT, min_size=MIN_SIZE) as lms:
        weights = load()
        product(weights)
        weights["w0"].mul_(2)
        weights["w1"].numpy()[:] = 1
        with torch_lms.pinned(weights["w2"]):
            pass
        lms.reclaim()
        stats = lms.stats()
        lms.validate()
        assert stats.file_bytes == WEIGHTS_NBYTES - 3 * NBYTES
        assert stats.evicted_bytes == 3 * NBYTES
    untouched = load()
    assert same_bits(weights["w0"], untouched["w0"] * 2)
    assert weights["w1"].eq(1).all()
    assert all(same_bits(weights[f"w{index}"], untouched[f"w{index}"]) for index in range(2, COUNT))
    assert (tmp_path / "weights").read_bytes() == before


def test_writes_while_everything_fits_are_not_lost(load: Callable[[], Weights]) -> None:
    """They pass unseen, and then room becomes short."""
    expected = {name: weight + 1 for name, weight in load().items()}
    with torch_lms.session(limit=10 * WEIGHTS_NBYTES, min_size=MIN_SIZE) as lms:
        weights = load()
        product(weights)
        assert lms.stats().file_bytes == WEIGHTS_NBYTES
        torch_lms.step()
        assert lms.stats().file_bytes == 0
        for weight in weights.values():
            weight.add_(1)
        lms.reclaim()
        assert lms.stats().resident_bytes == 0
        assert same_bits(list(weights.values()), list(expected.values()))


def test_the_mapping_gives_its_memory_back(load: Callable[[], Weights], tmp_path: Path) -> None:
    def mapped_bytes() -> int:
        lines = Path("/proc/self/smaps").read_text().splitlines()
        places = [place for place, line in enumerate(lines) if line.endswith(str(tmp_path / "weights"))]
        sizes = [next(line for line in lines[place:] if line.startswith("Rss:")) for place in places]
        return sum(int(size.split()[1]) * 1024 for size in sizes)

    with torch_lms.session(limit=LIMIT, min_size=MIN_SIZE) as lms:
        weights = load()
        product(weights)
        lms.reclaim()
        assert mapped_bytes() <= (COUNT + 1) * 2 * os.sysconf("SC_PAGE_SIZE")  # pages of the system that parts share
        written = load()
        product(written)
        for weight in written.values():
            weight.add_(1)
        lms.reclaim()
        assert mapped_bytes() <= (COUNT + 1) * 4 * os.sysconf("SC_PAGE_SIZE")


def test_a_file_that_is_gone_is_read_all_the_same(load: Callable[[], Weights], tmp_path: Path) -> None:
    expected = product(load())
    with torch_lms.session(limit=LIMIT, min_size=MIN_SIZE):
        weights = load()
        product(weights)
        (tmp_path / "weights").unlink()
        (tmp_path / "weights").write_bytes(b"another file")
        assert same_bits(product(weights), expected)


def test_files_are_closed_with_their_last_tensor(load: Callable[[], Weights], tmp_path: Path) -> None:
    def are_open() -> int:
        links = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        return sum(link == str(tmp_path / "weights") for link in links)

    with torch_lms.session(limit=LIMIT, min_size=MIN_SIZE) as lms:
        weights = load()
        product(weights)
        assert are_open() == 1
        last = weights["w5"]
        del weights
        lms.validate()
        assert are_open() == 1
        del last
        lms.validate()
        assert are_open() == 0


def change(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(b"changed")
    os.utime(path, (1, 1))


def truncate(path: Path) -> None:
    os.truncate(path, 1000)


@pytest.mark.parametrize("harm", [change, truncate], ids=lambda harm: harm.__name__)
def test_a_file_that_changes_while_it_is_in_use(
    load: Callable[[], Weights], tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    with torch_lms.session(limit=LIMIT, min_size=MIN_SIZE) as lms:
        weights = load()
        weights["w3"].add_(1)
        ours = weights["w3"].clone()
        lms.reclaim()
        harm(tmp_path / "weights")
        with pytest.raises(PageLostError, match=f"{tmp_path / 'weights'}.* load the model anew"):
            weights["w0"].sum()
        assert same_bits(weights["w3"], ours)
        lms.validate()
        weights.clear()


def test_a_disk_that_fails(load: Callable[[], Weights], monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is read once the disk works again."""
    expected = product(load())

    def fail(self: LoadedFile, chunk: object, offset: int) -> None:
        raise OSError(5, "Input/output error")

    with torch_lms.session(limit=LIMIT, min_size=MIN_SIZE) as lms:
        weights = load()
        lms.reclaim()
        product(weights)
        lms.reclaim()
        with monkeypatch.context() as broken:
            broken.setattr(LoadedFile, "read", fail)
            with pytest.raises(PageLostError, match="Input/output error"):
                product(weights)
        lms.validate()
        assert same_bits(product(weights), expected)
