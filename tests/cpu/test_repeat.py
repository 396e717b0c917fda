"""Operators that are taken to be repeatable are repeated, on PyTorch's own samples, and compared bit by bit (N16)."""

from collections import Counter
from typing import Any, NamedTuple

import pytest
import torch
from operators import OPS, run
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.ways import IS_NATIVE
from torch_lms.capture.call import _SETTINGS, can_be_repeated
from torch_lms.capture.registry import Registry, storage_nbytes
from torch_lms.capture.schema import OpInfo, describe
from torch_lms.capture.tensors import tensors_among, untyped_storage
from torch_lms.native import load
from torch_lms.runtime.native_recompute import NativeRecomputer
from torch_lms.runtime.recompute import Recomputer


def content(storage: torch.UntypedStorage) -> bytes:
    return bytes(torch.empty(0, dtype=torch.uint8).set_(storage).tolist())


class Pages:
    """Every storage is a page. Their calls are recorded in Python."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.recomputer = Recomputer()

    def find(self, storage: torch.UntypedStorage) -> Any:
        if not storage_nbytes(storage):
            return None
        return self.registry.find(storage) or self.registry.add(storage, None)

    def record(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.recomputer.record(func, info, args, kwargs, self.find, lambda _: 0)

    def repeat(self, call: Any, storages: dict[int, torch.UntypedStorage]) -> None:
        """Adds to ``storages`` those of the results."""
        call.repeat(storages)


class _Numbered(NamedTuple):
    """A page of the native interposer's."""

    page: int


class NativePages(Pages):
    """The same natively."""

    def __init__(self) -> None:
        native = load.find().native
        assert native is not None
        self.native = native
        self.recomputer = NativeRecomputer(native, lambda _: None)

    def find(self, storage: torch.UntypedStorage) -> Any:
        if not storage_nbytes(storage):
            return None
        page = self.native.find(storage)
        return _Numbered(self.native.add(storage, False) if page < 0 else page)

    def repeat(self, call: Any, storages: dict[int, torch.UntypedStorage]) -> None:
        storages.update(call.repeat(storages))


IN_BOTH_LANGUAGES = pytest.mark.parametrize(
    "pages", [Pages, pytest.param(NativePages, marks=pytest.mark.skipif(not IS_NATIVE, reason="no native interposer"))]
)


class Repeating(TorchDispatchMode):
    """Makes every call that can be repeated twice, the second time on copies of what it was given."""

    def __init__(self, pages: Pages) -> None:
        super().__init__()
        self.pages = pages
        self.repeated: Counter[str] = Counter()
        self.differ: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        info, tensors = describe(func), tensors_among((*args, *kwargs.values()))
        if (
            info.view
            or info.composite
            or types
            or not can_be_repeated(info, args, kwargs, self.pages.find, torch.device("cpu"))
        ):
            return func(*args, **kwargs)
        call = self.pages.record(func, info, args, kwargs)
        storages = {entry.page: untyped_storage(tensor).clone() for tensor in tensors if (entry := self.of(tensor))}
        result = func(*args, **kwargs)
        for tensor in tensors_among(pytree.tree_leaves(result)):
            self.of(tensor)  # before they are asked for: they are pages
        call.made(result, self.pages.find)
        self.pages.repeat(call, storages)
        for tensor in tensors_among(pytree.tree_leaves((result, tensors))):
            entry = self.of(tensor)
            if entry is not None and content(untyped_storage(tensor)) != content(storages[entry.page]):
                self.differ.append(f"{info.name} {[tuple(tensor.shape) for tensor in tensors]}")
        self.repeated[info.name] += 1
        return result

    def of(self, tensor: torch.Tensor) -> Any:
        return self.pages.find(untyped_storage(tensor))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", sorted({op.name[0] for op in OPS}))
@IN_BOTH_LANGUAGES
def test_the_same_again(first: str, pages: type[Pages]) -> None:
    mode = Repeating(pages())
    run((op for op in OPS if op.name[0] == first), mode)
    assert mode.differ == []
    assert mode.repeated


@IN_BOTH_LANGUAGES
def test_integers_times_a_number_under_the_settings_of_the_first_time(pages: type[Pages]) -> None:
    """Of a number, not of a tensor: those of doubles would be doubles. What they are then hangs on a setting."""
    its, numbers, func = pages(), torch.arange(6), torch.ops.aten.mul.Tensor
    entry = its.find(untyped_storage(numbers))
    call = its.record(func, describe(func), (numbers, 0.5), {})
    halves = numbers * 0.5
    made = its.find(untyped_storage(halves))
    call.made(halves, its.find)
    storages = {entry.page: untyped_storage(numbers).clone()}
    torch.set_default_dtype(torch.float64)
    try:
        its.repeat(call, storages)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert content(storages[made.page]) == content(untyped_storage(halves))


@pytest.mark.parametrize("flushes", [False, True])
@IN_BOTH_LANGUAGES
def test_the_smallest_numbers_under_the_settings_of_the_first_time(pages: type[Pages], flushes: bool) -> None:
    """They count as 0 or not, which each thread may change at any time."""
    its, small, func = pages(), torch.full((1000,), 1e-39), torch.ops.aten.mul.Tensor
    entry = its.find(untyped_storage(small))
    try:
        torch.set_flush_denormal(flushes)
        call = its.record(func, describe(func), (small, 0.5), {})
        halves = small * 0.5
        made = its.find(untyped_storage(halves))
        call.made(halves, its.find)
        torch.set_flush_denormal(not flushes)
        storages = {entry.page: untyped_storage(small).clone()}
        its.repeat(call, storages)
        assert (small * 0.5).any() == flushes
    finally:
        torch.set_flush_denormal(False)
    assert halves.any() == (not flushes)
    assert content(storages[made.page]) == content(untyped_storage(halves))


@pytest.mark.skipif(not IS_NATIVE, reason="no native interposer")
@pytest.mark.parametrize("place", range(len(_SETTINGS)))
def test_a_setting_is_the_same_in_both_languages(place: int) -> None:
    native = load.find().native
    assert native is not None
    ask, change = _SETTINGS[place]
    before, seen = ask(), native.kernel_settings()
    change(_other(before))
    try:
        assert native.kernel_settings()[place] != seen[place]
    finally:
        change(before)
    assert native.kernel_settings() == seen
    assert len(seen) == len(_SETTINGS)


def _other(value: Any) -> Any:
    if isinstance(value, str):
        return "ieee" if value != "ieee" else "tf32"
    if isinstance(value, tuple):
        return not value[0], True
    if isinstance(value, torch.dtype):
        return torch.float64
    return not value if isinstance(value, bool) else value + 1
