"""Functions of another library's, in C++, that are given tensors: those of ``foreign.cpp``."""

import shutil
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from shares import trained
from torch import nn
from torch.autograd import Function
from torch.utils import cpp_extension

import torch_lms
from torch_lms.runtime.api import Lms

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or not cpp_extension.is_ninja_available(), reason="foreign.cpp cannot be compiled"
)

LENGTH = 40_000


@pytest.fixture(scope="module", name="before")
def loaded_before_the_session(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cpp_extension.load(
        name="foreign",
        sources=[str(Path(__file__).with_name("foreign.cpp"))],
        build_directory=str(tmp_path_factory.mktemp("foreign")),
        extra_cflags=["-O0"],
    )


@pytest.fixture(name="lms")
def nothing_stays_that_may_leave() -> Iterator[Lms]:
    with torch_lms.session(limit=0, min_size=1024, device="cpu") as lms:
        yield lms
        lms.validate()


@pytest.fixture(params=["before", "meanwhile"], name="foreign")
def loaded(request: pytest.FixtureRequest, before: ModuleType, lms: Lms) -> Any:
    if request.param == "before":
        return before
    name = before.__name__  # with a number, where it was built before
    loader = ExtensionFileLoader(name, str(before.__file__))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_what_it_reads_is_there_and_what_it_makes_stays_until_it_is_filled(foreign: Any, lms: Lms) -> None:
    given = torch.arange(LENGTH).float()
    lms.reclaim()
    made = foreign.scaled(factor=3.0, given=given)
    lms.reclaim()
    assert torch.equal(made, torch.arange(LENGTH) * 3.0)
    assert lms.stats().evictions > 0


def test_what_it_writes_is_kept(foreign: Any, lms: Lms) -> None:
    given = [torch.zeros(LENGTH), torch.ones(LENGTH)]
    lms.reclaim()
    given[0].sum()  # its lower copy is that of before
    foreign.inside.increase(given)
    lms.reclaim()
    assert [tensor.unique().tolist() for tensor in given] == [[1.0], [2.0]]


def test_an_object_keeps_what_it_is_given(foreign: Any, lms: Lms) -> None:
    table = foreign.Table(torch.zeros(LENGTH))
    given = torch.full((LENGTH,), 5.0)
    lms.reclaim()
    table.put(given)
    lms.reclaim()
    assert table.at(LENGTH - 1) == 5.0
    ones = foreign.Table.ones(LENGTH)
    lms.reclaim()
    assert ones.sum() == LENGTH


def test_what_it_makes_is_whole_though_it_needs_more_than_the_limit(before: Any) -> None:
    with torch_lms.session(limit=2 * LENGTH, min_size=1024, device="cpu") as lms:
        kept = torch.ones(LENGTH // 2 - 1024)  # room is short
        assert before.Table.ones(LENGTH)[-5:].tolist() == [1.0] * 5
        assert torch.zeros(LENGTH)[-5:].tolist() == [0.0] * 5
        assert lms.stats().in_pieces == 1
        assert kept[-1] == 1
        lms.validate()


class _Scaled(Function):
    @staticmethod
    def forward(ctx: Any, foreign: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.foreign = foreign
        made: torch.Tensor = foreign.scaled(x)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, ctx.foreign.scaled(*gradients)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_in_a_training_under_a_share_of_its_demand(before: Any, is_compiled: bool) -> None:
    def train() -> list[torch.Tensor]:
        torch.manual_seed(0)
        weights = nn.ParameterList([torch.randn(200, 200) for _ in range(6)])

        def forward(x: torch.Tensor) -> torch.Tensor:
            for weight in weights:
                x = _Scaled.apply(before, (x @ weight).tanh())
            return x.square().mean()

        called = torch.compile(forward, backend="eager") if is_compiled else forward
        return trained(weights, torch.optim.Adam(weights.parameters()), lambda: called(torch.randn(200, 200)), 6)

    expected = train()
    with torch_lms.session(limit="1.5MB", min_size=1024, device="cpu") as lms:
        results = train()
        lms.validate()
        assert lms.stats().peak_resident_bytes <= 1_500_000
        assert lms.stats().planned_steps > 0
    assert all(map(torch.equal, results, expected))


def test_who_holds_one_of_an_earlier_session(before: Any) -> None:
    with torch_lms.session(limit=0, min_size=1024, device="cpu"):
        increase, array_of = before.inside.increase, torch.Tensor.numpy
    kept = torch.zeros(LENGTH)
    increase([kept])
    with torch_lms.session(limit=0, min_size=1024, device="cpu") as lms:
        given = torch.zeros(LENGTH)
        lms.reclaim()
        increase([given])
        lms.reclaim()
        assert array_of(given).sum() == LENGTH
        lms.validate()
    assert array_of(kept).sum() == LENGTH


def test_put_back_at_the_end(before: Any) -> None:
    scaled = before.scaled
    with torch_lms.session(limit=0, min_size=1024, device="cpu"):
        assert before.scaled is not scaled
        assert before.scaled == scaled
        assert before.scaled.__doc__ == scaled.__doc__
    assert before.scaled is scaled
    assert "put" in vars(before.Table)
