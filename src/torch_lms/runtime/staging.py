"""The way between a device and the disk: page-locked buffers, filled and emptied in turn."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import torch

from torch_lms.errors import StoreError
from torch_lms.runtime.device import Stream, StreamDevice
from torch_lms.runtime.executor import memory_of
from torch_lms.stores.base import Pending, Slot, Store

Wait = Callable[[], None]


class Staging:
    """Two page-locked buffers through which pages pass, a piece at a time.

    Args:
        device: the device.
        piece_bytes: size of a buffer, and the most that a slot given to ``down`` and ``up`` may have.
        waiting: calls a function that blocks the host, and keeps the time.
    """

    def __init__(self, device: StreamDevice, piece_bytes: int, waiting: Callable[[Wait], None]) -> None:
        self._device, self._waiting = device, waiting
        self._buffers = [device.page_lock(piece_bytes) for _ in range(2)]
        self._busy: list[Wait | None] = [None, None]
        self._turn = 0

    def down(self, source: torch.Tensor, slots: list[Slot], disk: Store, stream: Stream) -> list[Pending]:
        """Copy ``source`` into ``slots``. Its bytes are read when this returns; the writes may still be under way."""
        writes = []
        for slot, piece in _pieces(source, slots):
            number, buffer = self._next_buffer(slot.nbytes)
            self._device.copy(buffer, piece, stream)
            self._hold(number, partial(self._device.synchronize, self._device.record(stream)))
            writes.append(disk.write(slot, memory_of(buffer)))
            self._busy[number] = writes[-1].wait
        return writes

    def up(self, target: torch.Tensor, slots: list[Slot], disk: Store, stream: Stream) -> None:
        """Copy ``slots`` into ``target``. They are read when this returns; the copies may still be under way."""
        for slot, piece in _pieces(target, slots):
            number, buffer = self._next_buffer(slot.nbytes)
            self._hold(number, disk.read(slot, memory_of(buffer)).wait)
            self._device.copy(piece, buffer, stream)
            self._busy[number] = partial(self._device.synchronize, self._device.record(stream))

    def _next_buffer(self, nbytes: int) -> tuple[int, torch.Tensor]:
        number, self._turn = self._turn, 1 - self._turn
        busy = self._busy[number]
        if busy is not None:
            with suppress(StoreError):  # told to whoever waits for that write
                self._waiting(busy)
        return number, self._buffers[number][:nbytes]

    def _hold(self, number: int, wait: Wait) -> None:
        """Wait; the buffer stays busy if an interrupt cuts that short."""
        self._busy[number] = wait
        self._waiting(wait)


def _pieces(tensor: torch.Tensor, slots: list[Slot]) -> Iterator[tuple[Slot, torch.Tensor]]:
    first = 0
    for slot in slots:
        yield slot, tensor[first : first + slot.nbytes]
        first += slot.nbytes
