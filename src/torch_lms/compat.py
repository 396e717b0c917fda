"""IBM's PyTorch Large Model Support, by its own names: ``import torch_lms.compat`` puts them on ``torch.cuda``.

    import torch, torch_lms.compat

    torch.cuda.set_enabled_lms(True)
    torch.cuda.set_limit_lms(11 << 30)

The names mean what they meant in PyTorch LMS 1.1 (2019): a soft limit for each device, 0 unless it is set, which moves
everything not in use. ``torch_lms.enable(limit="auto")`` moves nothing until it must: prefer it in new programs. On a
machine without CUDA the same calls page the CPU to disk. The statistics of 1.1 are functions, those of 1.4 are keys of
``torch.cuda.memory_stats()``; both are made from ours, and each says below how it is derived and what differs.

A session that is on already, because ``torch_lms.enable()`` or ``torch-lms run`` started it, is taken as it is:
enabling it again changes nothing, and ``set_limit_lms`` and ``set_size_lms`` change its settings from then on, unless
``torch-lms run`` was given them: then the command line counts, and the ``get_`` functions say so.
"""

import operator
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from torch_lms.errors import UsageError
from torch_lms.runtime import api
from torch_lms.runtime.backend import DeviceBackend

Device = torch.device | str | int | None
"""As PyTorch's own statistics take it: an index, a device or its name; None is the current one. Without CUDA all of
them mean whatever LMS pages there: the CPU."""

_MAX_BYTES = 1 << 60


@dataclass(slots=True)
class _Settings:
    """What was set, for the sessions that ``set_enabled_lms`` starts."""

    limit: int = 0
    size: int = 1 << 20


_settings = _Settings()

# -- settings --------------------------------------------------------------------------------------------------------


def set_enabled_lms(enable: bool) -> None:
    """Turn LMS on or off. Doing so twice is no error.

    On: with the limit and size set here. IBM's managed only tensors made afterwards; ours manages those that are there,
    too. Off: everything comes back to the device first; IBM's left it where it was.

    Raises:
        UsageError: ``enable`` is no bool, or LMS cannot be turned on here (see ``torch_lms.enable``).
        RuntimeError: turned off, and not everything fits on the device. Nothing is lost, and LMS stays on.
    """
    if not isinstance(enable, bool):
        raise UsageError(f"set_enabled_lms takes True or False; got {enable!r}")
    if enable and not api.is_enabled():
        api.enable(limit=_settings.limit, min_size=_settings.size)
    elif not enable and api.is_enabled():
        with _backends() as backends:
            ended = {backend.device: _counts(backend) for backend in backends}
        api.disable()
        for device, counts in ended.items():
            _past[device].update(counts)


def get_enabled_lms() -> bool:
    """Whether LMS is on, whoever turned it on."""
    return api.is_enabled()


def set_limit_lms(limit: int) -> None:
    """Tensors may occupy ``limit`` bytes of each device; 0, the default, moves everything not in use.

    Soft, as in PyTorch LMS 1.1: the operation that runs may exceed it. While LMS is on it holds from now: what exceeds
    it leaves at once, where IBM's waited for the next allocation. IBM's counted every block of the allocator, ours
    counts tensors of at least the size set. (In 1.4 the limit was hard, and 0 stood for nearly all of the device.)

    Raises:
        UsageError: not a whole number of bytes, or one that no device has.
    """
    _settings.limit = _nbytes("set_limit_lms", limit)
    if (session := api.current_session()) is not None and not api.is_fixed("limit"):
        session.set_limit(_settings.limit)


def get_limit_lms() -> int:
    """The limit in force for a device, in bytes; while LMS is off, the one set."""
    session = api.current_session()
    if session is None:
        return _settings.limit
    if session.options.limit is not None:
        return session.options.limit
    with _backends() as backends:
        return backends[0].engine.pager.limit


def set_size_lms(size: int) -> None:
    """Tensors of at least ``size`` bytes are managed; the default is 1 MiB.

    While LMS is on, this counts for tensors first used from now on, as in PyTorch LMS 1.1. (In 1.4 it did nothing.)

    Raises:
        UsageError: not a whole number of bytes, or one that no device has.
    """
    _settings.size = _nbytes("set_size_lms", size)
    if (session := api.current_session()) is not None and not api.is_fixed("min_size"):
        session.set_min_size(_settings.size)


def get_size_lms() -> int:
    """The least size of what is managed, in bytes; while LMS is off, the one set."""
    session = api.current_session()
    return _settings.size if session is None else session.min_size


def reclaim_inactive() -> None:
    """Move everything not in use off all devices, now. Does nothing while LMS is off."""
    if api.is_enabled():
        api.reclaim()


# -- statistics of 1.1 -----------------------------------------------------------------------------------------------


def memory_active(device: Device = None) -> int:
    """Bytes of ``device`` that could not be moved away now: in use by an operation, or not managed.

    From ours: what is allocated, less the pages that ``reclaim_inactive`` would move. Allocated is what the caching
    allocator says, without CUDA our own count, which knows managed tensors only. LMS off: all that is allocated.
    """
    return _pinned(_device(device)).nbytes


def max_memory_active(device: Device = None) -> int:
    """An upper bound of the most there has been of ``memory_active`` since the last reset, in bytes.

    From ours: the most that was allocated; without CUDA, the most that was resident in the session that is on. What
    could have been moved at each moment is not followed; with a limit of 0 that is next to nothing.
    """
    return _pinned(_device(device)).peak_nbytes


def reset_max_memory_active(device: Device = None) -> None:
    """Start ``max_memory_active`` anew, and what it is made of.

    That is ``torch.cuda.max_memory_allocated`` and ``torch_lms.stats().peak_resident_bytes``.
    """
    where = _device(device)
    _reset_our_peaks(where)
    if where.type == "cuda":
        _stock_reset_peak(where)


def memory_reclaimed(device: Device = None) -> int:
    """Bytes copied from ``device`` to a lower tier since the last reset, sessions turned off meanwhile included.

    From ours: ``evicted_bytes``. A page that still had a valid copy below left without being copied and is not counted
    (``clean_drops``); IBM's copied it again.
    """
    return _counted(_device(device))["reclaimed_bytes"]


def reset_memory_reclaimed(device: Device = None) -> None:
    """Start ``memory_reclaimed`` anew, with it ``evicted_bytes`` and ``evictions`` of ``torch_lms.stats()``."""
    _forget(_device(device), ("reclaimed", "reclaimed_bytes"))


def alloc_distribution(device: Device = None) -> "OrderedDict[str, int]":
    """How room was found, in counts since the last reset, by IBM's seven names of 1.1.

    IBM's counted allocations, ours counts operations; one that only makes tensors counts once memory is short. From
    ``torch_lms.stats().allocations``:

    - ``freelist``, ``cudamalloc``: room was simply there. We do not see whether the caching allocator had a block or
      asked the driver, and count all of them as ``freelist``; without CUDA, as ``cudamalloc``.
    - ``reclaim_one``: one page had to leave.
    - ``reclaim_fragments``: several had to; IBM's meant those that lay side by side.
    - ``reclaim_all``: every page that could leave left.
    - ``cudamalloc_over_limit``: always 0. We exceed the limit only when nothing is left to move: ``reclaim_all``.
    - ``cudamalloc_purge``: memory ran out all the same, everything was freed, and the operation ran again.
    """
    names = ("freelist", "cudamalloc", "reclaim_one", "reclaim_fragments", "cudamalloc_over_limit", "reclaim_all")
    counted = _distribution(_device(device))
    return OrderedDict([*((name, counted[name]) for name in names), ("cudamalloc_purge", counted["retry"])])


def reset_alloc_distribution(device: Device = None) -> None:
    """Start ``alloc_distribution`` anew, with it ``torch_lms.stats().allocations`` and ``recoveries``."""
    _forget(_device(device), ("free", "one", "some", "all", "retry"))


# -- statistics of 1.4 -----------------------------------------------------------------------------------------------

_stock_nested: Callable[..., dict[str, Any]] = torch.cuda.memory.memory_stats_as_nested_dict
_stock_reset_peak: Callable[..., None] = torch.cuda.memory.reset_peak_memory_stats
_stock_reset_accumulated: Callable[..., None] = torch.cuda.memory.reset_accumulated_memory_stats


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """PyTorch's statistics of ``device`` and, beside them, IBM's of PyTorch LMS 1.4. ``torch.cuda.memory_stats()`` has
    the same, flat.

    - ``pinned_bytes.all.current``, ``pinned.all.current``: bytes and blocks that could not be moved now, as
      ``memory_active``. A block is an allocation, without CUDA a managed tensor. Pools are not told apart.
    - ``pinned_bytes.all.peak``: an upper bound, as ``max_memory_active``.
    - ``reclaimed_bytes``, ``reclaimed``: copied to a lower tier, and in how many pieces, as ``memory_reclaimed``. A
      piece is a tensor's storage, where IBM's was a block.
    - ``alloc_distribution``: as the function of that name, but without ``cudamalloc_over_limit``, and with
      ``cudamalloc_retry`` for ``cudamalloc_purge``.

    ``reset_accumulated_memory_stats`` resets ``reclaimed``, ``reclaimed_bytes`` and ``alloc_distribution``, and
    ``reset_peak_memory_stats`` the peak. Without CUDA these two reset ours alone, where PyTorch's raise.
    """
    if torch.cuda.is_available() and not torch.cuda.is_initialized():
        return _stock_nested(device)  # asking for the current device would initialize it
    where = _device(device)
    pinned, counted, distribution = _pinned(where), _counted(where), _distribution(where)
    names = ("freelist", "cudamalloc", "reclaim_one", "reclaim_fragments", "reclaim_all")
    return {
        **(_stock_nested(where) if where.type == "cuda" else {}),
        "pinned": {"all": {"current": pinned.blocks}},
        "pinned_bytes": {"all": {"current": pinned.nbytes, "peak": pinned.peak_nbytes}},
        "reclaimed": counted["reclaimed"],
        "reclaimed_bytes": counted["reclaimed_bytes"],
        "alloc_distribution": {
            **{name: distribution[name] for name in names},
            "cudamalloc_retry": distribution["retry"],
        },
    }


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """PyTorch's, and IBM's ``reclaimed``, ``reclaimed_bytes`` and ``alloc_distribution``."""
    where = _device(device)
    _forget(where, tuple(_WHERE))
    if where.type == "cuda":
        _stock_reset_accumulated(where)


def reset_peak_memory_stats(device: Device = None) -> None:
    """PyTorch's, and IBM's ``pinned_bytes.all.peak``."""
    reset_max_memory_active(device)


# -- from ours to theirs ---------------------------------------------------------------------------------------------

_WHERE = {
    "reclaimed": "evictions",
    "reclaimed_bytes": "evicted_bytes",
    "free": "room_from_free",
    "one": "room_from_one",
    "some": "room_from_some",
    "all": "room_from_all",
    "retry": "recoveries",
}
"""Our names of what accumulates."""

_past: defaultdict[torch.device, Counter[str]] = defaultdict(Counter)
"""What accumulated in the sessions that ``set_enabled_lms(False)`` ended: IBM's figures outlived that."""


@dataclass(frozen=True, slots=True)
class _Pinned:
    """What could not be moved: IBM's word. Not page-locked host memory."""

    blocks: int
    nbytes: int
    peak_nbytes: int


def _nbytes(function: str, value: object) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        nbytes = operator.index(value)  # type: ignore[arg-type]  # whatever it is, it says so itself
    except TypeError:
        raise UsageError(f"{function} takes a whole number of bytes, such as {11 << 30}; got {value!r}") from None
    if not 0 <= nbytes <= _MAX_BYTES:
        raise UsageError(f"{function} takes bytes, at least 0 and no more than a device can have; got {value!r}")
    return nbytes


def _device(device: Device) -> torch.device:
    try:
        given = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
    except (RuntimeError, TypeError) as error:
        raise UsageError(
            f"device must be an index, a torch.device or a name such as 'cuda:0'; got {device!r}"
        ) from error
    if given.type == "cuda" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device() if given.index is None else given.index)
    other = torch.accelerator.current_accelerator(check_available=True)
    if other is None or given.type == "cpu":
        return torch.device("cpu")
    return torch.device(other.type, torch.accelerator.current_device_index())


@contextmanager
def _backends(device: torch.device | None = None) -> Iterator[list[DeviceBackend]]:
    """Of the session that is on, standing still: those of ``device``, or all."""
    session = api.current_session()
    if session is None:
        yield []
    else:
        with session.standing_still() as backends:
            yield [backend for backend in backends if device is None or backend.device == device]


def _counts(backend: DeviceBackend) -> Counter[str]:
    counters = backend.engine.pager.counters
    return Counter(
        {ours: getattr(backend.engine if ours == "retry" else counters, name) for ours, name in _WHERE.items()}
    )


def _counted(device: torch.device) -> Counter[str]:
    """What accumulated on ``device``."""
    total = Counter(_past[device])
    with _backends(device) as backends:
        for backend in backends:
            total.update(_counts(backend))
    return total


def _forget(device: torch.device, names: tuple[str, ...]) -> None:
    for name in names:
        _past[device][name] = 0
    with _backends(device) as backends:
        for backend in backends:
            for name in names:
                setattr(backend.engine if name == "retry" else backend.engine.pager.counters, _WHERE[name], 0)


def _distribution(device: torch.device) -> Counter[str]:
    """Counts by IBM's names of 1.4, but "retry"."""
    counted = _counted(device)
    return Counter(
        {
            "cudamalloc" if device.type == "cpu" else "freelist": counted["free"],
            "reclaim_one": counted["one"],
            "reclaim_fragments": counted["some"],
            "reclaim_all": counted["all"],
            "retry": counted["retry"],
        }
    )


def _pinned(device: torch.device) -> _Pinned:
    with _backends(device) as backends:
        views = [backend.engine.pager.view for backend in backends]
        idle = [page.nbytes for view in views for page in (*view.clean.values(), *view.dirty.values())]
        if device.type == "cuda":
            blocks, allocated, peak = _allocated(device)
        else:
            books = [backend.engine.pager.book for backend in backends]
            resident = [page.nbytes for book in books for page in book if page.state.on_device]
            blocks, allocated = len(resident), sum(resident)
            peak = sum(book.ledger.peak_device for book in books)
    return _Pinned(blocks - len(idle), allocated - sum(idle), peak)


def _allocated(device: torch.device) -> tuple[int, int, int]:
    """Blocks, bytes and most bytes that PyTorch's allocator has given out; 0 before the device was first used."""
    stock = _stock_nested(device)
    if not stock:
        return 0, 0, 0
    allocated = stock["allocated_bytes"]["all"]
    return stock["allocation"]["all"]["current"], allocated["current"], allocated["peak"]


def _reset_our_peaks(device: torch.device) -> None:
    with _backends(device) as backends:
        for backend in backends:
            backend.engine.pager.book.reset_peak_device()


_NAMES: tuple[Callable[..., Any], ...] = (
    set_enabled_lms,
    get_enabled_lms,
    set_limit_lms,
    get_limit_lms,
    set_size_lms,
    get_size_lms,
    reclaim_inactive,
    memory_active,
    max_memory_active,
    reset_max_memory_active,
    memory_reclaimed,
    reset_memory_reclaimed,
    alloc_distribution,
    reset_alloc_distribution,
    memory_stats_as_nested_dict,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)

for _function in _NAMES:
    setattr(torch.cuda, _function.__name__, _function)
# `torch.cuda.memory_stats` makes its flat dictionary of what it finds under this name.
torch.cuda.memory.memory_stats_as_nested_dict = memory_stats_as_nested_dict
