"""What is loaded on the CPU has memory of its own, though its storages refuse to be resized: it is paged (N12)."""

import os
import sys
import weakref
from typing import Any, cast

import torch

from torch_lms.capture.page_owner import PageOwner, RawUse
from torch_lms.capture.patches import Call, Patches
from torch_lms.capture.registry import storage_nbytes
from torch_lms.capture.tensors import storage_of


class _Mapped:
    """A file that is mapped.

    Args:
        file: the same as the owner of the pages knows it.

    Attributes:
        parts: of it, by their first and last byte.
    """

    def __init__(self, file: object) -> None:
        self.file = file
        self.parts: dict[tuple[int, int], weakref.ref[torch.UntypedStorage]] = {}


class Loading:
    """Tells of storages that loaders make: `torch.load` reads each, safetensors and `torch.load(mmap=True)` map a file
    and take it apart, or safetensors shows the bytes that it has read.

    Args:
        owner: of the pages.
    """

    def __init__(self, owner: PageOwner) -> None:
        self._owner = owner
        self._files: weakref.WeakKeyDictionary[torch.UntypedStorage, _Mapped] = weakref.WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        """Add to ``patches`` what makes such storages."""
        patches.around(torch._C.PyTorchFileReader, "get_storage_from_record", self._reading_record)
        patches.around(torch.UntypedStorage, "from_file", self._mapping)
        patches.around(torch, "frombuffer", self._showing_buffer)

    def part(self, call: Call, storage: torch.UntypedStorage, place: slice) -> torch.UntypedStorage | None:
        """A part of a mapped file, which ``call`` makes: the same each time while it lives. None of other storages."""
        mapped = self._files.get(storage)
        if mapped is None:
            return None
        parts = mapped.parts
        first, last, _ = place.indices(storage_nbytes(storage))
        known = parts.get((first, last))
        part = None if known is None else known()
        if part is not None:
            return part
        if any(start < last and first < end and other() is not None for (start, end), other in parts.items()):
            return None
        part = cast(torch.UntypedStorage, call(storage, place))
        parts[first, last] = weakref.ref(part)
        self._owner.owns(part, mapped.file, first)
        return part

    def _mapping(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Map a file. Where no function in Python can use it as a whole, its parts have their memory to themselves."""
        storage = call(*args, **kwargs)
        is_shared = kwargs.get("shared", args[1] if len(args) > 1 else False)
        if not is_shared and _is_of_a_loader(sys._getframe(2)):  # frames 0 and 1 are this and `Patched.__call__`
            self._files[storage] = _Mapped(self._owner.open_file(os.fspath(args[0] if args else kwargs["filename"])))
        return storage

    def _showing_buffer(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Show bytes as a tensor: safetensors lets go of what it has read at once."""
        loaded = call(*args, **kwargs)
        if sys._getframe(2).f_globals.get("__name__") == "safetensors.torch":
            self._owner.owns(storage_of(loaded))
            self._use(loaded)
        return loaded

    def _use(self, loaded: Any) -> None:
        """Use what was loaded: what is found counts from then on."""
        entries = self._owner.entries_of([loaded])
        if entries:
            self._owner.begin(RawUse("load"), entries, 0)
            self._owner.end(entries, [])

    def _reading_record(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Read a tensor from a file, with room made for it."""
        nbytes = args[2] * getattr(args[3], "itemsize", 1) if len(args) > 3 else 0
        self._owner.begin(RawUse("load"), [], nbytes)
        try:
            loaded = call(*args, **kwargs)
            self._owner.owns(storage_of(loaded))
        finally:
            self._owner.end([], [])
        self._use(loaded)
        return loaded


def _is_of_a_loader(caller: Any) -> bool:
    """Whether the function whose frame is ``caller`` is PyTorch's own, or did not ask itself: C++ or Rust did."""
    return caller.f_globals.get("__name__") == "torch.serialization" or "from_file" not in caller.f_code.co_names
