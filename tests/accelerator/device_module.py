"""What PyTorch calls the module of a device, as ``torch.cuda`` is CUDA's: for the test accelerator."""

import sys
from types import SimpleNamespace
from typing import Any

import torch

NAME = "testacc"
CAPACITY = 4 << 30
"""Bytes of each device, unless it is told another."""

_native: Any = None
"""The compiled part; set by ``install``."""

_wholes: dict[int, int] = {}
_fractions: dict[int, float] = {}
_taken: dict[int, int] = {}

default_generators: tuple[torch.Generator, ...] = ()
Stream: Any
Event: Any


def _index(device: Any = None) -> int:
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return current_device() if index is None else index


# -- devices and streams -----------------------------------------------------------------------------------------------


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    return int(_native.device_count())


def current_device() -> int:
    return int(_native.current_device())


def set_device(device: Any) -> None:
    _native.set_device(_index(device))


class device:  # as torch.cuda names it
    """Inside, this is the current device."""

    def __init__(self, device: Any) -> None:
        self._index = _index(device)

    def __enter__(self) -> None:
        self._before = current_device()
        set_device(self._index)

    def __exit__(self, *_: object) -> None:
        set_device(self._before)


def synchronize(device: Any = None) -> None:
    _native.synchronize(_index(device))


def current_stream(device: Any = None) -> torch.Stream:
    return torch.accelerator.current_stream(torch.device(NAME, _index(device)))


class stream:  # as torch.cuda names it
    """Inside, work is queued on this stream. One object for each block, as CUDA has it: blocks can be nested."""

    def __init__(self, chosen: torch.Stream) -> None:
        self._chosen = chosen

    def __enter__(self) -> None:
        self._device = current_device()
        self._before = torch.accelerator.current_stream(self._chosen.device)
        torch.accelerator.set_stream(self._chosen)

    def __exit__(self, *_: object) -> None:
        torch.accelerator.set_stream(self._before)
        set_device(self._device)


def get_device_properties(device: Any = None) -> SimpleNamespace:
    return SimpleNamespace(name=f"test accelerator {_index(device)}", total_memory=mem_get_info(device)[1])


def get_device_name(device: Any = None) -> str:
    return str(get_device_properties(device).name)


# -- memory ------------------------------------------------------------------------------------------------------------


def _figure(name: str, device: Any) -> int:
    return int(_native.memory_figures(_index(device))[name])


def memory_allocated(device: Any = None) -> int:
    return _figure("allocated", device)


def max_memory_allocated(device: Any = None) -> int:
    return _figure("peak_allocated", device)


def memory_reserved(device: Any = None) -> int:
    return _figure("reserved", device)


def max_memory_reserved(device: Any = None) -> int:
    return _figure("peak_reserved", device)


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    counts = {"current": "allocated", "peak": "peak_allocated", "freed": "freed"}
    return {"allocated_bytes": {"all": {name: _figure(figure, device) for name, figure in counts.items()}}}


def reset_peak_memory_stats(device: Any = None) -> None:
    _native.reset_peaks(_index(device))


def empty_cache() -> None:
    _native.empty_cache()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    index = _index(device)
    whole = _wholes.get(index, CAPACITY)
    return max(0, whole - _taken.get(index, 0) - memory_reserved(index)), whole


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    index = _index(device)
    _fractions[index] = fraction
    whole = _wholes.get(index, CAPACITY)
    _native.set_capacity(index, max(0, min(int(whole * fraction), whole - _taken.get(index, 0))))


def get_per_process_memory_fraction(device: Any = None) -> float:
    return _fractions.get(_index(device), 1.0)


# -- random numbers ----------------------------------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    default_generators[current_device()].manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    for generator in default_generators:
        generator.manual_seed(seed)


def get_rng_state(device: Any = None) -> torch.Tensor:
    return default_generators[_index(device)].get_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    default_generators[_index(device)].set_state(state)


# -- autocast ----------------------------------------------------------------------------------------------------------


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


# -- of this device alone ----------------------------------------------------------------------------------------------


def schedule(pace: str, seed: int = 0) -> None:
    """When streams do what they are asked.

    Args:
        pace: "eager", "delayed" (after random pauses), "lazy" (once somebody waits), or "mixed" (by stream).
        seed: of pauses and of what each stream draws.
    """
    _native.schedule(pace, seed)


def set_poison_at_free(is_on: bool) -> None:
    """Whether memory is poisoned when it is freed, and not only when it is handed out again.

    Off for programs that let go of memory which another stream still uses, and have its own wait before they allocate
    there again.
    """
    _native.set_poison_at_free(is_on)


def watch_races(watches: bool) -> None:
    """Look for uses of the same memory that no wait puts in order, from now on or not any more."""
    _native.watch_races(watches)


def take_races() -> list[str]:
    """Those that were found since this was last asked, whatever came of them."""
    return list(_native.take_races())


def take_calls() -> dict[str, int]:
    """How often events were recorded, waited for, queried or asked for times, since this was last asked."""
    return dict(_native.take_calls())


def register_host(address: int, nbytes: int) -> bool:
    """Page-lock memory of the host, as ``cudaHostRegister`` does; False if some of it is page-locked already."""
    return bool(_native.register_host(address, nbytes))


def unregister_host(address: int) -> None:
    """Undo ``register_host``. As on CUDA nothing waits for copies: whoever unmaps the memory under one is lost."""
    _native.unregister_host(address)


def set_capacity(nbytes: int, device: Any = None) -> None:
    """The device has ``nbytes`` of memory from now on, and nobody else uses it."""
    _wholes[_index(device)] = nbytes
    _taken[_index(device)] = 0
    set_per_process_memory_fraction(1.0, device)


def set_taken(nbytes: int, device: Any = None) -> None:
    """Other processes have ``nbytes`` of the device's memory from now on."""
    _taken[_index(device)] = nbytes
    set_per_process_memory_fraction(get_per_process_memory_fraction(device), device)


def install(native: Any) -> None:
    """Have PyTorch know the device."""
    global _native, default_generators, Stream, Event
    _native = native
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend(unsupported_dtype=[torch.quint8])
    default_generators = tuple(native.default_generator(index) for index in range(device_count()))

    def new_stream(device: Any = None, priority: int = 0) -> torch.Stream:
        return torch.Stream(torch.device(NAME, _index(device)), priority=priority)

    def new_event(enable_timing: bool = False, **_: Any) -> torch.Event:
        return torch.Event(NAME, enable_timing=enable_timing)

    Stream, Event = new_stream, new_event
