"""Files of safetensors are written one tensor after the other, where without LMS all are gathered beforehand (N11)."""

import json
import mmap
import os
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torch_lms.capture.patches import Call, Patches

_Tensors = dict[str, torch.Tensor]


class Saving:
    """Has ``safetensors.torch.save_file`` need one page at a time.

    The library lays the file out, from zeros in place of pages, on addresses that have no memory behind them. What the
    pages hold is written over these, and only then the file gets its name.

    Args:
        is_page: whether a tensor shows a page.
        borrowing: inside, pages whose addresses are asked for stay until the end.
    """

    def __init__(
        self, is_page: Callable[[torch.Tensor], bool], borrowing: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._is_page = is_page
        self._borrowing = borrowing
        self._thread = _OfThread()

    def install(self, patches: Patches, module: ModuleType) -> None:
        """Add to ``patches`` what concerns ``module``, which is safetensors.torch."""
        patches.around(module, "_flatten_as_ptr", self._gathering)
        patches.around(module, "serialize_file", self._writing)
        self._array_of = module._to_ndarray

    def placeholder(self, tensor: torch.Tensor) -> npt.NDArray[np.uint8] | None:
        """Zeros in place of the bytes of ``tensor``, which a file is laid out for. None if its bytes must be there."""
        thread = self._thread
        if thread.left_out is None or not tensor.nbytes or not self._is_page(tensor):
            return None
        try:
            zeros = mmap.mmap(-1, tensor.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
        except OSError:  # a limit on addresses
            return None
        thread.left_out.add(id(tensor))
        return np.frombuffer(zeros, np.uint8)

    def _gathering(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Gather what is to be saved."""
        if sys._getframe(2).f_code.co_name != "save_file":  # frames 0 and 1 are this and `Patched.__call__`
            return call(*args, **kwargs)
        thread = self._thread
        left_out = thread.left_out = set[int]()
        try:
            gathered = call(*args, **kwargs)
        finally:
            thread.left_out = None
        if left_out:
            tensors: _Tensors = args[0]
            thread.to_fill = gathered, {name: value for name, value in tensors.items() if id(value) in left_out}
        return gathered

    def _writing(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Write the file of what was gathered."""
        (gathered, tensors), self._thread.to_fill = self._thread.to_fill, (None, {})
        if args[0] is not gathered:
            return call(*args, **kwargs)
        _, path, *others = args
        partial = f"{os.fspath(path)}.{os.getpid()}-{threading.get_ident()}.partial"
        try:
            result = call(gathered, partial, *others, **kwargs)
            self._fill(partial, tensors)
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial)
            raise
        return result

    def _fill(self, path: str, tensors: _Tensors) -> None:
        """Write ``tensors`` where a file of safetensors has room for them."""
        with open(path, "r+b") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
            for name in sorted(tensors, key=lambda name: int(header[name]["data_offsets"][0])):
                file.seek(8 + length + header[name]["data_offsets"][0])
                with self._borrowing():
                    array, _owner = self._array_of(tensors[name])
                    file.write(array.data)


class _OfThread(threading.local):
    """Where a thread is between gathering and writing.

    Attributes:
        left_out: while it gathers for a file, identities of the tensors in place of which there are zeros; else None.
        to_fill: what was gathered, and these tensors.
    """

    left_out: set[int] | None = None
    to_fill: tuple[Any, _Tensors] = (None, {})
