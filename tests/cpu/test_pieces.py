"""Operations larger than the limit in pieces: every operator that can be cut gives the same bits (N27)."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from bits import same_bits
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import torch_lms
from tests.pieces_calls import CALLS, aten, group_norm_backward, rand, rows
from tests.ways import AT_HAND, IS_NATIVE
from torch_lms.capture.pieces import copies, elements, proof, run, table, tiles
from torch_lms.capture.pieces.cuts import OPERATORS
from torch_lms.capture.pieces.losses import LOSSES
from torch_lms.capture.pieces.tiles import copied
from torch_lms.capture.schema import describe
from torch_lms.capture.sizes import on_meta
from torch_lms.errors import UsageError
from torch_lms.runtime import api, session
from torch_lms.trace import Trace, demand_curve

MIN_SIZE = 16

AMPLE = 1 << 40

SHARE = 0.7
"""Of what an operation needs: the limit."""


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Proofs", lambda _path, exact: proof.Proofs(None, exact))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the operators that ran in pieces."""
    found: list[str] = []
    real = run.Pieces.run

    def told(self: run.Pieces, func: Any, info: Any, *rest: Any) -> Any:
        result = real(self, func, info, *rest)
        if result is not run.NOT_CUT:
            found.append(info.packet.removeprefix("aten::"))
        return result

    monkeypatch.setattr(run.Pieces, "run", told)
    return found


NOT_ON_A_CPU = {"cudnn_batch_norm"}
ALL = [pytest.param(name, number, id=f"{name}-{number}") for name, made in CALLS.items() for number in range(len(made))]

DEPENDS_ON_THE_PROCESSOR = {
    *("_softmax", "sum", "amin", "native_layer_norm", "native_batch_norm", "upsample_bilinear2d"),
    *("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward"),
}
"""Whether pieces as small as these lead to the same kernels. Where they do not, the operation runs as a whole."""


def test_every_operator_of_the_tables_is_called() -> None:
    others = (*LOSSES, *copies.COPIES, *copies.CONSTANTS, *copies.PLACED, *copies.JOINS, *elements.UNTAGGED)
    names = {*OPERATORS, *(name.removeprefix("aten::") for name in others)}
    assert names - NOT_ON_A_CPU - set(OF_NO_TENSOR) <= set(CALLS)


def tensors_of(result: Any) -> list[Tensor]:
    return [value for value in pytree.tree_leaves(result) if isinstance(value, Tensor)]


@pytest.mark.parametrize(("name", "number"), ALL)
def test_the_same_bits(name: str, number: int, ran: list[str]) -> None:
    func = getattr(aten, name)
    torch.manual_seed(0)
    args = CALLS[name][number]()
    expected = [*tensors_of(func(*args)), *tensors_of(args)]
    indices = {torch.int32, torch.int64, torch.bool}  # small ones are no pages
    pages = {id(tensor): tensor for tensor in expected if tensor.dtype not in indices}
    limit = int(sum(tensor.nbytes for tensor in pages.values()) * SHARE)
    torch.manual_seed(0)
    args = CALLS[name][number]()
    with torch_lms.session(limit=limit, min_size=MIN_SIZE) as lms:
        result = tensors_of(func(*args))
        found = [*(value.clone() for value in result), *tensors_of(args)]
        lms.validate()
    assert same_bits([value.contiguous() for value in found], [value.contiguous() for value in expected])
    assert [value.stride() for value in result] == [value.stride() for value in expected[: len(result)]]
    assert name in ran or name in DEPENDS_ON_THE_PROCESSOR


@pytest.mark.parametrize(("name", "number"), ALL)
def test_what_is_told_of_results_is_so(name: str, number: int) -> None:
    """Pieces are written to results that are made before anything is computed."""
    told: list[Tensor] = []
    made: list[Tensor] = []

    class Compared(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.overloadpacket is getattr(aten, name):
                told.extend(tensors_of(on_meta(func, describe(func), args, kwargs or {})))
            result = func(*args, **kwargs or {})
            if func.overloadpacket is getattr(aten, name):
                made.extend(tensors_of(result))
            return result

    args = CALLS[name][number]()
    with Compared():
        getattr(aten, name)(*args)
    assert [like.dtype for like in told] == [result.dtype for result in made]
    assert [like.shape for like, result in zip(told, made, strict=True) if result.numel()] == [
        result.shape for result in made if result.numel()
    ]


def test_tiles_that_end_within_a_group_of_channels() -> None:
    """Pieces have whole groups all the same: of a part of one, kernels divided by zero."""
    gradient, *given = (*group_norm_backward(1, 24, 4), [True, True, True])
    expected = aten.native_group_norm_backward(gradient, *given)
    with torch_lms.session(limit=int(2.1 * gradient.nbytes), min_size=MIN_SIZE) as lms:
        gradient.mul_(1)
        cut(gradient, [(0, 1), tuple(range(0, 25, 4)), (0, 13), (0, 11)])
        found = aten.native_group_norm_backward(gradient, *given)
        assert is_in_tiles(gradient)
        assert same_bits([value.clone() for value in found], list(expected))
        lms.validate()


@pytest.mark.parametrize("name", ["mul", "div"])
def test_complex_numbers_by_broadcasting(name: str, ran: list[str]) -> None:
    """As images by the sensitivities of coils. Kernels round single numbers in another way than full vectors."""
    images, coils = (torch.view_as_complex(rand(*shape, 2)) for shape in ((2, 1, 32, 64), (2, 7, 32, 64)))
    expected = getattr(aten, name)(images, coils)
    with torch_lms.session(limit=int(1.4 * expected.nbytes), min_size=MIN_SIZE) as lms:
        found = getattr(aten, name)(images, coils)
        lms.validate()
        assert lms.stats().peak_resident_bytes <= lms.stats().limit_bytes
        assert same_bits(found.clone(), expected)
    assert name in ran


def test_the_smallest_pieces_exceed_the_limit_by_less_than_the_whole(ran: list[str]) -> None:
    """One group of channels is an eighth of the argument, and more than the limit."""
    x = torch.linspace(-1, 1, 16 * 8192).view(1, 16, 64, 128)
    given = (None, None, 1, 16, 8192, 8, 1e-5)
    expected = aten.native_group_norm(x, *given)
    with torch_lms.session(limit=x.nbytes // 9, min_size=MIN_SIZE) as lms:
        found = aten.native_group_norm(x, *given)
        stats = lms.stats()
        assert same_bits([value.clone() for value in found], list(expected))
        lms.validate()
    assert "native_group_norm" in ran
    assert stats.peak_resident_bytes < 1.5 * x.nbytes  # which is there when it is cut


def test_a_page_that_leaves_while_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no page afterwards. As one it was kept for good, for tiles that are copies of it."""

    def leaving(*given: Any) -> Tensor:
        copy = copied(*given)
        torch_lms.reclaim()
        return copy

    monkeypatch.setattr(table, "copied", leaving)
    with torch_lms.session(limit=AMPLE, min_size=MIN_SIZE) as lms:
        x = rand(8, 1000)
        cut(x, [(0, 4, 8), (0, 1000)])
        assert api.current_session().find(x.untyped_storage()) is None
        lms.validate()


def cut(tensor: Tensor, grid: tiles.Grid) -> None:
    """Cut the page of ``tensor`` into tiles."""
    of_session = api.current_session().mode.tiles
    with of_session.working():
        assert of_session.tile(tensor, grid) is not None


def test_there_is_room_for_a_tile_beside_the_page_that_is_cut() -> None:
    """The argument takes most of the limit. Pieces are samples, of which one more would exceed it."""
    x, weight = rand(2, 32, 400), rand(32, 32, 3)
    expected = F.conv1d(x, weight)
    with torch_lms.session(limit=int(1.25 * x.nbytes), min_size=MIN_SIZE) as lms:
        found = F.conv1d(x, weight)
        assert is_in_tiles(x)
        found = found.clone()
        stats = lms.stats()
        assert same_bits(found, expected)
    assert stats.peak_resident_bytes <= stats.limit_bytes


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("mask", [(61, 61), (1, 1, 61, 61), (1, 6, 61, 61)], ids=str)
def test_attention_with_a_mask(mask: tuple[int, ...], samples: int, ran: list[str]) -> None:
    """Forward also by queries: of one sample whose heads share a mask, pieces by heads would take all of that."""
    mask = (samples, *mask[1:]) if len(mask) > 2 else mask
    args = [rand(samples, 6, 61, 4).requires_grad_() for _ in range(3)]
    bias = rand(*mask)

    def attended() -> list[Tensor]:
        result = F.scaled_dot_product_attention(*args, attn_mask=bias)
        return [result.detach().clone(), *torch.autograd.grad(result.square().sum(), args)]

    expected = attended()
    with torch_lms.session(limit=bias.nbytes + args[0].nbytes, min_size=MIN_SIZE) as lms:
        found = [value.clone() for value in attended()]
        lms.validate()
    assert same_bits(found, expected)
    assert "_scaled_dot_product_flash_attention_for_cpu" in ran


@pytest.mark.parametrize(("name", "number"), ALL)
def test_the_same_bits_of_arguments_in_tiles(name: str, number: int) -> None:
    """Whether the operation takes them from there or has them whole."""
    func = getattr(aten, name)
    torch.manual_seed(0)
    args = CALLS[name][number]()
    expected = [*tensors_of(func(*args)), *tensors_of(args)]
    limit = max(64 * MIN_SIZE, sum(tensor.nbytes for tensor in expected) // 5)
    torch.manual_seed(0)
    args = CALLS[name][number]()
    with torch_lms.session(limit=limit, min_size=MIN_SIZE) as lms:
        args = pytree.tree_map_only(Tensor, Tensor.clone, args)
        some = any(map(is_in_tiles, tensors_of(args)))
        result = tensors_of(func(*args))
        found = [*(value.clone() for value in result), *(value.clone() for value in tensors_of(args))]
        lms.validate()
    assert same_bits([value.contiguous() for value in found], [value.contiguous() for value in expected])
    assert [value.stride() for value in result] == [value.stride() for value in expected[: len(result)]]
    assert some or name == "embedding"  # whose indices are whole numbers


OF_NO_TENSOR: dict[str, Callable[[], Tensor]] = {
    "zeros": lambda: torch.zeros(97, 53),
    "ones": lambda: torch.ones(97, 53, dtype=torch.float64),
    "full": lambda: torch.full((97, 53), torch.pi, dtype=torch.float16),
}


@pytest.mark.parametrize("name", OF_NO_TENSOR)
def test_a_tensor_larger_than_the_limit_is_born_in_pieces(name: str, ran: list[str]) -> None:
    make = OF_NO_TENSOR[name]
    expected = make()
    limit = expected.nbytes // 2
    with torch_lms.session(limit=limit, min_size=MIN_SIZE) as lms:
        before = torch.ones(limit // 5)  # room is short
        made = make()
        assert lms.stats().peak_resident_bytes <= limit
        found = [made.clone(), made[5:7].sum(), before.sum()]
        lms.validate()
    assert name in ran
    assert same_bits(found, [expected, expected[5:7].sum(), torch.tensor(limit // 5.0)])


FIRST_OF_ALL = """
import resource
import torch, torch_lms
from torch_lms.machine.memory import read_host_memory

MB = 10**6
torch.ones(64, 64) @ torch.ones(64, 64)
with torch_lms.session(limit=100 * MB, device="cpu"):
    torch.ones(1000).sum()
    allowed = read_host_memory().data_used + 150 * MB
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))
    large = torch.full((50 * MB,), 0.5)
    print(large[1001:2001].sum().item(), torch_lms.stats().peak_resident_bytes <= 100 * MB)
    del large
"""


@pytest.mark.skipif(not IS_NATIVE, reason="without the native interposer a tensor without memory has it for a moment")
def test_a_tensor_larger_than_memory_of_which_nobody_has_asked_how_large_it_is() -> None:
    ended = subprocess.run([sys.executable, "-c", FIRST_OF_ALL], capture_output=True, text=True, timeout=120)
    assert ended.stdout == "500.0 True\n", ended.stderr


TOGETHER: dict[str, Callable[[], Any]] = {
    "addcdiv_": lambda: rand(64, 256).addcdiv_(rand(64, 256), rand(64, 256)),
    "lerp": lambda: torch.lerp(rand(64, 256), rand(64, 256), rand(64, 256)),
    "lerp, two from one": lambda: (x := rand(64, 256)).lerp_(rand(64, 256), x),
    "where": lambda: torch.where(rand(64, 256) > 0, rand(64, 256), rand(64, 256).t().contiguous().t()),
    "prelu_backward": lambda: aten._prelu_kernel_backward(rand(64, 256), rand(64, 256), rand(256)),
    "mse_backward": lambda: aten.mse_loss_backward(rand(64, 256), rand(64, 256), rand(64, 256), 0),
    "_softmax_backward_data": lambda: aten._softmax_backward_data(
        rand(64, 256), torch.softmax(rand(64, 256), 1), 1, torch.float32
    ),
    "stack": lambda: torch.stack([rand(64, 256), rand(64, 256)]),
}


@pytest.mark.parametrize("share", [2.2, 2.6, 3.1])
@pytest.mark.parametrize("name", TOGETHER)
def test_arguments_of_which_each_fits_but_not_all(name: str, share: float) -> None:
    torch.manual_seed(0)
    expected = tensors_of(TOGETHER[name]())
    with torch_lms.session(limit=int(rand(64, 256).nbytes * share), min_size=MIN_SIZE, device="cpu") as lms:
        torch.manual_seed(0)
        result = tensors_of(TOGETHER[name]())
        lms.validate()
        stats = lms.stats()
        assert stats.peak_resident_bytes <= stats.limit_bytes
        assert same_bits([value.clone() for value in result], expected)


def test_a_mean_is_of_all_elements(ran: list[str]) -> None:
    """So the gradient of a loss that is reduced by it has no pieces: these have fewer."""
    args = rand(()), rand(64, 256), rand(64, 256), 1
    expected = aten.mse_loss_backward(*args)
    with torch_lms.session(limit=expected.nbytes * 2, min_size=MIN_SIZE, device="cpu"):
        assert same_bits([aten.mse_loss_backward(*args).clone()], [expected])
    assert "mse_loss_backward" not in ran


# -- what is proved --------------------------------------------------------------------------------------------------


class Lying:
    """A kernel whose pieces give other bits, if it is given fewer rows or columns.

    Args:
        honest_from: results of so many elements are right.
    """

    def __init__(self, honest_from: float = inf) -> None:
        self.honest_from = honest_from
        self.library = torch.library.Library("aten", "IMPL")
        self.library.impl("aten::mm", self.call, "CPU")

    def call(self, one: Tensor, two: Tensor) -> Tensor:
        elements = one.shape[0] * two.shape[1]
        lie = 0 if elements >= self.honest_from else one.shape[0] + two.shape[1]
        return torch.einsum("ij,jk->ik", one.double(), two.double()).float() + lie

    def end(self) -> None:
        self.library._destroy()


def test_an_operator_that_lies_is_refused(ran: list[str]) -> None:
    x, y = rand(97, 31), rand(31, 53)
    lying = Lying()
    try:
        expected = torch.mm(x, y)
        with torch_lms.session(limit=10_000, min_size=MIN_SIZE):
            found = torch.mm(x, y).clone()
    finally:
        lying.end()
    assert same_bits([found], [expected])
    assert "mm" not in ran


def test_halves_are_tried_where_no_smaller_pieces_give_the_same_bits(ran: list[str]) -> None:
    """So it is with the gradient of a weight of 48 channels in oneDNN, on two threads."""
    x, y = rand(96, 31), rand(31, 53)
    lying = Lying(honest_from=48 * 53)
    try:
        expected = torch.mm(x, y)
        with torch_lms.session(limit=25_000, min_size=MIN_SIZE) as lms:
            result = torch.mm(x, y)
            peak = lms.stats().peak_resident_bytes
            found = result.clone()
    finally:
        lying.end()
    assert same_bits([found], [expected])
    assert "mm" in ran
    assert peak < x.nbytes + y.nbytes + expected.nbytes


def test_what_was_tried_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache" / "pieces.jsonl"
    monkeypatch.setattr(session, "Proofs", lambda _path, exact: proof.Proofs(path, exact))
    monkeypatch.setattr(proof, "gives_the_same", counted := Counted(proof.gives_the_same))
    x = rand(1, 3, 64, 64)
    weight = rand(16, 3, 3, 3)
    for _ in range(2):
        with torch_lms.session(limit=200_000, min_size=1024):
            F.conv2d(x, weight, padding=1)
    assert counted.calls == 1
    assert [json.loads(line)[1] for line in path.read_text().split("\n") if line] == [True]


class Counted:
    """Counts calls of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.function(*args)


def test_without_memory_to_try_it_is_not_cut_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session.Session, "free_bytes", lambda *_: 1000)
    x, weight = rand(1, 3, 64, 64), rand(16, 3, 3, 3)
    expected = F.conv2d(x, weight, padding=1)
    with torch_lms.session(limit=200_000, min_size=1024) as lms:
        found = F.conv2d(x, weight, padding=1)
        assert lms.stats().unproved == ("aten::convolution",)
        assert lms.stats().in_pieces == 0
    assert same_bits([found], [expected])
    assert "aten::convolution runs as a whole" in caplog.text


@pytest.mark.parametrize("content", ["[no", "[]", "5", "\n\n", "[no\n"])
def test_a_file_of_verdicts_that_cannot_be_read_or_written_is_no_error(content: str, tmp_path: Path) -> None:
    path = tmp_path / "pieces.jsonl"
    path.write_text(content)
    proofs = proof.Proofs(path)
    assert proofs.known("it") is None
    proofs.remember("it", True)
    assert proof.Proofs(path).known("it") is True
    assert path.read_text().startswith(content)
    unwritable = proof.Proofs(Path("/proc/torch-lms/pieces.jsonl"))
    unwritable.remember("it", False)
    assert unwritable.known("it") is False


def test_processes_add_to_the_verdicts_and_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "_MAX_KNOWN", 4)
    path = tmp_path / "pieces.jsonl"
    one, other = proof.Proofs(path), proof.Proofs(path)
    for number in range(9):
        (one, other)[number % 2].remember(str(number), number % 3 == 0)
    found = proof.Proofs(path)
    assert [found.known(str(number)) for number in range(9)] == [None] * 5 + [False, True, False, False]
    assert len(path.read_text().strip().splitlines()) == 4


# -- tensors in tiles ------------------------------------------------------------------------------------------------


@pytest.fixture
def in_tiles() -> Iterator[tuple[Tensor, Tensor]]:
    """A tensor in tiles, and one that is equal to it."""
    x = rand(1, 6, 40, 50)
    expected = x * 2
    with torch_lms.session(limit=40_000, min_size=256) as lms:
        y = x * 2
        assert is_in_tiles(y)
        yield y, expected
        lms.validate()


def is_in_tiles(tensor: Tensor) -> bool:
    assert api._running is not None
    return tensor.untyped_storage() in api._running._session.mode.tiles


Shown = Callable[[Tensor], Any]

VIEWS: dict[str, Shown] = {
    "narrow": lambda t: t.narrow(1, 2, 3),
    "select": lambda t: t.select(2, 7),
    "transpose": lambda t: t.transpose(1, 3),
    "view": lambda t: t.view(6, 2000),
    "split a dimension": lambda t: t.view(1, 2, 3, 40, 50),
    "merge and slice": lambda t: t.view(6, 40, 50)[2:5].flatten(0, 1),
    "chunk": lambda t: t.chunk(3, 1)[1],
    "unbind": lambda t: t.unbind(1)[4],
    "expand": lambda t: t.expand(2, 6, 40, 50),
    "step": lambda t: t[:, ::2],
    "diagonal": lambda t: t.diagonal(dim1=2, dim2=3),
    "as_strided": lambda t: t.as_strided((11, 3), (7, 2), 5),
    "other type": lambda t: t.view(torch.int32),
    "unfold": lambda t: t.unfold(2, 5, 3),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str, in_tiles: tuple[Tensor, Tensor]) -> None:
    y, expected = in_tiles
    shown = VIEWS[name](y)
    assert shown.stride() == VIEWS[name](expected).stride()
    assert same_bits([shown.clone()], [VIEWS[name](expected).clone()])
    assert same_bits([(shown + 1).clone()], [VIEWS[name](expected) + 1])


@pytest.mark.parametrize(("channel", "row"), [(0, 0), (0, 3), (2, 9), (5, 8)])
def test_a_part_is_taken_from_its_tiles_wherever_it_begins(
    channel: int, row: int, in_tiles: tuple[Tensor, Tensor]
) -> None:
    y, expected = in_tiles
    shown, its = (whole[0, channel, row : row + 30] for whole in (y, expected))
    assert same_bits([shown @ shown.t(), shown.sum(), shown.cumsum(1)], [its @ its.t(), its.sum(), its.cumsum(1)])
    assert is_in_tiles(y)


READS: dict[str, Shown] = {
    "numpy": lambda t: t.numpy().sum(),
    "item": lambda t: t[0, 1, 2, 3].item(),
    "tolist": lambda t: t.tolist(),
    "print": lambda t: str(t),
    "bytes": lambda t: bytes(t.untyped_storage()),
    "size": lambda t: t.untyped_storage().nbytes(),
    "dlpack": lambda t: torch.from_dlpack(t).clone().tolist(),
    "sort": lambda t: t.sort().values.tolist(),
    "index": lambda t: t[:, [1, 3]].tolist(),
}


@pytest.mark.parametrize("name", READS)
def test_whoever_else_uses_one_has_it_whole(name: str, in_tiles: tuple[Tensor, Tensor]) -> None:
    y, expected = in_tiles
    assert READS[name](y) == READS[name](expected)


def test_writes_go_to_the_tiles(in_tiles: tuple[Tensor, Tensor]) -> None:
    y, expected = in_tiles
    for tensor in (y, expected):
        tensor.add_(1).mul_(tensor[:, :1].clone())
        tensor[:, 3:5].zero_()
        tensor[..., 7].copy_(tensor[..., 8].clone())
        tensor.view(6, 2000)[1].fill_(2)
    assert is_in_tiles(y)
    assert same_bits([y.clone()], [expected])


@pytest.mark.parametrize("way", AT_HAND)
@pytest.mark.parametrize("of_inference", [True, False])
def test_inference_mode(of_inference: bool, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On tensors that are made inside of it and outside; those of outside are written there afterwards."""
    monkeypatch.setenv("TORCH_LMS_INTERPOSER", way)
    x = rand(1, 6, 40, 50)

    def used() -> list[Any]:
        with torch.inference_mode(of_inference):
            y = x * 2
        found = []
        with torch.inference_mode():
            y.add_(x)
            y.transpose(1, 3).mul_(2)
            for shown in (y.transpose(1, 2), y[0, 2:5], y.view(-1)[7:9000], y.reshape(6, -1)):
                found += [shown.is_inference(), shown + 1]
        if not of_inference:
            y.view(-1)[7:9000].add_(1)
            found.append(y[:, 1:] + 1)
        return [*found, y.is_inference(), y.clone()]

    expected = used()
    with torch_lms.session(limit=40_000, min_size=256) as lms:
        found = used()
        lms.validate()
        assert lms.stats().in_pieces >= 8
    assert same_bits(tensors_of(found), tensors_of(expected))
    assert [value for value in found if isinstance(value, bool)] == [v for v in expected if isinstance(v, bool)]


def test_tensors_that_were_cut_alike_are_cut_further_each_by_itself() -> None:
    """Two arguments of one operation were once cut by one list of bounds: cutting one of them lost the other."""
    a, b, ones = rand(64, 64), rand(64, 64), torch.ones(3, 64)
    expected = [a + b, ones @ a, b * 2, a.clone(), b.clone()]
    with torch_lms.session(limit=12_000, min_size=MIN_SIZE):
        found = [a + b, ones @ a]
        assert is_in_tiles(a)
        assert is_in_tiles(b)
        found += [b * 2, a, b]
    assert same_bits(found, expected)


def test_a_write_that_pytorch_refuses_is_refused(in_tiles: tuple[Tensor, Tensor]) -> None:
    for tensor in in_tiles:
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            tensor[:, 1:].copy_(tensor[:, :-1])


def test_pickled_and_saved(tmp_path: Path, in_tiles: tuple[Tensor, Tensor]) -> None:
    y, expected = in_tiles
    torch.save({"it": y, "part": y[:, 1]}, tmp_path / "it.pt")
    loaded = torch.load(tmp_path / "it.pt")
    assert same_bits([loaded["it"].clone(), loaded["part"].clone()], [expected, expected[:, 1]])


def test_a_forked_child_has_it(in_tiles: tuple[Tensor, Tensor]) -> None:
    y, expected = in_tiles
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(y, expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert same_bits([y.clone()], [expected])


def test_threads_share_one(in_tiles: tuple[Tensor, Tensor]) -> None:
    y, expected = in_tiles
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: ((y + number) * (y - number)).sum(1).clone(), range(8)))
    assert same_bits(found, [((expected + number) * (expected - number)).sum(1) for number in range(8)])


def test_a_write_that_fails_halfway_leaves_what_is_there_readable(
    in_tiles: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    y, expected = in_tiles
    assert api._running is not None
    mode, calls = api._running._session.mode, []
    real = mode.pieces._execute

    def failing(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise RuntimeError("a kernel that fails")
        return real(*args)

    monkeypatch.setattr(mode.pieces, "_execute", failing)
    with pytest.raises(RuntimeError, match="a kernel that fails"):
        y * 2
    assert same_bits([y.clone()], [expected])


def test_tiles_that_cannot_be_cut_anew_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """The maxima are taken row by row, the tensor is cut by channels: the third new tile fails."""
    x, calls = rand(1, 6, 32, 64), []
    expected = x * 2

    def failing(*args: Any) -> Tensor:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return copied(*args)

    with torch_lms.session(limit=40_000, min_size=256) as lms:
        y = x * 2
        assert is_in_tiles(y)
        with monkeypatch.context() as patched:
            patched.setattr(tiles, "copied", failing)
            with pytest.raises(KeyboardInterrupt):
                torch.softmax(y, 1)
        assert same_bits([y.clone()], [expected])
        assert same_bits([torch.softmax(y, 1).clone()], [torch.softmax(expected, 1)])
        lms.validate()


def test_it_is_whole_after_the_session() -> None:
    x = rand(1, 6, 40, 50)
    with torch_lms.session(limit=40_000, min_size=256) as lms:
        y = x * 2
        kept = y[:, 2]
        assert is_in_tiles(y)
        assert lms.stats().in_pieces == 1
    assert same_bits([y, kept.clone()], [x * 2, (x * 2)[:, 2].clone()])


# -- where arguments lie in memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [0, 1, 4])
@pytest.mark.parametrize("are_in_tiles", [True, False])
def test_bits_do_not_depend_on_where_rows_of_odd_length_begin(begin: int, are_in_tiles: bool) -> None:
    """MKL sums in another order where a matrix begins at no multiple of 16 bytes."""
    memory, weight = rand(1, 5 * 97 + begin), rand(7, 97).t()

    def rows(of: Tensor) -> Tensor:
        return of[0, begin:].view(5, 97)

    def program() -> list[Tensor]:
        return [rows(memory * 2 if are_in_tiles else memory) @ weight[:, first:] for first in range(6)]

    expected = program()
    with torch_lms.session(limit=1500, min_size=1):
        found = [result.clone() for result in program()]
    assert same_bits(found, expected)


@pytest.mark.parametrize("shape", [(3, 2, 5), (4, 6, 8, 10), (1, 64, 64)])
@pytest.mark.parametrize("turn", [lambda t: t, lambda t: t.transpose(0, 1), lambda t: t.transpose(0, -1)])
def test_single_elements_and_what_is_not_contiguous_may_lead_to_another_kernel(
    shape: tuple[int, ...], turn: Callable[[Tensor], Tensor]
) -> None:
    """So it is with GELU in float32."""
    x, grad = turn(rand(*shape)), turn(rand(*shape))
    program = [lambda: F.gelu(x), lambda: aten.gelu_backward(grad, x), lambda: F.silu(x)]
    expected = [call() for call in program]
    with torch_lms.session(limit=x.nbytes, min_size=1) as lms:
        found = [call().clone(memory_format=torch.preserve_format) for call in program]
        lms.validate()
    assert same_bits(found, expected)


@pytest.mark.parametrize("batches", [(), (4,)])
def test_an_argument_in_tiles_that_is_also_another_argument(batches: tuple[int, ...]) -> None:
    x = rand(*batches, 40, 40)

    def program() -> list[Tensor]:
        y = x * 2
        z = x * 3
        return [y @ y.mT, z + z.mT, torch.cat([z, z.mT], -1), torch.maximum(z[..., :20], z.mT[..., :20])]

    expected = program()
    with torch_lms.session(limit=9_000, min_size=16) as lms:
        found = [result.clone() for result in program()]
        assert lms.stats().in_pieces >= 4
        lms.validate()
    assert same_bits(found, expected)


def test_a_conjugated_or_negated_part_of_what_is_in_tiles() -> None:
    x, w = torch.randn(3, 20, 20, dtype=torch.complex64), torch.randn(3, 20, 5, dtype=torch.complex64)

    def program() -> list[Tensor]:
        part = (x * 2)[:, :12]
        return [part.mH @ w[:, :12], part.conj().imag @ w.real]

    expected = program()
    with torch_lms.session(limit=9_000, min_size=16) as lms:
        found = [result.clone() for result in program()]
        lms.validate()
    assert same_bits(found, expected)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_tensors_beside_what_is_in_tiles(layout: str) -> None:
    """As a graph's edges beside the features of its nodes."""
    edges = torch.eye(60).roll(3, 0)
    sparse = edges.to_sparse() if layout == "coo" else edges.to_sparse_csr()
    features = rand(60, 50)

    def program() -> list[Tensor]:
        weight = rand(50, 50).requires_grad_()
        hidden = (features @ weight).relu()
        mixed = sparse @ hidden
        mixed.square().mean().backward()
        assert weight.grad is not None
        return [mixed.detach(), weight.grad, (mixed @ mixed.T).sparse_mask(edges.to_sparse()).values().detach()]

    torch.manual_seed(0)
    expected = program()
    with torch_lms.session(limit=24_000, min_size=256) as lms:
        torch.manual_seed(0)
        found = program()
        assert lms.stats().in_pieces > 0
        lms.validate()
    assert same_bits(found, expected)


# -- not exact -------------------------------------------------------------------------------------------------------


def test_what_may_be_rounded_in_another_way_is_cut_only_if_that_is_asked_for_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proof, "gives_the_same", lambda *_: False)
    x, y = rand(97, 31), rand(31, 53)
    expected = x @ y
    with torch_lms.session(limit=10_000, min_size=MIN_SIZE, exact=False) as lms:
        found = (x @ y).clone()
        stats = lms.stats()
    assert torch.allclose(found, expected, atol=1e-5)
    assert stats.inexact == ("aten::mm",)
    assert "NOT EXACT      pieces of aten::mm" in str(stats)


def test_pieces_are_exact_again_while_deterministic_algorithms_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "gives_the_same", lambda *_: False)
    with torch_lms.session(limit=10_000, min_size=MIN_SIZE, exact=False) as lms:
        torch.use_deterministic_algorithms(True)
        try:
            rand(97, 31) @ rand(31, 53)
        finally:
            torch.use_deterministic_algorithms(False)
        assert lms.stats().inexact == ()


def test_exact_false_and_deterministic_algorithms_do_not_go_together() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(UsageError, match="give up one of them"):
            torch_lms.enable(exact=False)
    finally:
        torch.use_deterministic_algorithms(False)
    with pytest.raises(UsageError, match="exact must be True or False; got 1"):
        torch_lms.enable(exact=1)  # type: ignore[arg-type]


# -- whole programs --------------------------------------------------------------------------------------------------


class Decoder(nn.Module):
    """A layer of a language model whose scores are larger than all else."""

    def __init__(self, words: int = 1021, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.embedded, self.heads = nn.Embedding(words, width), heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 8 * width), nn.GELU(), nn.Linear(8 * width, width)
        )
        self.scores = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedded(tokens)
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return self.scores(x + self.wide(x))


class Volume(nn.Module):
    """A 3D U-Net of two levels."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = block(1, 8), block(8, 16)
        self.up, self.last = nn.ConvTranspose3d(16, 8, 2, 2), nn.Sequential(block(16, 8), nn.Conv3d(8, 3, 1))

    def forward(self, x: Tensor) -> Tensor:
        skipped = self.down(x)
        return self.last(torch.cat([skipped, self.up(self.deep(F.max_pool3d(skipped, 2)))], 1))


def block(into: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Conv3d(into, out, 3, padding=1), nn.BatchNorm3d(out), nn.ReLU(inplace=True))


class Photograph(nn.Module):
    """Convolutions of a picture, added up at two resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(16, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        return first + F.interpolate(self.second(first), scale_factor=2, mode="bilinear")


def decoder() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    tokens, targets = rows(2, 97, classes=1021), rows(2, 97, classes=1021)
    return Decoder(), lambda model: F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def volume() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    x, targets = rand(1, 1, 26, 24, 22), rows(1, 26, 24, 22, classes=3)
    return Volume(), lambda model: F.cross_entropy(model(x), targets)


def photograph() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    x = rand(1, 3, 122, 94)
    return Photograph(), lambda model: model(x).square().mean()


PROGRAMS = {"a decoder": (decoder, 300_000), "a volume": (volume, 500_000), "a photograph": (photograph, 600_000)}
"""Each with a limit of less than its largest operation needs."""


def trained(name: str, steps: int) -> list[Tensor]:
    torch.manual_seed(0)
    model, loss_of = PROGRAMS[name][0]()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    model.eval()
    with torch.no_grad():
        losses.append(loss_of(model))
    return [*losses, *(value.clone() for value in model.state_dict().values())]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_operations_larger_than_the_limit(name: str) -> None:
    expected = trained(name, 6)
    limit = PROGRAMS[name][1]
    with torch_lms.session(limit=limit, min_size=4096) as lms:
        found = trained(name, 6)
        stats = lms.stats()
        lms.validate()
    assert same_bits(found, expected)
    assert stats.in_pieces >= 6 * 4
    assert stats.planned_steps >= 2


# -- forecast --------------------------------------------------------------------------------------------------------

LEFT_OUT = {"aten::nll_loss2d_backward", "aten::max_pool3d_with_indices_backward"}
"""They use whole numbers, which are pages from 1 MiB on where they run."""


def used_in(trace: Trace) -> list[tuple[str, list[int]]]:
    """The operations of the model in pieces: their names, and the sizes of the pages that they use."""
    ops = [op for op in trace.ops if op.name.split(".")[0].removeprefix("aten::") in OPERATORS]
    return [(op.name, [trace.pages[page].nbytes for page in op.pages]) for op in ops if op.name not in LEFT_OUT]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_traced_under_a_limit_is_the_one_that_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.Pieces, "holds", lambda *_: True)
    torch.manual_seed(0)
    make, limit = PROGRAMS[name]
    model, loss_of = make()
    told = torch_lms.trace_step(loss_of, (model,), "sgd", loss=lambda loss: loss, min_size=4096).under(limit, AMPLE)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
    with torch_lms.session(limit=limit, min_size=4096) as lms:
        for _ in range(4):
            loss_of(model).backward()
            optimizer.step()
            optimizer.zero_grad()
        happened = lms.trace()
    assert len(used_in(happened)) > 40
    assert used_in(told) == used_in(happened)
    assert told.working_set_bytes == pytest.approx(happened.working_set_bytes, rel=0.15)
    assert demand_curve(told).demand_bytes == pytest.approx(demand_curve(happened).demand_bytes, rel=0.05)


def test_what_nobody_can_try_is_traced_as_a_whole() -> None:
    trace = torch_lms.trace_step(lambda x, y: torch.relu(x @ y), (rand(256, 256), rand(256, 256)), min_size=256)
    limit = trace.working_set_bytes // 2
    assert trace.under(limit).working_set_bytes == trace.working_set_bytes
    assert [op.name for op in trace.under(limit).ops].count("aten::mm") == 1
    assert [op.name for op in trace.under(limit).ops].count("aten::relu") > 1
    assert trace.under(limit, AMPLE).working_set_bytes <= limit
    assert trace.under(trace.working_set_bytes) is trace


# -- how many --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "longest", "step", "lengths"),
    [
        (64, 13, 1, {8}),
        (64, 64, 1, {64}),
        (97, 20, 1, {20, 17}),
        (96, 20, 8, {16}),
        (100, 30, 8, {24, 4}),
        (7, 1, 1, {1}),
    ],
)
def test_parts_are_equal_where_they_can_be(size: int, longest: int, step: int, lengths: set[int]) -> None:
    bounds = tiles.at_most(size, longest, step)
    assert (bounds[0], bounds[-1]) == (0, size)
    assert {last - first for first, last in pairwise(bounds)} == lengths


def test_smaller_operations_are_cut_only_beside_one_that_exceeds_the_limit() -> None:
    """Where none does, all may fit as it is."""
    x, y = rand(64, 1024), rand(16, 1024)
    with torch_lms.session(limit=int(2.5 * x.nbytes), min_size=4096) as lms:
        for _ in range(3):
            y.clone().neg_()
            x.neg()
            torch_lms.step()
        assert lms.stats().in_pieces == 0
        for expected in (1, 3, 5):
            (x + x.t().reshape(x.shape)).sum()
            x.neg()
            torch_lms.step()
            assert lms.stats().in_pieces >= expected


def test_what_ran_in_pieces_does_so_again() -> None:
    """The native interposer learns what operations create: one in pieces creates no page of its own."""
    small, mask = torch.randn(1000), torch.rand(2, 256, 256) > 0.5
    low, zero = torch.full((), -1e9), torch.zeros(())
    with torch_lms.session(limit=2_071_936, min_size=1024) as lms:
        for _ in range(8):
            kept = [small * number for number in range(30)]
            blocks = torch.cat([torch.where(mask, low, zero), torch.where(mask, zero, low)], dim=2)
            used = [blocks[:, first : first + 16, :24].contiguous() for first in range(0, 64, 16)]
            del kept, blocks, used
            torch_lms.step()
        stats = lms.stats()
    assert stats.in_pieces >= 8
    assert stats.peak_resident_bytes <= stats.limit_bytes


def test_a_view_that_merges_dimensions_of_tiles_is_cut_between_the_outer_ones() -> None:
    """Tiles are cut along the third dimension, and the view shows none of their bounds. It is padded."""
    x = rand(64, 2, 4, 100)

    def made() -> Tensor:
        return F.pad((x * 2).permute(1, 2, 0, 3).contiguous().view(8, 2, 32, 100), (0, 50), value=3.0)

    expected = made()
    with torch_lms.session(limit=250_000, min_size=MIN_SIZE) as lms:
        found = made()
        stats = lms.stats()
        assert is_in_tiles(found)
        assert same_bits([found.clone()], [expected])
    assert stats.peak_resident_bytes <= stats.limit_bytes


@pytest.mark.parametrize("joins", [False, True])
def test_tiles_whose_bounds_a_view_does_not_show(joins: bool) -> None:
    """Tiles are rows of 2,500 elements. Two of them are a row that is padded, or joined."""
    column, row = rand(40, 1), rand(1, 2500)

    def made() -> Tensor:
        rows = (column * row).view(20, 5000)
        return torch.cat([rows, column[:20] * row[:, :500]], 1) if joins else F.pad(rows, (0, 0, 2, 1), value=3.0)

    expected = made()
    with torch_lms.session(limit=120_000, min_size=MIN_SIZE) as lms:
        found = made()
        stats = lms.stats()
        assert is_in_tiles(found)
        assert same_bits([found], [expected])
    assert stats.peak_resident_bytes <= stats.limit_bytes
