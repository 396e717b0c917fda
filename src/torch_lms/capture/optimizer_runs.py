"""A step of an optimizer in runs: all that belongs to some parameters is used, then what belongs to the next (N10)."""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from torch_lms.capture.split import RUNS
from torch_lms.capture.tensors import no_function_modes

Group = dict[str, Any]

_KNOWN = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam", "RMSprop"),
    *("Rprop", "SGD"),
)
"""Those of ``torch.optim`` that treat each parameter by itself. The others need all of them at once."""

_KEPT_WHILE = 2
"""Runs stay as they are while the limit has changed by no more than this factor: each step is to be like the last."""


@dataclass(frozen=True, slots=True)
class _Runs:
    """Of one group. ``ends``: the positions of its parameters at which runs end. The rest: for what it was split."""

    nbytes: tuple[int, ...]
    limit: int
    ends: tuple[int, ...]

    def fit(self, nbytes: tuple[int, ...], limit: int) -> bool:
        """Whether they can stay."""
        low, high = sorted((limit, self.limit))
        return nbytes == self.nbytes and high <= low * _KEPT_WHILE


class OptimizerRuns:
    """Has steps of optimizers go run by run over their parameters.

    An operation on lists of tensors, as ``foreach`` and ``fused`` optimizers have them, uses those of all parameters. A
    step is a dozen of them, so each of them would bring in all that the one before has just sent out. In runs, all
    that belongs to a parameter is used once, and then its turn is over. The numbers are the same: no parameter's
    depend on those of another.

    Args:
        limit_of: the limit of a device in bytes; None if nothing is paged there, or nothing would be in a step.
    """

    def __init__(self, limit_of: Callable[[torch.device], int | None]) -> None:
        self._limit_of = limit_of
        self._runs: weakref.WeakKeyDictionary[Optimizer, dict[int, _Runs]] = weakref.WeakKeyDictionary()

    def split(self, optimizer: Optimizer) -> Optimizer:
        """What is to take the step in place of ``optimizer``.

        It is the optimizer itself, or one that shares its state and has the same parameters in more groups.
        """
        if torch.compiler.is_compiling() or _may_be_compiled() or not _is_known(optimizer):
            return optimizer
        known = self._runs.setdefault(optimizer, {})
        groups: list[Group] = []
        with no_function_modes():
            for number, group in enumerate(optimizer.param_groups):
                groups += self._parts(optimizer, group, known, number)
        if len(groups) == len(optimizer.param_groups):
            return optimizer
        other = object.__new__(type(optimizer))
        other.__dict__.update(optimizer.__dict__)
        other.param_groups = groups
        return other

    def _parts(self, optimizer: Optimizer, group: Group, known: dict[int, _Runs], number: int) -> Iterator[Group]:
        parameters = group["params"]
        limit = self._limit(group)
        if limit is None:
            yield group
            return
        nbytes = tuple(_nbytes(optimizer, parameter) for parameter in parameters)
        runs = known.get(number)
        if runs is None or not runs.fit(nbytes, limit):
            runs = known[number] = _Runs(nbytes, limit, tuple(_ends(nbytes, limit // RUNS)))
        for begin, end in pairwise((0, *runs.ends)):
            yield {**group, "params": parameters[begin:end]}

    def _limit(self, group: Group) -> int | None:
        """The limit that its parameters share; None if the group is to stay whole."""
        parameters = group["params"]
        if not parameters or group.get("differentiable"):
            return None
        limit = self._limit_of(parameters[0].device)
        if limit is None:
            return None
        # PyTorch chooses by all of them whether it uses lists: so all must be alike.
        if len({(type(p), p.device) for p in parameters}) > 1:
            return None
        if any(p.grad is not None and p.grad.is_sparse for p in parameters):
            return None
        return limit


def _may_be_compiled() -> bool:
    """Whether Dynamo looks at what the calling thread calls: it would compile the step of each other optimizer anew."""
    return callable(torch._C._dynamo.eval_frame.get_eval_frame_callback())


def _is_known(optimizer: Optimizer) -> bool:
    step = type(optimizer).step
    return any(step is getattr(torch.optim, name).step for name in _KNOWN if hasattr(torch.optim, name))


def _nbytes(optimizer: Optimizer, parameter: torch.Tensor) -> int:
    """Of all that belongs to ``parameter``."""
    nbytes = parameter.nbytes + (0 if parameter.grad is None else parameter.grad.nbytes)
    state = optimizer.state.get(parameter)
    if not state:
        return nbytes + 2 * parameter.nbytes  # to be made; so much at most
    return nbytes + sum(value.nbytes for value in state.values() if isinstance(value, torch.Tensor))


def _ends(nbytes: tuple[int, ...], most: int) -> Iterator[int]:
    """Where runs of at most ``most`` bytes end, or of one parameter."""
    held = 0
    for position, its in enumerate(nbytes):
        if held and held + its > most:
            yield position
            held = 0
        held += its
    yield len(nbytes)
