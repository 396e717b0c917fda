"""Roads to a storage's bytes that no operation shows (N11): each is patched, narrowly, while a session is on."""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import Any

import torch
import torch.jit._script
import torch.utils.dlpack

from torch_lms.capture.registry import Entry
from torch_lms.capture.tensors import no_torch_function, storage_of, tensors_among
from torch_lms.capture.told import RawUse, Told
from torch_lms.errors import UnsupportedError

_READ = ("tolist", "__repr__"), ("_write_file",)
_WRITTEN = ("apply_", "map_", "map2_"), ("__setitem__", "copy_", "fill_", "_set_from_file", "_byteswap")
_ADDRESS = (
    ("data_ptr", "numpy", "__array__", "__dlpack__"),
    ("data_ptr", "_swap_data_ptr_", "_resize_with_addr_"),
)
_SHARED = (), ("_share_fd_cpu_", "_share_filename_cpu_", "_share_cuda_")
_SCRIPT = "save", "_save_for_lite_interpreter", "save_to_buffer", "_save_to_buffer_for_lite_interpreter"
_SIZE = ("nbytes", "size", "__len__")
_DLPACK = (
    (torch._C, "_to_dlpack"),
    (torch._C, "_to_dlpack_versioned"),
    (torch.utils.dlpack, "to_dlpack"),
    (torch, "to_dlpack"),
)


class RawAccess(Told):
    """Whoever is told of raw accesses before they happen."""

    @abstractmethod
    def all_held(self) -> AbstractContextManager[None]:
        """Inside, every page is on the device, whatever the limit."""

    @abstractmethod
    def unseen(self) -> AbstractContextManager[None]:
        """Inside, this thread's operations pass unseen, and their results are no pages."""

    @abstractmethod
    def resized(self, entry: Entry) -> None:
        """The user gave the storage of ``entry`` another size."""


class RawPatches:
    """The patches. They let everything through that is no page.

    Args:
        told: hears of accesses.
        kind: of devices whose storages are pages: "cuda" for one.
    """

    def __init__(self, told: RawAccess, kind: str) -> None:
        self._told = told
        self._kind = kind
        self._undo: list[Callable[[], None]] = []
        self._saving = threading.local()

    def install(self) -> None:
        """Put the patches in place."""
        read, written, exported = self._reading(False), self._reading(True), self._exporting("address escaped")
        for owner, index in ((torch.Tensor, 0), (torch.UntypedStorage, 1)):
            for names, hook in (
                (_READ, read),
                (_WRITTEN, written),
                (_ADDRESS, exported),
                (_SHARED, self._exporting("shared memory")),
            ):
                for name in names[index]:
                    self._patch(owner, name, hook)
        for module, name in _DLPACK:
            self._patch(module, name, exported)
        for name in _SIZE:
            self._patch(torch.UntypedStorage, name, self._sizing)
        self._patch(torch.UntypedStorage, "__getitem__", self._indexing(read, exported))
        self._patch(torch.UntypedStorage, "resize_", self._resizing)
        interface: property = torch.Tensor.__dict__["__cuda_array_interface__"]
        self._set(torch.Tensor, "__cuda_array_interface__", property(exported(interface.fget)))
        for name in ("_save", "_legacy_save"):
            self._patch(torch.serialization, name, self._saves)
        for name in _SCRIPT:
            for saved in (torch.jit._script.RecursiveScriptModule, torch.jit.ScriptModule, torch._C.ScriptFunction):
                self._patch(saved, name, self._script_saving)
        for name in ("__deepcopy__", "__getstate__", "__setstate__"):
            self._patch(torch._C.ScriptObject, name, self._in_object)
        for script in (torch._C.ScriptFunction, torch._C.ScriptMethod):
            self._patch(script, "__call__", read)
        self._patch(torch._C.PyTorchFileWriter, "write_record", read)
        if self._kind == "cuda":
            self._patch(torch.cuda.CUDAGraph, "capture_begin", _refusing_graphs)

    def uninstall(self) -> None:
        """Put everything back as it was."""
        while self._undo:
            self._undo.pop()()

    def _patch(self, owner: Any, name: str, hook: Callable[[Any], Any]) -> None:
        if hasattr(owner, name):  # some are younger than the oldest PyTorch we support
            self._set(owner, name, hook(getattr(owner, name)))

    def _set(self, owner: Any, name: str, value: Any) -> None:
        if name in vars(owner):
            self._undo.append(partial(setattr, owner, name, vars(owner)[name]))
        else:
            self._undo.append(partial(delattr, owner, name))
        setattr(owner, name, value)

    def _pages(self, args: tuple[Any, ...]) -> list[Entry]:
        with no_torch_function():
            found = (self._told.find(storage_of(tensor)) for tensor in tensors_among(args))
            return [entry for entry in found if entry is not None]

    # -- hooks -------------------------------------------------------------------------------------------------------

    def _reading(self, written: bool) -> Callable[[Any], Any]:
        def hook(original: Any) -> Any:
            @wraps(original)
            def patched(*args: Any, **kwargs: Any) -> Any:
                if entries := self._pages(args):
                    with self._touching(entries, written):
                        return original(*args, **kwargs)
                return original(*args, **kwargs)

            return patched

        return hook

    @contextmanager
    def _touching(self, entries: list[Entry], written: bool) -> Iterator[None]:
        self._told.require(RawUse("access"), entries, 0)
        try:
            yield
        finally:
            self._told.end(entries, entries if written else [])

    def _exporting(self, reason: str) -> Callable[[Any], Any]:
        def hook(original: Any) -> Any:
            # `torch.save` compares addresses of storages to find those that are saved twice; 0 it takes for none
            is_compared = original is torch.UntypedStorage.data_ptr

            @wraps(original)
            def patched(*args: Any, **kwargs: Any) -> Any:
                if not (is_compared and getattr(self._saving, "now", False)) and (entries := self._pages(args)):
                    self._told.export(entries, reason)
                return original(*args, **kwargs)

            return patched

        return hook

    def _indexing(self, read: Callable[[Any], Any], exported: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def hook(original: Any) -> Any:
            item, shared_slice = read(original), exported(original)

            @wraps(original)
            def patched(storage: torch.UntypedStorage, index: Any) -> Any:
                return (shared_slice if isinstance(index, slice) else item)(storage, index)

            return patched

        return hook

    def _sizing(self, original: Any) -> Any:
        @wraps(original)
        def patched(storage: torch.UntypedStorage) -> int:
            entry = self._told.find(storage)
            return int(original(storage)) if entry is None else entry.nbytes

        return patched

    def _resizing(self, original: Any) -> Any:
        @wraps(original)
        def patched(storage: torch.UntypedStorage, nbytes: int) -> Any:
            entry = self._told.find(storage)
            if entry is None:
                return original(storage, nbytes)
            if nbytes == 0:
                self._told.spoil([entry])
            with self._touching([entry] if nbytes > 0 else [], written=True):
                result = original(storage, nbytes)
                self._told.resized(entry)
            return result

        return patched

    def _in_object(self, original: Any) -> Any:
        """Objects of C++ mix operations with raw accesses. Their own tensors stay on the device (N12)."""

        @wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            with self._told.unseen():
                return original(*args, **kwargs)

        return patched

    def _script_saving(self, original: Any) -> Any:
        """Scripts hold constants that nobody can list, and C++ writes them all."""

        @wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            with self._told.all_held():
                return original(*args, **kwargs)

        return patched

    def _saves(self, original: Any) -> Any:
        @wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            with self._while_saving():
                return original(*args, **kwargs)

        return patched

    @contextmanager
    def _while_saving(self) -> Iterator[None]:
        before = getattr(self._saving, "now", False)
        self._saving.now = True
        try:
            yield
        finally:
            self._saving.now = before


def _refusing_graphs(original: Any) -> Any:
    @wraps(original)
    def patched(*_args: Any, **_kwargs: Any) -> None:
        raise UnsupportedError(
            "a CUDA graph replays fixed addresses, and LMS moves tensors to others: graphs cannot be captured while it "
            'is on. Capture before torch_lms.enable(), or do without (torch.compile: not mode="reduce-overhead")'
        )

    return patched
