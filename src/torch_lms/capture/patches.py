"""Replaces functions of PyTorch's while a session is on, so that nobody can tell (N11)."""

from collections.abc import Callable
from functools import partial, update_wrapper
from importlib import import_module
from types import MethodType, ModuleType
from typing import Any

import torch
from torch.jit._builtins import _find_builtin, _get_builtin_table, _register_builtin

from torch_lms.import_hooks import once_imported

DYNAMO_RULES = "torch._dynamo.trace_rules"
"""The module in which Dynamo, the compiler's front end, keeps what it may look into."""

Call = Callable[..., Any]
Around = Callable[[Call, tuple[Any, ...], dict[str, Any]], Any]
"""Is given the original function and its arguments, and calls it."""

_has_torch_function = torch._C._has_torch_function
_skip_one_hop: Callable[..., Any] | None = getattr(torch._C, "_skip_one_hop_torch_function", None)


class Patched:
    """A function of PyTorch's with something done around it.

    It equals the function and has its hash: tables that PyTorch, or a subclass of Tensor, made of functions still find
    it, the compiler's among them. It keeps the protocol of ``__torch_function__``: what is done around the function
    uses up none of the hops that ``torch.overrides.redispatch_function`` skips.

    Who still holds it when it is put back calls the function, or what the session of that time has put in its place.
    """

    __wrapped__: Call

    def __init__(self, owner: Any, name: str, original: Call, around: Around) -> None:
        self._owner = owner
        self._name = name
        self._original = original
        self._around = around
        self._asks = owner is torch.Tensor and name not in _ASKS_NOBODY
        self._is_over = False
        update_wrapper(self, original)

    def retire(self) -> None:
        """It has been put back."""
        self._is_over = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        original = self._original
        if self._is_over:
            now = getattr(self._owner, self._name, original)
            is_another = isinstance(now, Patched) and now == self and not now._is_over
            return (now if is_another else original)(*args, **kwargs)
        if not self._asks or not (torch._C._len_torch_function_stack() or any(map(_is_asked, args))):
            return self._around(original, args, kwargs)
        if _has_torch_function(args) or _skip_one_hop is None:
            return self._around(original, args, kwargs)
        # Nobody is to be asked any more. If that is so for one hop only, the question above has used it up.
        skipping = _skip_one_hop
        return self._around(lambda *args, **kwargs: skipping(original, (), args, kwargs), args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __eq__(self, other: object) -> bool:
        return self is other or self._original == other

    def __hash__(self) -> int:
        return hash(self._original)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """As the original is pickled: a method by its class and name, a function by its name alone."""
        if isinstance(self._owner, type):
            return getattr, (self._owner, self._name)
        return self._name


_ASKS_NOBODY = frozenset({"const_data_ptr"})
"""Methods of tensors that do what they do whatever a subclass says."""


def _is_asked(value: Any) -> bool:
    """Whether ``value`` has a say in what functions of PyTorch's do with it."""
    kind = type(value)
    return kind is not torch.Tensor and kind is not torch.nn.Parameter and hasattr(kind, "__torch_function__")


class Patches:
    """What was replaced, so that it can be put back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def around(self, owner: Any, name: str, around: Around) -> None:
        """Do ``around`` at each call of ``owner.name``; nothing where there is none: some are younger than 2.11."""
        original = getattr(owner, name, None)
        if original is None:
            return
        patched = self.patched(owner, name, original, around)
        self.replace(owner, name, patched)
        if isinstance(owner, ModuleType):  # compilers know methods by their names
            self._allow_in_graphs(patched)
            self._allow_in_scripts(patched, original)

    def patched(self, owner: Any, name: str, original: Call, around: Around) -> Patched:
        """``original``, which stands at ``owner.name``, with ``around`` done until all is undone."""
        patched = Patched(owner, name, original, around)
        self.later(patched.retire)
        return patched

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name``."""
        if name in vars(owner):
            self.later(partial(setattr, owner, name, vars(owner)[name]))
        else:
            self.later(partial(delattr, owner, name))
        setattr(owner, name, value)

    def later(self, undo: Callable[[], None]) -> None:
        """Do ``undo``, too, when all is undone."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Put everything back as it was, the last first."""
        while self._undo:
            self._undo.pop()()

    def _allow_in_graphs(self, function: Callable[..., Any]) -> None:
        """Have Dynamo take ``function`` into its graphs as it stands, as soon as there can be any.

        Dynamo knows functions by their ids, which are used again: so this is undone with the rest.
        """

        def allow() -> None:
            allowed = import_module(DYNAMO_RULES)._allowed_callable_ids
            allowed.add(id(function))
            self.later(partial(allowed.remove, id(function)))

        self.later(once_imported(DYNAMO_RULES, allow))

    def _allow_in_scripts(self, function: Callable[..., Any], original: Callable[..., Any]) -> None:
        """Have TorchScript take ``function`` for the operator that ``original`` is: its table is of ids, too."""
        operator = _find_builtin(original)
        if operator is not None:
            _register_builtin(function, operator)
            self.later(partial(_get_builtin_table().pop, id(function)))
