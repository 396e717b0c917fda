"""A dispatch mode that only looks: does every operator write and share what ``describe`` says (N4)?"""

from collections import defaultdict
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_lms.capture.schema import describe
from torch_lms.capture.tensors import storage_of, tensors_among
from torch_lms.runtime.executor import memory_of

_storage_nbytes = torch._C.StorageBase.nbytes


class Watcher(TorchDispatchMode):
    """Compares every argument's bytes before and after each operation, and looks for shared storages.

    Attributes:
        undeclared_writes: positions of arguments written unsaid, by operator.
        undeclared_sharing: operators whose result shares an argument's storage unsaid.
        seen: all operators.
    """

    def __init__(self) -> None:
        super().__init__()
        self.undeclared_writes: dict[str, set[int]] = defaultdict(set)
        self.undeclared_sharing: set[str] = set()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        info = describe(func)
        if info.opaque:
            return func(*args, **kwargs)
        given = [storage_of(tensor) for tensor in tensors_among((*args, *kwargs.values()))]
        before = [_bytes(storage) for storage in given]
        result = func(*args, **kwargs)
        self.seen.add(info.name)
        declared = {id(storage_of(tensor)) for tensor in tensors_among(info.written_args(args, kwargs))}
        for position, (storage, content) in enumerate(zip(given, before, strict=True)):
            if id(storage) not in declared and _bytes(storage) != content:
                self.undeclared_writes[info.name].add(position)
        results = tensors_among(result if isinstance(result, tuple | list) else (result,))
        shared = {id(storage) for storage in given} & {id(storage_of(tensor)) for tensor in results}
        if shared - declared and not info.view and not info.composite:
            self.undeclared_sharing.add(info.name)
        return result


def _bytes(storage: torch.UntypedStorage) -> bytes:
    if storage.device.type != "cpu" or not _storage_nbytes(storage) or not torch._C.StorageBase.data_ptr(storage):
        return b""
    return bytes(memory_of(storage))
