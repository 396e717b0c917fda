"""Whether a cut gives the same bits: tried on this machine, before it is used for the first time (N27)."""

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from torch_lms.capture.pieces.call import called, tensors_of
from torch_lms.capture.tensors import misalignment, span

Pieces = Callable[[dict[str, Any]], list[Any]]
"""Runs a call in pieces, on given arguments, and returns whole results."""

_MAX_KNOWN = 10_000
"""Verdicts that are remembered: a program whose shapes never repeat must not grow."""

_LAYOUT = 3
"""Of how pieces and results lie in memory, on which bits depend: verdicts on another count for nothing."""

_SEED = 20_261_125
_PERIOD = 1_048_583
"""Numbers that are drawn, of which long arguments are made: a prime, so that no two rows are alike."""

_COMPARED = 64
"""So many elements at least of each result."""

_MANY = 1 << 16
"""So many, if that does not take too long: where kernels treat a few elements in another way, few of these differ."""

_DRAWS = 3
"""So many draws, likewise."""

_MAX_TRIES = 64
_MAX_ELEMENTS = 1 << 27
"""Of all arguments that are drawn for that: what would take longer is not proved."""

_TRIED = 1 << 13
"""Elements on which it is tried whether the bits of an element depend on its place."""

_LENGTHS = (13, 1001)
"""Of the pieces that these are tried in: no multiples of any vector's. Most elements of a short one are left over."""

_WIDTH, _COLUMNS = 13, (2, 77)
"""The same of tensors that are not contiguous: columns of so many elements, and so many columns."""

_SINGLE = 128
"""How many are tried each by itself."""

_SPECIAL = (0.0, -0.0, 1.0, -1.0, 1e-38, 1e-45, 1e30, -1e30, math.inf, -math.inf)
"""Among the numbers that are tried."""

ALIGNED = 64
"""Elements. Kernels treat that many at once, or fewer, and what is left in another way."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers of so many bytes."""

_GRAIN = 32_768
"""Elements from which on PyTorch's kernels for single elements use more threads."""


class Proofs:
    """What has been tried, and how it ended. Remembered in a file, by machine and PyTorch: a line for each verdict, so
    that processes may write it at the same time. Each ends the line before, which may not have been written to its end.

    Args:
        path: of the file; None to remember nothing after the process.
        are_needed: whether nothing runs in pieces without.
    """

    def __init__(self, path: Path | None, are_needed: bool = True) -> None:
        self.are_needed = are_needed
        self._path = path

    @cached_property
    def _known(self) -> dict[str, bool]:
        """Read when it is first asked for: most programs never need it."""
        known: dict[str, bool] = {}
        lines: list[str] = []
        if self._path is not None:
            with suppress(OSError, ValueError):
                lines = self._path.read_text().splitlines()
        for line in lines[-_MAX_KNOWN:]:
            with suppress(ValueError, TypeError):  # not written to its end
                key, holds = json.loads(line)
                known[str(key)] = holds is True
        if len(lines) > 2 * _MAX_KNOWN:
            self._write(known, "w")
        return known

    def known(self, key: str) -> bool | None:
        """The verdict on ``key``; None if it was never tried."""
        return self._known.get(key)

    def remember(self, key: str, holds: bool) -> None:
        """The verdict on ``key``."""
        self._known[key] = holds
        if len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._write({key: holds}, "a")

    def _write(self, known: Mapping[str, bool], mode: str) -> None:
        if self._path is None:
            return
        lines = "".join(f"\n{json.dumps(verdict)}" for verdict in known.items())
        with suppress(OSError):  # another run has to try once more
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open(mode) as file:
                file.write(lines)


def signature(func: Any, given: Mapping[str, Any]) -> str:
    """Of a call: operator, shapes, strides and types of its arguments, values of others, and where it runs."""
    told = [str(func)]
    device = torch.device("cpu")
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            device = value.device
            begin = f"+{offset}" if (offset := misalignment(value)) else ""
            told.append(f"{name}={tuple(value.shape)}{tuple(value.stride())}{begin}{value.dtype}")
        else:
            told.append(f"{name}={value!r}")
    return " ".join((*told, *place(device)))


def place(device: torch.device) -> tuple[str, ...]:
    """What else the bits may depend on."""
    kind = device.type
    settings = (torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision())
    if kind == "cpu":
        where = f"{torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()} threads"
    else:
        module = torch.get_device_module(kind)
        cudnn = torch.backends.cudnn
        where = f"{module.get_device_name()} {cudnn.allow_tf32} {cudnn.benchmark} {cudnn.deterministic}"
    return torch.__version__, where, *map(str, (*settings, _LAYOUT))


def gives_the_same(func: Any, given: Mapping[str, Any], in_pieces: Pieces) -> bool:
    """Whether on random numbers, of the shapes in ``given``, a call as a whole gives the bits that its pieces give.

    A few sums, or what vectors leave over, may be equal by chance: results are compared several times.
    """
    elements = sum(tensor.numel() for _, tensor in tensors_of(given))
    compared = 0
    for number in range(_MAX_TRIES):
        tried = random_like(given, number)
        whole = called(func, _copies(tried) if func._schema.is_mutable else tried)
        pieces = in_pieces(tried)
        if not all(
            is_same(one, other) and _is_laid_out_alike(one, other) for one, other in zip(whole, pieces, strict=True)
        ):
            return False
        smallest = min((result.numel() for result in whole if is_drawn(result) and result.numel()), default=_COMPARED)
        compared += smallest
        if compared >= _MANY and number + 1 >= _DRAWS:
            return True
        if elements * (number + 2) > _MAX_ELEMENTS:
            break
    return compared >= _COMPARED


def _copies(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in given.items()}


def random_like(given: Mapping[str, Any], number: int = 0) -> dict[str, Any]:
    """Arguments of the same shapes, with numbers that are drawn anew, but for whole ones, which are kept.

    Args:
        number: of the draw.
    """
    values = enumerate(given.items(), len(given) * number)
    return {name: _random(value, place) if is_drawn(value) else value for place, (name, value) in values}


def is_drawn(value: Any) -> bool:
    """Whether a proof draws numbers in place of it: indices and masks are used as they are."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _random(like: torch.Tensor, place: int) -> torch.Tensor:
    """In memory as ``like`` is. Vectors are positive: some are variances."""
    generator = torch.Generator(like.device)
    generator.manual_seed(_SEED + place)
    begin = misalignment(like)
    memory = torch.empty(begin + (span(like) if like.numel() else 0), dtype=like.dtype, device=like.device)
    drawn = memory[:_PERIOD].normal_(generator=generator)
    for part in memory[_PERIOD:].split(_PERIOD):
        part.copy_(drawn[: len(part)])
    if like.dim() <= 1 and not like.is_complex():
        memory.abs_().add_(0.125)
    return memory.as_strided(like.shape, like.stride(), begin)


def is_same(one: Any, other: Any) -> bool:
    """Whether two results have the same bits. What is no number is that in both, whatever else its bits say."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return one is other or one == other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bits = _BITS.get(one.dtype.itemsize)
    if bits is None:  # a complex number
        one, other, bits = torch.view_as_real(one), torch.view_as_real(other), _BITS[one.dtype.itemsize // 2]
    same = one.view(bits) == other.view(bits)
    if one.is_floating_point() and not same.all():
        same |= one.isnan() & other.isnan()
    return bool(same.all())


def _is_laid_out_alike(one: Any, other: Any) -> bool:
    return not isinstance(one, torch.Tensor) or one.stride() == other.stride()


# -- single elements -------------------------------------------------------------------------------------------------


def is_free_of_place(func: Any, given: Mapping[str, Any]) -> bool:
    """Whether each element of a result depends on nothing but the elements at its place, wherever that is."""
    tried = _elements(given)
    whole = _called(func, given, tried, 0, _TRIED)
    return all(_are_parts(whole, func, given, tried, length, _TRIED) for length in _LENGTHS)


def is_free_of_place_in_columns(func: Any, given: Mapping[str, Any]) -> bool:
    """The same of tensors that are without gaps and not contiguous, all with the same strides."""
    end = _TRIED // _WIDTH
    tried = {name: tensor[: end * _WIDTH].view(end, _WIDTH) for name, tensor in _elements(given).items()}
    whole = _called(func, given, tried, 0, end, are_columns=True)
    return all(_are_parts(whole, func, given, tried, length, end, are_columns=True) for length in _COLUMNS)


def is_free_of_layout(func: Any, given: Mapping[str, Any]) -> bool:
    """Whether single elements, and tensors that are not contiguous, give the same: for these PyTorch leaves oneDNN."""
    tried = _elements(given)
    whole = _called(func, given, tried, 0, _TRIED)
    if not _are_parts(whole, func, given, tried, 1, _SINGLE):
        return False
    turned = called(func, {**given, **{name: _turned(tensor) for name, tensor in tried.items()}})
    return all(is_same(_turned(one), other) for one, other in zip(whole, turned, strict=True))


def _are_parts(
    whole: list[Any],
    func: Any,
    given: Mapping[str, Any],
    tried: dict[str, Any],
    length: int,
    end: int,
    are_columns: bool = False,
) -> bool:
    """Whether pieces of ``length``, up to ``end``, give what is there in ``whole``."""
    for first in range(0, end, length):
        last = min(end, first + length)
        pieces = _called(func, given, tried, first, last, are_columns)
        if not all(is_same(one[first:last], other) for one, other in zip(whole, pieces, strict=True)):
            return False
    return True


def _turned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_SINGLE, -1).t()


def _elements(given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Elements of the types of the tensors in ``given``, special ones among them."""
    generator = torch.Generator().manual_seed(_SEED)
    tried: dict[str, torch.Tensor] = {}
    for name, tensor in tensors_of(given):
        dtype = tensor.dtype if tensor.is_complex() else torch.float32
        values = torch.randn(_TRIED, generator=generator, dtype=dtype) * 3
        tried[name] = values.to(tensor.device).to(tensor.dtype)
        tried[name][: len(_SPECIAL) ** 2] = _special(len(tried)).to(tensor.dtype)
    return tried


def _special(argument: int) -> torch.Tensor:
    """Special numbers for the first or second argument, so that each meets each."""
    values = torch.tensor(_SPECIAL)
    return values.repeat(len(_SPECIAL)) if argument % 2 else values.repeat_interleave(len(_SPECIAL))


def _called(
    func: Any, given: Mapping[str, Any], tried: dict[str, Any], first: int, last: int, are_columns: bool = False
) -> list[Any]:
    """``are_columns``: rows are columns in the call, so that what it is given is not contiguous."""
    slabs = {name: tensor[first:last].clone() for name, tensor in tried.items()}
    if are_columns:
        slabs = {name: slab.t() for name, slab in slabs.items()}
    results = called(func, {**given, **slabs})
    return [result.t() for result in results] if are_columns else results


def is_aligned(elements: int, is_last: bool = False) -> bool:
    """Whether kernels for single elements treat a tensor of so many in full vectors alone, on every thread.

    Args:
        elements: how many.
        is_last: whether there may be some left over, at the end.
    """
    threads = min(torch.get_num_threads(), -(-elements // _GRAIN))
    are_full = is_last or elements % ALIGNED == 0
    return are_full and (threads <= 1 or -(-elements // threads) % ALIGNED == 0)
