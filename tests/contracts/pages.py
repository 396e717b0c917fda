"""Pages for store tests: bytes that no other seed gives, put into a store and got back."""

import numpy as np

from torch_lms.stores.base import Slot, Store


def noise(nbytes: int, seed: int = 0) -> bytearray:
    return bytearray(np.random.default_rng(seed).bytes(nbytes))


def put(store: Store, data: bytearray) -> Slot:
    slot = store.reserve(len(data))
    store.write(slot, memoryview(data)).wait()
    return slot


def get(store: Store, slot: Slot) -> bytearray:
    target = bytearray(slot.nbytes)
    store.read(slot, memoryview(target)).wait()
    return target
