"""How many bytes an operation will create, known before it runs (N8): from its shapes, on the meta device."""

from contextlib import suppress
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_lms.capture.registry import storage_nbytes
from torch_lms.capture.schema import OpInfo
from torch_lms.capture.sized import sized

_MOST_SIGNATURES = 20_000
"""The cache is emptied beyond this: a program whose shapes never repeat must not grow."""

_NO_KEY = (TypeError, RuntimeError)
"""Raised where an argument is not hashable, or does not tell its shape, as lazy parameters."""

_HARMLESS = (int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_FREQUENT = frozenset((*_HARMLESS, bool))


class Sizes:
    """Bytes that operations create, by signature."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def new_bytes(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Bytes of the storages that ``func`` will create; 0 where that is not known beforehand.

        Nothing of the user's runs for that. What an operator of an unknown library makes is learned from what it made.
        """
        if not info.creates:
            return 0
        try:
            key = _key(func, args, kwargs)
            known = self._known.get(key)
        except _NO_KEY:
            return _infer(func, info, args, kwargs)
        if known is None:
            known = _infer(func, info, args, kwargs)
            self._remember(key, known)
        return known

    def learn(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], nbytes: int) -> None:
        """``func`` has created ``nbytes``, more than was said: from now on they are."""
        with suppress(*_NO_KEY):
            self._remember(_key(func, args, kwargs), nbytes)

    def _remember(self, key: Any, nbytes: int) -> None:
        if len(self._known) >= _MOST_SIGNATURES:
            self._known.clear()
        self._known[key] = nbytes


def result_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """Where an operator puts what it makes: where it is told to, else where its arguments are, numbers apart."""
    if kwargs and (asked := kwargs.get("device")) is not None:
        return torch.device(asked)
    if args and type(args[0]) is torch.Tensor and args[0].dim():  # most often
        return args[0].device
    tensors = [leaf for leaf in pytree.arg_tree_leaves(*args, **kwargs) if isinstance(leaf, torch.Tensor)]
    chosen = next((tensor for tensor in tensors if tensor.dim()), tensors[0] if tensors else None)
    return chosen.device if chosen is not None else torch.device("cpu")


_DATA_DEPENDENT = frozenset({"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim"})


def _key(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func, torch.is_grad_enabled(), _signature(args), _signature(tuple(kwargs.items()))


def _signature(values: Any) -> Any:
    return tuple(map(_signature_of, values))


def _signature_of(value: Any) -> Any:
    if type(value) in _FREQUENT:
        return value
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return value.shape, value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return _signature(value)
    if isinstance(value, _HARMLESS):
        return value
    raise TypeError(type(value))  # a storage, a generator: the cache must not keep it alive; a sparse tensor


def _infer(func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    if info.opaque or info.name in _DATA_DEPENDENT:
        return 0
    with torch._C._DisableTorchDispatch():  # modes below ours must not see it
        return _infer_unseen(func, info, args, kwargs)


def like(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``func`` would give, on the meta device."""
    with torch._C._DisableTorchDispatch():
        return func(*pytree.tree_map(_to_meta, args), **pytree.tree_map(_to_meta, kwargs))


def _infer_unseen(func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    try:
        meta_args, meta_kwargs = pytree.tree_map(_to_meta, (args, kwargs))
        if any(argument.name == "device" for argument in func._schema.arguments[len(args) :]):
            meta_kwargs["device"] = torch.device("meta")
        elif not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((args, kwargs))):
            return 0  # it would run in earnest
        results = sized(func, info, meta_args, meta_kwargs)
        given = {id(storage) for storage in _storages((meta_args, meta_kwargs))}
        return sum({id(s): storage_nbytes(s) for s in _storages(results) if id(s) not in given}.values())
    except Exception:  # no meta kernel, sparse, generators, ...: make room reactively
        return 0


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, torch.device):
        return torch.device("meta")
    return None if isinstance(value, torch.Generator) else value
