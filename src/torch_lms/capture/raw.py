"""Roads to a storage's bytes that no operation shows (N11): each is patched, narrowly, while a session is on."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
import torch.jit._script
import torch.utils.dlpack
from torch.utils import _pytree as pytree

from torch_lms.capture.composites import Composites
from torch_lms.capture.extensions import Extensions
from torch_lms.capture.loading import Loading
from torch_lms.capture.page_owner import PageOwner, RawUse
from torch_lms.capture.patches import Around, Call, Patches
from torch_lms.capture.registry import STORAGE, Entry
from torch_lms.capture.saving import Saving
from torch_lms.capture.tensors import (
    has_bytes,
    is_wrapper,
    no_function_modes,
    storage_of,
    tensors_among,
    tensors_within,
)
from torch_lms.errors import UnsupportedError
from torch_lms.import_hooks import once_imported

_Roads = dict[Any, tuple[str, ...]]
"""Names of functions, by where they stand."""

_READ: _Roads = {torch.Tensor: ("tolist", "__repr__"), torch.UntypedStorage: ("_write_file",)}
_WRITTEN: _Roads = {torch.Tensor: ("apply_", "map_", "map2_")}
_WRITTEN_AS_BYTES: _Roads = {torch.UntypedStorage: ("__setitem__", "copy_", "fill_", "_set_from_file", "_byteswap")}
_ADDRESS: _Roads = {
    torch.Tensor: ("data_ptr", "const_data_ptr"),
    torch.UntypedStorage: ("data_ptr",),
    torch.TypedStorage: ("data_ptr", "_data_ptr"),
}
_DLPACK: _Roads = {
    torch._C: ("_to_dlpack", "_to_dlpack_versioned"),
    torch.utils.dlpack: ("to_dlpack",),
    torch: ("to_dlpack",),
}
_GIVEN_AWAY: _Roads = {torch.UntypedStorage: ("_swap_data_ptr_", "_resize_with_addr_")}
_SHARED: _Roads = {torch.UntypedStorage: ("_share_fd_cpu_", "_share_filename_cpu_", "_share_cuda_")}
_CONSTRUCTORS: _Roads = {torch: ("tensor", "asarray", "as_tensor"), torch.Tensor: ("new_tensor",)}
_SIZE: _Roads = {torch.UntypedStorage: ("nbytes", "size", "__len__")}
_BYTES_AT_A_TIME = 4096
_SAVING_SCRIPTS = ("save", "_save_for_lite_interpreter", "save_to_buffer", "_save_to_buffer_for_lite_interpreter")

_GRAPHS = (
    (torch.cuda.graph, "__enter__"),  # before it enters a stream that nobody would leave
    (torch.cuda.CUDAGraph, "capture_begin"),
    (torch.cuda.CUDAGraph, "replay"),
)

_COMPARE_ADDRESSES = (
    *("torch.serialization", "torch.storage", "torch.distributed.checkpoint", "safetensors.torch"),
    "torch.export.pt2_archive._package_weights",
    *("transformers.modeling_utils", "transformers.pytorch_utils", "transformers.trainer"),
    *("accelerate", "huggingface_hub", "peft"),
)
"""Modules, and packages, that ask for addresses to tell tensors apart, and do not look there."""

_FOLLOW_ADDRESSES = frozenset({"_to_ndarray", "_tobytes", "_stage_untyped_storage"})
"""Functions of these modules that do look there."""

_COMPARE_IN_TENSOR = frozenset({"__deepcopy__", "_reduce_ex_internal"})
"""Functions of ``torch._tensor`` that only compare; its others look there."""

_POINTING = ("bitsandbytes.functional", "unsloth.kernels.utils")
"""Modules whose ``get_ptr`` makes a pointer of ctypes to a tensor, for a function in C. The latter has the former's."""

_ADDRESS_BITS = 64
"""Placeholders for addresses are greater than any number of so many bits."""

ESCAPED = "address escaped"
"""Why a page stays whose memory others may use."""


class _Borrower(threading.local):
    """Who borrows pages on a thread, for a while.

    Attributes:
        borrow: holds pages until the end; None while nobody borrows.
    """

    borrow: Callable[[list[Entry]], None] | None = None

    @contextmanager
    def borrowing(self, hold: Callable[[list[Entry]], AbstractContextManager[None]]) -> Iterator[None]:
        """Inside, pages are borrowed: ``hold`` is entered for them, and left at the end."""
        before = self.borrow
        with ExitStack() as held:
            self.borrow = lambda entries: held.enter_context(hold(entries))
            try:
                yield
            finally:
                self.borrow = before


class RawPatches:
    """Puts the patches in place, and takes them away. They let everything through that is no page.

    Args:
        told: hears of accesses.
        kind: of devices whose storages are pages: "cuda" for one.
    """

    def __init__(self, told: PageOwner, kind: str) -> None:
        self._told = told
        self._kind = kind
        self._patches = Patches()
        self._composites = Composites(self._holding)
        self._extensions = Extensions(self._calling, self._making)
        self._loading = Loading(told)
        self._saving = Saving(lambda tensor: bool(self._any((tensor,))), lambda: self._borrowing(writes=False))
        self._of_all, self._of_addresses = _Borrower(), _Borrower()

    def install(self) -> None:
        """Put the patches in place."""
        self._around_all(_READ, self._reading)
        self._around_all(_WRITTEN, self._writing)
        self._around_all(_WRITTEN_AS_BYTES, self._writing_bytes)
        self._around_all(_ADDRESS, self._asking_address)
        self._around_all(_DLPACK, self._packing)
        self._around_all(_GIVEN_AWAY, self._exporting(ESCAPED))
        self._around_all(_SHARED, self._exporting("shared memory"))
        self._around_all(_CONSTRUCTORS, self._constructing)
        self._around_all(_SIZE, self._sizing)
        patch = self._patches.around
        patch(torch.Tensor, "numpy", self._lending)
        patch(torch.UntypedStorage, "__getitem__", self._indexing)
        patch(torch.UntypedStorage, "__iter__", self._iterating)
        patch(torch.UntypedStorage, "resize_", self._resizing)
        self._patch_interface()
        self._patch_scripts()
        self._extensions.install()
        patch(torch._C.PyTorchFileWriter, "write_record", self._reading)
        self._patch_once_imported("safetensors.torch", self._patch_safetensors)
        self._patch_once_imported("torch.export.pt2_archive._package", self._patch_exports)
        self._patch_once_imported("torch.onnx._internal.exporter._core", self._patch_onnx)
        self._patch_once_imported("triton.runtime.jit", self._patch_triton)
        for module in _POINTING:
            self._patch_once_imported(module, self._patch_pointers)
        self._patch_once_imported("torch._subclasses.meta_utils", self._patch_meta_utils)
        self._patch_once_imported("torch._subclasses.fake_tensor", self._patch_fake_tensor)
        if self._kind == "cpu":
            self._composites.install()
            self._loading.install(self._patches)
        if self._kind == "cuda":
            for owner, name in _GRAPHS:
                patch(owner, name, _refusing_graphs)

    def uninstall(self) -> None:
        """Put everything back as it was."""
        self._composites.uninstall()
        self._extensions.uninstall()
        self._patches.undo()

    def _around_all(self, roads: _Roads, around: Around) -> None:
        for owner, names in roads.items():
            for name in names:
                self._patches.around(owner, name, around)

    def _patch_once_imported(self, module: str, patch: Call) -> None:
        """Call ``patch(module)`` once ``module`` has been imported."""
        self._patches.later(once_imported(module, partial(patch, module)))

    def _patch_interface(self) -> None:
        """Patch the array interface. It is a property, which cannot be patched as functions are."""
        name = "__cuda_array_interface__"
        get = torch.Tensor.__dict__[name].fget
        self._patches.replace(
            torch.Tensor, name, property(self._patches.patched(torch.Tensor, name, get, self._exporting(ESCAPED)))
        )

    def _patch_scripts(self) -> None:
        for saved in (torch.jit._script.RecursiveScriptModule, torch.jit.ScriptModule, torch._C.ScriptFunction):
            self._around_all({saved: _SAVING_SCRIPTS}, self._holding_all)
        for name in ("__deepcopy__", "__getstate__"):
            self._patches.around(torch._C.ScriptObject, name, self._in_object)
        self._patches.around(torch._C.ScriptObject, "__setstate__", self._into_object)
        for script in (torch._C.ScriptFunction, torch._C.ScriptMethod):
            self._patches.around(script, "__call__", self._reading)

    def _patch_safetensors(self, name: str) -> None:
        module = import_module(name)
        self._around_all({module: ("save", "save_file")}, self._saving_raw)
        if hasattr(module, "_to_ndarray"):  # for who has bound the others' names before
            self._patches.around(module, "_to_ndarray", self._showing)
            self._saving.install(self._patches, module)

    def _patch_exports(self, name: str) -> None:
        self._patches.around(import_module(name), "_get_raw_tensor_bytes", self._saving_raw)

    def _patch_onnx(self, name: str) -> None:
        self._around_all({import_module(name).TorchTensor: ("tobytes", "tofile")}, self._saving_raw)

    def _patch_triton(self, name: str) -> None:
        self._patches.around(import_module(name).JITFunction, "run", self._launching)

    def _patch_pointers(self, name: str) -> None:
        self._patches.around(import_module(name), "get_ptr", self._pointing)

    def _patch_meta_utils(self, name: str) -> None:
        """Patch what makes fake tensors: they copy real ones where dispatch is off."""
        self._around_all({import_module(name): ("_safe_copy", "_safe_clone")}, self._writing)

    def _patch_fake_tensor(self, name: str) -> None:
        """Patch what keeps single numbers as constants: fake tensors copy them where dispatch is off, too."""
        module = import_module(name)
        self._patches.around(module.FakeTensorConverter, "from_real_tensor", self._reading_number)
        self._patches.around(module.FakeTensorMode, "may_turn_const", self._keeping_constant)

    # -- what is done around the originals ---------------------------------------------------------------------------

    def _reading(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._touching(self._known(args), written=False):
            return call(*args, **kwargs)

    def _writing(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._touching(self._known(args), written=True):
            return call(*args, **kwargs)

    def _writing_bytes(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Storages copy each other by tensors of bytes, which die at once: seen, they would have both stay for good."""
        target = self._known(args[:1])
        sources = [entry for entry in self._known((*args[1:], *kwargs.values())) if entry not in target]
        with self._touching(sources, written=False), self._touching(target, written=True), self._told.unseen():
            return call(*args, **kwargs)

    def _reading_number(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        numbers = [entry for entry in self._known(args) if entry.nbytes <= _NUMBER_NBYTES]
        with self._touching(numbers, written=False):
            return call(*args, **kwargs)

    def _keeping_constant(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_kept = call(*args, **kwargs)
        if is_kept:
            self._export(args, "kept by PyTorch")
        return is_kept

    def _constructing(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hold what a new tensor is made of.

        Storages, and tensors in lists, are read in C++, in between operations that make pages of them.
        """
        owners = [part for part in _parts((*args, *kwargs.values())) if isinstance(part, _OWNERS)]
        if not owners:
            return call(*args, **kwargs)
        with self._touching(self._known(owners), written=False), self._told.keeping(may_write=False):
            return call(*args, **kwargs)

    def _exporting(self, reason: str) -> Around:
        def export(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self._export(args, reason)
            return call(*args, **kwargs)

        return export

    def _asking_address(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let an address escape. A caller that only compares addresses gets a number that no other page has."""
        owner = args[:1]
        if is_wrapper(args[0]) and not has_bytes(args[0]):
            owner = ()  # its parts' addresses are not asked for
        if _only_compares(sys._getframe(2)):  # frames 0 and 1 are this method and `Patched.__call__`
            entries = self._known(owner)
            return _placeholder_address(args[0], entries[0]) if entries else call(*args, **kwargs)
        if self._of_addresses.borrow is not None:
            self._of_addresses.borrow(self._known(owner))
        else:
            self._export(owner, ESCAPED)
        address = call(*args, **kwargs)
        if isinstance(args[0], torch.TypedStorage):
            return STORAGE.data_ptr(args[0]._untyped_storage)
        return address

    def _pointing(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Lend an address to a pointer object. Its user has it as long as he uses the address."""
        if self._of_addresses.borrow is not None:
            return call(*args, **kwargs)
        entries = self._any((*args, *kwargs.values()))
        with self._touching(entries, written=False), self.lending_addresses(entries):
            pointer = call(*args, **kwargs)
            if entries:
                self._told.lend(entries, pointer)
        return pointer

    def _packing(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Export a tensor by DLPack. A copy made for it is made unseen: its address escapes, and it is no page."""
        is_copied = kwargs.get("copy")
        if "copy" not in kwargs and len(args) > 2:
            is_copied = args[2]
        with self._touching(self._any(args[:1]), written=False):
            if not is_copied:
                self._export(args[:1], ESCAPED)
            with self._told.unseen():
                return call(*args, **kwargs)

    def _lending(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entries = self._any(args[:1])
        with self._touching(entries, written=False):
            borrower = call(*args, **kwargs)
            if entries and isinstance(borrower, np.ndarray):
                self._told.lend(entries, borrower)
        return borrower

    def _indexing(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(args[-1], slice):
            part = self._loading.part(call, *args)
            if part is not None:
                return part
            # a slice of a storage is its memory, too
            self._export(args, ESCAPED)
            return call(*args, **kwargs)
        return self._reading(call, args, kwargs)

    def _iterating(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._told.known(args[0]) is None:
            return call(*args, **kwargs)
        return self._bytes_of(args[0])

    def _bytes_of(self, storage: torch.UntypedStorage) -> Iterator[int]:
        """Its bytes, some at a time: to see to it that the storage is there takes longer than to read one."""
        for first in range(0, storage.size(), _BYTES_AT_A_TIME):
            with self._touching(self._any((storage,)), written=False), self._told.unseen():
                seen = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
                some: list[int] = seen[first : first + _BYTES_AT_A_TIME].tolist()
            yield from some

    def _sizing(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entry = self._told.known(args[0])
        if entry is None:
            return call(*args, **kwargs)
        return entry.nbytes  # PyTorch says 0 while it is evicted

    def _resizing(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entry = self._told.known(args[0])
        if entry is None or len(args) != 2:  # another number of arguments is refused by PyTorch
            return call(*args, **kwargs)
        nbytes = args[1]
        if nbytes == 0:
            self._told.invalidate([entry])
        needed = [entry] if nbytes else []
        with self._touching(needed, written=True):
            result = call(*args, **kwargs)
            self._told.resized(entry, is_freed=nbytes == 0)
        return result

    def _in_object(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let operations pass unseen: objects of C++ mix them with raw accesses. Their tensors stay resident (N12)."""
        with self._told.unseen():
            return call(*args, **kwargs)

    def _into_object(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same, of an object that is given its state: it goes on using the tensors in it."""
        given = self._known(leaf for leaf in pytree.tree_leaves(args[1:]) if isinstance(leaf, torch.Tensor))
        if given:
            self._told.export(given, "kept by PyTorch")
        return self._in_object(call, args, kwargs)

    def _holding_all(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hold every page: scripts have constants that nobody can list, and C++ saves them all."""
        with self._told.all_held():
            return call(*args, **kwargs)

    def _saving_raw(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The addresses of all that is saved are gathered before the first is used, and forgotten at the end."""
        with self._borrowing(writes=False):
            return call(*args, **kwargs)

    def _showing(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What is saved is read by way of an array that shows its memory, and which lives until the file is written."""
        placeholder = self._saving.placeholder(*args)
        if placeholder is not None:
            return placeholder, args[0]
        if self._of_all.borrow is not None:
            return call(*args, **kwargs)
        with self._borrowing(writes=False):
            array, tensor = call(*args, **kwargs)
            if entries := self._known((tensor,)):
                self._told.lend(entries, array)
        return array, tensor

    def _launching(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A kernel may write whatever it is given. It is launched when this returns, and streams have an order."""
        given = self._any(tensors_within((args, kwargs)))
        with self._touching(given, written=True), self._borrowing(writes=True):
            return call(*args, **kwargs)

    def _calling(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of another library's may write whatever it is given, and fill what it makes."""
        given = self._known(tensors_within((args, kwargs)))
        with self._touching(given, written=True), self._told.keeping(may_write=True):
            return call(*args, **kwargs)

    def _making(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An object of another library's may keep what it is given."""
        self._export(tensors_within((args[1:], kwargs)), "kept by an object of C++")
        return self._calling(call, args, kwargs)

    # -- pages -------------------------------------------------------------------------------------------------------

    def _export(self, values: Iterable[Any], reason: str) -> None:
        entries = self._any(values)
        if self._of_all.borrow is not None:
            self._of_all.borrow(entries)
        elif entries:
            self._told.export(entries, reason)

    def _borrowing(self, writes: bool) -> AbstractContextManager[None]:
        """Inside, pages whose memory this thread gives away stay until the end, and no longer."""
        return self._of_all.borrowing(lambda entries: self._touching(entries, writes))

    def lending_addresses(self, used: list[Entry]) -> AbstractContextManager[None]:
        """Inside, an operator written in Python runs on ``used``: it has forgotten addresses when it ends."""
        return self._of_addresses.borrowing(
            lambda entries: self._touching([entry for entry in entries if entry not in used], written=True)
        )

    @contextmanager
    def _holding(self, values: tuple[Any, ...], written: list[Any]) -> Iterator[None]:
        entries = self._known(values)
        changed = self._known(written)
        unchanged = [entry for entry in entries if entry not in changed]
        with self._touching(unchanged, written=False), self._touching(changed, written=True), self._told.keeping(True):
            yield

    @contextmanager
    def _touching(self, entries: list[Entry], written: bool) -> Iterator[None]:
        if not entries:
            yield
            return
        self._told.begin(RawUse("access"), entries, 0)
        try:
            yield
        finally:
            self._told.end(entries, entries if written else [])

    def _known(self, values: Iterable[Any]) -> list[Entry]:
        """The pages among ``values``. What is no page yet is where its user expects it."""
        known = self._told.known
        return self._pages(values, lambda storage, _: known(storage))

    def _any(self, values: Iterable[Any]) -> list[Entry]:
        """The pages among ``values``, those included that become pages now."""
        return self._pages(values, self._told.entry_of)

    def _pages(
        self, values: Iterable[Any], entry_of: Callable[[torch.UntypedStorage, torch.Tensor | None], Entry | None]
    ) -> list[Entry]:
        owners = [value._untyped_storage if isinstance(value, torch.TypedStorage) else value for value in values]
        with no_function_modes():
            found = {
                entry_of(storage_of(owner), owner if isinstance(owner, torch.Tensor) else None): None
                for owner in tensors_among(owners)
            }
        return [entry for entry in found if entry is not None]


def _parts(values: Iterable[Any]) -> Iterator[Any]:
    """``values``, and what is in lists among them. Lists of numbers may be long, and are passed over."""
    for value in values:
        if not isinstance(value, list | tuple):
            yield value
        elif not set(map(type, value)) <= _NUMBERS:
            yield from _parts(value)


_NUMBER_NBYTES = 16
"""Bytes of the largest number, complex128."""

_OWNERS = torch.Tensor, torch.UntypedStorage, torch.TypedStorage
_NUMBERS = {int, float, complex, bool}


def _only_compares(caller: Any) -> bool:
    """Whether the function whose frame is ``caller`` asks for addresses only to tell tensors apart."""
    module = caller.f_globals.get("__name__", "")
    function = caller.f_code.co_name
    if module == "torch._tensor":
        return function in _COMPARE_IN_TENSOR
    if function in _FOLLOW_ADDRESSES:
        return False
    return any(module == name or module.startswith(f"{name}.") for name in _COMPARE_ADDRESSES)


def _placeholder_address(owner: Any, entry: Entry) -> int:
    """An address that only this place of this page has."""
    place = 0
    if isinstance(owner, torch.Tensor):
        place = int(owner.storage_offset() * owner.element_size())
    return ((entry.page + 1) << _ADDRESS_BITS) + place


def _refusing_graphs(_call: Call, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    raise UnsupportedError(
        "a CUDA graph replays fixed addresses, and LMS moves tensors to others: graphs can be neither captured nor "
        'replayed while it is on. Do without (torch.compile: not mode="reduce-overhead"), or torch_lms.disable() first'
    )
