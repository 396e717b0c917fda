"""What PyTorch's own tests found: each cause reduced to a few lines (see `python -m tests.upstream`)."""

import copy
import io
import pickle
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._mode_utils import no_dispatch

import torch_lms
from tests.ways import IS_NATIVE
from torch_lms.runtime import api


@pytest.fixture
def lms() -> Iterator[api.Lms]:
    with torch_lms.session(limit=0, min_size=1, policy="reactive") as running:
        yield running
        running.validate()


def size_now(tensor: torch.Tensor) -> int:
    """Bytes that are there."""
    return int(torch._C.StorageBase.nbytes(tensor.untyped_storage()))


def away(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, once it is a page, and evicted."""
    assert tensor.add(0).shape == tensor.shape
    torch_lms.reclaim()
    assert size_now(tensor) == 0
    return tensor


# -- 1: an address that is taken before the first operation ------------------------------------------------------------


@pytest.mark.parametrize("make", [np.from_dlpack, lambda t: t.numpy(), np.asarray], ids=["dlpack", "numpy", "asarray"])
def test_1_an_array_made_before_the_first_operation(make: Any) -> None:
    tensor = torch.arange(1000.0)
    with torch_lms.session(limit=0, min_size=1) as lms:
        array = make(tensor)
        assert tensor.sum().item() == 499_500
        torch_lms.reclaim()
        array[0] = 5.0
        assert tensor.sum().item() == 499_505
        assert tensor.data_ptr() == array.__array_interface__["data"][0]
        lms.validate()


def test_1_an_address_taken_before_the_first_operation() -> None:
    tensor = torch.arange(1000.0)
    with torch_lms.session(limit=0, min_size=1):
        address = tensor.data_ptr()
        tensor.add_(1)
        torch_lms.reclaim()
        assert size_now(tensor) > 0
        assert tensor.data_ptr() == address


def test_1_a_parameter_filled_through_numpy() -> None:
    layer = nn.Linear(64, 64)
    with torch_lms.session(limit=0, min_size=1):
        layer.weight.detach().numpy()[:] = 2.0
        for _ in range(2):
            assert layer.weight.sum().item() == 2.0 * 64 * 64
            torch_lms.reclaim()


def test_1_mutation_on_saved_tensors(lms: api.Lms) -> None:
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        a = torch.rand(2, 3, requires_grad=True)
        b = a.clone()
        out = (b**2).sum()
        b.sin_()
        out.sum().backward()
        assert a.grad is not None
        assert torch.equal(a.grad, a * 2)


# -- 2: nothing of the user's runs once more ---------------------------------------------------------------------------


def test_2_operators_of_the_user_run_once(lms: api.Lms) -> None:
    calls = []

    def noted(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape)
        return x * 2

    with torch.library._scoped_library("torch_lms_once", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", noted, "CompositeExplicitAutograd")
        x = away(torch.ones(1000))
        assert torch.ops.torch_lms_once.twice(x).sum().item() == 2000
        assert torch.ops.torch_lms_once.twice(x).sum().item() == 2000
    assert len(calls) == 2


def test_2_operators_without_tensors_run_once(lms: api.Lms) -> None:
    calls = []

    def noted(n: int) -> torch.Tensor:
        calls.append(n)
        return torch.rand(n)

    with torch.library._scoped_library("torch_lms_made", "FRAGMENT") as library:
        library.define("numbers(int n) -> Tensor")
        library.impl("numbers", noted, "CompositeExplicitAutograd")
        assert torch.ops.torch_lms_made.numbers(100).shape == (100,)
    assert calls == [100]


def test_2_generators_advance_as_in_stock() -> None:
    def numbers() -> list[torch.Tensor]:
        torch.manual_seed(3)
        own = torch.Generator().manual_seed(4)
        return [
            torch.ops.aten.randn.default([50]),
            torch.randn(50),
            torch.rand(50, generator=own),
            torch.randperm(50, generator=own),
            torch.ones(50).bernoulli(0.5, generator=own),
        ]

    expected = numbers()
    with torch_lms.session(limit=0, min_size=1):
        assert all(map(torch.equal, numbers(), expected))


# -- 3: constructors that read storages, and elements of tensors -------------------------------------------------------


@pytest.mark.parametrize("name", ["tensor", "asarray", "as_tensor", "new_tensor"])
def test_3_tensors_made_of_storages(lms: api.Lms, name: str) -> None:
    make = getattr(torch if hasattr(torch, name) else torch.zeros(0), name)
    tensor = away(torch.arange(100.0))
    assert make(tensor.storage()).tolist() == list(range(100))
    torch_lms.reclaim()
    assert make([tensor[3], tensor[4]]).tolist() == [3.0, 4.0]
    torch_lms.reclaim()
    assert make([[tensor[3]], [1.0]]).tolist() == [[3.0], [1.0]]
    torch_lms.reclaim()
    assert make(tensor).tolist() == list(range(100))


@pytest.mark.parametrize("name", ["tensor", "asarray", "as_tensor"])
def test_3_storages_that_become_pages_meanwhile(name: str) -> None:
    tensor = torch.arange(100.0)
    with torch_lms.session(limit=0, min_size=1):
        assert getattr(torch, name)(tensor.storage()).tolist() == list(range(100))


def test_3_keywords_are_read_too(lms: api.Lms) -> None:
    tensor = away(torch.arange(100.0))
    assert torch.tensor(data=tensor.storage()).tolist() == list(range(100))


# -- 4: subclasses with bytes of their own -----------------------------------------------------------------------------


class OwnBytes(torch.Tensor):
    """Dispatches by itself, where no mode sees it."""

    @staticmethod
    def __new__(cls, data: torch.Tensor) -> "OwnBytes":
        return torch.Tensor._make_subclass(cls, data)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with no_dispatch():
            return func(*args, **(kwargs or {}))


class HandsOn(OwnBytes):
    """Hands on to its superclass, which closes all dispatch above its own."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super(OwnBytes, cls).__torch_dispatch__(func, types, args, kwargs or {})


@pytest.mark.parametrize("kind", [OwnBytes, HandsOn])
def test_4_a_subclass_with_bytes_of_its_own(lms: api.Lms, kind: type[OwnBytes]) -> None:
    tensor = away(torch.arange(1000.0))
    own = kind(tensor)
    torch_lms.reclaim()
    assert (own + 1).sum().item() == 500_500
    own.add_(1)
    torch_lms.reclaim()
    assert tensor.sum().item() == 500_500
    if not IS_NATIVE:  # from PyTorch 2.13 on the native interposer sees what the dispatch of a subclass does
        assert lms.stats().unpaged_bytes == {"a dispatch of its own": 4000}
    other = away(torch.ones(1000))
    assert torch.add(other, own).sum().item() == 501_500
    torch.add(own, 1, out=other)
    torch_lms.reclaim()
    assert size_now(other) == 0
    assert other.sum().item() == 501_500


# -- 5: copies where dispatch is off -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_5_draft_export(lms: api.Lms) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x).relu()
            return y[: int(x[0, 0].item())] * 2

    model, x = Model(), torch.full((8, 32), 3.0)
    expected = model(x)
    exported = torch.export.draft_export(model, (x,))
    assert torch.equal(exported.module()(x), expected)


# -- 6: tensors without storage ----------------------------------------------------------------------------------------


def test_6_tensors_of_the_lazy_device() -> None:
    import torch._lazy
    import torch._lazy.ts_backend

    torch._lazy.ts_backend.init()
    with torch_lms.session():
        x = torch.ones(3, 3, device="lazy")
        y = x.add(1)
        torch._lazy.mark_step()
        assert y.cpu().tolist() == [[2.0] * 3] * 3


# -- 7: symbolic sizes -------------------------------------------------------------------------------------------------


def test_7_symbolic_sizes_stay_symbolic() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = x.nonzero()
            return found.untyped_storage().nbytes() + found

    with torch_lms.session():
        exported = torch.export.export(Model(), (torch.ones(3),))
    assert exported.module()(torch.ones(3)).flatten().tolist() == [24, 25, 26]


def test_7_dynamic_shapes_compile_once() -> None:
    compiled = 0

    def count(module: Any, _inputs: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return module

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.cos() + x.untyped_storage().nbytes()

    def times() -> int:
        nonlocal compiled
        compiled = 0
        torch._dynamo.reset()
        fast = torch.compile(fn, backend=count, dynamic=True)
        for n in range(4, 11):
            assert torch.equal(fast(torch.ones(n)), fn(torch.ones(n)))
        return compiled

    expected = times()
    with torch_lms.session():
        assert times() == expected


@pytest.mark.parametrize("interposer", ["native", "python"])
def test_7_sizes_that_are_traced_are_not_compared_with_that_of_the_smallest_page(
    interposer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer would hold for what is exported, or compiled."""
    monkeypatch.setenv("TORCH_LMS_INTERPOSER", interposer)
    model, batch = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), torch.randn(16, 8)

    def exported() -> list[str]:
        program = torch.export.export(model, (batch,), dynamic_shapes={"input": {0: torch.export.Dim("b", min=2)}})
        return [str(found) for found in program.range_constraints.values()]

    expected = exported()
    with torch_lms.session(limit="1GB", min_size=4096):
        assert exported() == expected


# -- 8: __torch_function__ ---------------------------------------------------------------------------------------------


class Redispatching(torch.Tensor):
    """Asks for each function, and goes on as ``torch.overrides.redispatch_function`` says."""

    asked: list[Any] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(func)
        return torch.overrides.redispatch_function(func, types, args, kwargs or {})


@pytest.mark.skipif(not hasattr(torch.overrides, "redispatch_function"), reason="PyTorch before 2.13")
def test_8_redispatched_functions(lms: api.Lms) -> None:
    tensor = away(torch.arange(4.0)).as_subclass(Redispatching)
    table = {torch.Tensor.tolist: "a table that was made of functions"}
    torch_lms.reclaim()
    assert tensor.tolist() == [0, 1, 2, 3]
    assert table[Redispatching.asked[-1]]
    torch_lms.reclaim()
    assert tensor.numpy().tolist() == [0, 1, 2, 3]
    assert tensor.data_ptr() == torch.Tensor.data_ptr(tensor)


@pytest.mark.skipif(not hasattr(torch.overrides, "redispatch_function"), reason="PyTorch before 2.13")
@pytest.mark.parametrize("call", ["tolist", "numpy", "data_ptr", "__repr__", "untyped_storage", "share_memory_"])
def test_8_hops_are_skipped_for_every_method(lms: api.Lms, call: str) -> None:
    for disabled in (False, True):
        tensor = away(torch.arange(4.0)).as_subclass(Redispatching)
        torch_lms.reclaim()
        with torch._C.DisableTorchFunctionSubclass() if disabled else nullcontext():
            getattr(tensor, call)()


def test_8_patched_functions_equal_the_originals() -> None:
    originals = {torch.Tensor.tolist: 1, torch.tensor: 2, torch.Tensor.numpy: 3}
    with torch_lms.session():
        assert [originals[f] for f in (torch.Tensor.tolist, torch.tensor, torch.Tensor.numpy)] == [1, 2, 3]
        assert pickle.loads(pickle.dumps(torch.tensor)) is torch.tensor
        assert pickle.loads(pickle.dumps(torch.Tensor.tolist)) == torch.Tensor.tolist
        assert torch.overrides.is_tensor_method_or_property(torch.Tensor.tolist)


def test_8_the_compiler_knows_patched_functions() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor([1.0, 2.0]) + torch.as_tensor(2.0)

    with torch_lms.session():
        explained = torch._dynamo.explain(fn)(torch.ones(2))
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)


# -- 9: composite operators that read bytes ----------------------------------------------------------------------------


def test_9_sobol_engines() -> None:
    expected = torch.quasirandom.SobolEngine(5000, scramble=True, seed=5).draw(10)
    with torch_lms.session(limit=0, min_size=1):
        assert torch.equal(torch.quasirandom.SobolEngine(5000, scramble=True, seed=5).draw(10), expected)


@pytest.mark.parametrize(
    "call",
    [
        torch.fbgemm_linear_quantize_weight,
        torch.fbgemm_pack_gemm_matrix_fp16,
        lambda w: torch.choose_qparams_optimized(w, w.numel(), 200, 0.16, 8),
        torch._saturate_weight_to_fp16,
        lambda w: torch._rowwise_prune(w, w[:, 0] > 0.5, torch.int32),
    ],
    ids=["fbgemm_linear_quantize_weight", "fbgemm_pack", "choose_qparams", "saturate", "rowwise_prune"],
)
@pytest.mark.parametrize("infers", [False, True], ids=["grad", "inference"])
def test_9_composite_operators_that_read_bytes(lms: api.Lms, call: Any, infers: bool) -> None:
    torch.manual_seed(0)
    with torch.inference_mode(infers):
        weight = away(torch.rand(64, 64))
        found = call(weight)
        torch_lms.reclaim()
        expected = call(torch.tensor(weight.tolist()))
    if isinstance(expected, torch.Tensor) and expected.dtype is not torch.uint8:
        assert torch.equal(found, expected)
    assert lms.stats().evictions > 0


# -- 10: cuts that a layout cannot take --------------------------------------------------------------------------------


def test_10_convolutions_on_the_mkldnn_layout() -> None:
    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(0)
        x = torch.rand(2, 6, 6).to_mkldnn().requires_grad_()
        weight = torch.rand(4, 6, 3).requires_grad_()
        torch.conv1d(x, weight).to_dense().sum().backward()
        assert x.grad is not None
        assert weight.grad is not None
        return [x.grad.to_dense(), weight.grad]

    expected = gradients()
    with torch_lms.session(limit=0, min_size=1):
        assert all(map(torch.equal, gradients(), expected))


# -- 11: small integers that are rebuilt from a storage ----------------------------------------------------------------


@pytest.mark.parametrize(
    "rebuild",
    [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t)), lambda t: torch.zeros(0, dtype=t.dtype).set_(t.storage())],
    ids=["deepcopy", "pickle", "set_"],
)
def test_11_small_integers_rebuilt_from_a_storage(lms: api.Lms, rebuild: Any) -> None:
    state = rebuild(torch.get_rng_state())
    torch_lms.reclaim()
    torch.set_rng_state(state)
    places = rebuild(torch.tensor([2, 5]))
    torch_lms.reclaim()
    parts = torch.tensor_split(torch.arange(8.0), places)
    assert [len(part) for part in parts] == [2, 3, 3]


def test_11_numbers_that_become_small_integers(lms: api.Lms) -> None:
    numbers = away(torch.tensor([2, 5]).view(torch.float64).clone())
    places = numbers.view(torch.int64)
    torch_lms.reclaim()
    assert [len(part) for part in torch.tensor_split(torch.arange(8.0), places)] == [2, 3, 3]


# -- 12: files that PyTorch refuses to write ---------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_12_one_storage_under_two_types_is_refused(lms: api.Lms, zipped: bool) -> None:
    floats = away(torch.arange(100.0))
    pair = [floats, floats.view(torch.int32)]
    torch_lms.reclaim()
    with pytest.raises(RuntimeError, match="different types"):
        torch.save(pair, io.BytesIO(), _use_new_zipfile_serialization=zipped)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_12_files_are_loaded_into_pages(lms: api.Lms, zipped: bool) -> None:
    """Neither saving nor loading lets an address escape."""
    file = io.BytesIO()
    saved = away(torch.arange(100.0))
    torch.save([saved, saved[10:], nn.Parameter(saved[20:])], file, _use_new_zipfile_serialization=zipped)
    file.seek(0)
    loaded = torch.load(file)
    assert [tensor.sum().item() for tensor in loaded] == [4950, 4905, 4760]
    assert "address escaped" not in lms.stats().unpaged_bytes


# -- 13: quantized tensors of less than a byte -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.quint4x2, torch.quint2x4])
def test_13_quantized_tensors_of_less_than_a_byte(dtype: torch.dtype) -> None:
    def refusal() -> str:
        tensor = torch._empty_affine_quantized([16], scale=1.0, zero_point=0, dtype=dtype)
        with pytest.raises(RuntimeError) as raised:
            tensor.fill_(1)
        return str(raised.value)

    expected = refusal()
    with torch_lms.session(limit=0, min_size=1):
        assert refusal() == expected


def test_questions_about_sizes_and_layouts_that_a_subclass_answers_itself() -> None:
    """They are operators of TorchScript, of which the dispatcher knows no kernel."""

    class Answering(torch.Tensor):
        @staticmethod
        def __new__(cls, data: torch.Tensor) -> "Answering":
            return torch.Tensor._make_subclass(cls, data, False, dispatch_sizes_strides_policy="sizes")

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(str(func))
            return (7, 2) if "size" in str(func) else None

    asked: list[str] = []
    with torch_lms.session(limit=0, min_size=1):
        tensor = Answering(torch.ones(2, 2))
        assert tensor.size() == (7, 2)
    assert any("size" in question for question in asked)
