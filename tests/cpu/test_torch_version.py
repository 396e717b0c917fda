"""A PyTorch that is newer than any tested one is said once, and used."""

import re
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torch_lms
from torch_lms.runtime import torch_version
from torch_lms.runtime.torch_version import NEWEST_TESTED

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _nothing_was_said() -> Iterator[None]:
    torch_version._warn.cache_clear()
    yield
    torch_version._warn.cache_clear()


def used(monkeypatch: pytest.MonkeyPatch, version: str) -> list[warnings.WarningMessage]:
    """What is said while this PyTorch is used three times, as if it were of that version."""
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            with torch_lms.session(limit="3MB"):
                assert (torch.ones(1 << 20) + 1).sum() == 2 << 20
        torch_lms.enable(limit="3MB")
        torch_lms.disable()
    return said


@pytest.mark.parametrize("version", ["2.16.0", "2.16.1+cu140", "2.17.0a0+git1234567", "3.0.0"])
def test_a_newer_one_is_said_once_and_works(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    (said,) = used(monkeypatch, version)
    assert said.category is torch_lms.UntestedTorchWarning
    assert f"not tested on PyTorch {version}" in str(said.message)


def test_it_is_said_where_the_program_turns_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.99.0"))
    with pytest.warns(torch_lms.UntestedTorchWarning) as said:
        torch_lms.enable(limit="3MB")
    torch_lms.disable()
    assert said[0].filename == __file__


def test_who_wants_an_error_has_one_and_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.99.0"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch_lms.UntestedTorchWarning)
        for _ in range(2):
            with pytest.raises(torch_lms.UntestedTorchWarning):
                torch_lms.enable(limit="3MB")
    assert not torch_lms.is_enabled()


@pytest.mark.parametrize("version", ["2.11.0", "2.15.0", "2.15.3+cpu"])
def test_a_tested_one_is_not_said(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    assert not used(monkeypatch, version)


def test_the_newest_tested_one_is_the_newest_that_may_be_installed() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    cap = next(match for one in wanted if (match := re.fullmatch(r"torch>=2\.\d+,<(\d+)\.(\d+)", one)))
    assert (int(cap[1]), int(cap[2]) - 1) == NEWEST_TESTED
