"""Operations larger than the limit: in parts, with the same bits (N10)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from bits import same_bits
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import torch_lms
from torch_lms import trace_step
from torch_lms.capture import split
from torch_lms.capture.schema import OpInfo, describe
from torch_lms.planner import within

MIB = 1 << 20
FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}


def convolved(dims: int, transposed: bool, groups: int, last: str, dtype: torch.dtype) -> list[Tensor]:
    """A convolution's result and gradients. ``last``: which of weight and input have their channels last."""
    torch.manual_seed(0)
    kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dims}d")
    model = kind(8, 8, 3, padding=1, groups=groups, dtype=dtype)
    x = torch.randn(2, 8, *[9] * dims, dtype=dtype)
    if "w" in last:
        model = model.to(memory_format=FORMATS[dims])
    if "x" in last:
        x = x.to(memory_format=FORMATS[dims])
    x.requires_grad_()
    y = model(x)
    y.square().sum().backward()
    return [y, x.grad, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_gradients_of_convolutions(dims: int, transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cut, real = [], split._one_by_one

    def counted(info: OpInfo, found: list[split.Part]) -> split.Program:
        cut.append(len(found))
        return real(info, found)

    monkeypatch.setattr(split, "_one_by_one", counted)
    for groups in (1, 8):
        for last in ("", "w", "x") if dims > 1 else ("",):
            for dtype in (torch.float32, torch.bfloat16):
                expected = convolved(dims, transposed, groups, last, dtype)
                with torch_lms.session(limit=0, min_size=1):
                    found = convolved(dims, transposed, groups, last, dtype)
                    assert [t.stride() for t in found] == [t.stride() for t in expected]
                    assert same_bits(found, expected)
    assert cut.count(2) == (12 if dims > 1 else 4)


def by_itself(func: Any, *args: Any) -> Any:
    """What the program of ``func(*args)`` gives, with runs of a single index, and neither mode nor session."""
    program = split.program(func, describe(func), args, {}, lambda tensors: 1, most=0)
    assert program is not None

    def run(instruction: split.Instruction) -> Any:
        if isinstance(instruction, split.Part):
            return instruction.func(*instruction.args, **instruction.kwargs)
        return instruction.run()

    return split.perform(program, run)


def test_a_program_gives_what_the_operation_gives() -> None:
    aten = torch.ops.aten
    x, y = torch.randn(2, 8, 9, 9), torch.randn(2, 8, 9, 9)
    gradients = y, x, torch.randn(8, 8, 3, 3), [8], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]
    for func, *args in (
        (aten.cat.default, [x, torch.empty(0), y[:, :, :3]], 2),
        (aten.add.Tensor, x[0], y[1]),
        (aten._foreach_add.List, [x, y, x], [y, x, x]),
        (aten.convolution_backward.default, *gradients),
    ):
        found = by_itself(func, *args)
        expected = func(*args)
        assert same_bits(pytree.tree_leaves(found), pytree.tree_leaves(expected)), func


def test_what_cannot_be_split_has_no_program() -> None:
    add = torch.ops.aten.add.Tensor
    assert split.program(add, describe(add), (torch.ones(4), torch.ones(4)), {}, lambda tensors: 1, most=0) is None


def joined(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x, y.to(torch.complex128), torch.empty(0), x[:, :0], y.t().contiguous().t()], dim=-1)


def last_channels(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x.view(2, 4, 8, 8).to(memory_format=torch.channels_last), y.view(2, 4, 8, 8)], 1)


def parts_added(x: Tensor, y: Tensor) -> Tensor:
    both = torch.cat([x, y])
    return both[:8] + both[8:].conj() * both[2:10, ::2].repeat(1, 2)


@pytest.mark.parametrize("work", [joined, last_channels, parts_added])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int32])
def test_results_and_strides(work: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> None:
    x, y = torch.arange(512).view(8, 64).to(dtype), torch.arange(512, 1024).view(8, 64).to(dtype)
    expected = work(x, y)
    with torch_lms.session(limit=0, min_size=1):
        found = work(x.clone(), y.clone())
        assert found.stride() == expected.stride()
        assert same_bits([found], [expected])


def peak_of(work: Callable[[], object], limit: int) -> int:
    with torch_lms.session(limit=limit, min_size=1 << 16) as lms:
        work()
        return lms.stats().peak_resident_bytes


def test_less_is_needed_at_once() -> None:
    """Each tensor has 4 MiB, and nothing more than the limit of 9 is there at once."""

    def convolution() -> None:
        x = torch.ones(1, 16, 256, 256, requires_grad=True)
        nn.Conv2d(16, 16, 1)(x).backward(torch.ones(1, 16, 256, 256))

    def cat() -> None:
        torch.cat([torch.ones(MIB // 2) for _ in range(2)] + [torch.ones(MIB // 4)])

    def part_of_a_page() -> None:
        both = torch.ones(2, MIB // 2)
        assert torch.equal(both[0] + torch.ones(MIB // 2), torch.full((MIB // 2,), 2.0))

    def convolution_with_all_away() -> None:
        y = nn.Conv2d(16, 16, 1)(torch.ones(1, 16, 256, 256, requires_grad=True))
        grad = torch.ones(1, 16, 256, 256)
        torch_lms.reclaim()
        y.backward(grad)

    def made_of_what_is_small() -> None:
        tensors = [torch.ones(1024, 1) @ torch.ones(1, 1024) for _ in range(4)]
        assert sum(float(tensor.sum()) for tensor in tensors) == 4 * MIB

    def repeated_in_inference() -> None:
        with torch.inference_mode():
            tensors = [torch.ones(1024).expand(1024, 1024).contiguous() for _ in range(4)]
            assert sum(float(tensor.sum()) for tensor in tensors) == 4 * MIB

    for work in (
        *(convolution, cat, part_of_a_page, convolution_with_all_away),
        *(made_of_what_is_small, repeated_in_inference),
    ):
        assert peak_of(work, 9 * MIB) <= 9 * MIB, work


class Skips(nn.Module):
    """A level of a U-Net: what is joined, and the gradient of a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up, self.out = nn.Conv3d(16, 16, 3, padding=1), nn.Conv3d(16, 16, 1), nn.Conv3d(32, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        return self.out(torch.cat([self.up(x), x], 1))


def test_traces_tell_what_is_done_in_parts() -> None:
    x = torch.empty(1, 16, 192, 192, 192, device="meta")
    unit = x.numel() * x.element_size()
    trace = trace_step(lambda model, x: model(x), [Skips(), torch.zeros(1, 16, 1, 1, 1).expand(x.shape)], "sgd")
    small = sum(page.nbytes for page in trace.pages if page.nbytes < unit) + (1 << 20)
    assert 5 * unit <= trace.working_set_bytes <= 5 * unit + small
    limit = 9 * unit // 2
    assert 3 * unit <= trace.under(limit).working_set_bytes <= 7 * unit // 2  # a piece of a convolution sees beyond it
    whole, need = within(trace, 7 * unit)
    assert whole is trace
    parts, less = within(trace, limit)
    assert parts is trace.under(limit)
    assert less.largest_op < need.largest_op
    assert less.stock == need.stock


@pytest.mark.parametrize("settings", [{"foreach": True}, {"fused": True}])
def test_an_optimizer_that_fits_works_in_runs_of_an_eighth_of_the_limit(settings: dict[str, bool]) -> None:
    """As one operation it would pin all of what it uses, and nothing could come or leave beside it."""

    def train() -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(24)))
        optimizer = torch.optim.AdamW(model.parameters(), **settings)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
        return list(model.parameters())

    expected = train()
    nbytes = 64 * 64 * 4
    limit = 24 * 5 * nbytes  # parameters, gradients and two states would fit
    with torch_lms.session(limit=limit, min_size=1024) as lms:
        kept = torch.ones(limit // 8)  # half of it: so not all fits
        assert same_bits(train(), expected)
        assert kept.sum() == kept.numel()
        lists = [op for op in lms.trace().ops if "_foreach_" in op.name or "_fused_" in op.name]
    assert len(lists) >= 8
    assert max(len(op.pages) * nbytes for op in lists) <= limit // 8


@pytest.mark.parametrize("is_roomy", [True, False])
def test_what_is_split_does_not_depend_on_what_is_there(is_roomy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of three pages is less than an eighth of the limit; with its results it is more (N10)."""
    cut, real = [], split._one_by_one

    def counted(info: OpInfo, found: list[split.Part]) -> split.Program:
        cut.append(len(found))
        return real(info, found)

    monkeypatch.setattr(split, "_one_by_one", counted)
    with torch_lms.session(limit=40 * 64 * 64 * 4, min_size=1024) as lms:
        pages = [torch.rand(64, 64) for _ in range(60)]
        listed = pages[-3:]
        if is_roomy:
            lms.reclaim()
        torch._foreach_sqrt(listed)
    assert cut == [2]
