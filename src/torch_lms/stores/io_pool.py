"""The threads that perform copies."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue

from torch_lms.errors import StoreError
from torch_lms.stores.copies import CHUNK_BYTES, Copy
from torch_lms.stores.spill_file import Bytes, SpillFile, aligned_buffer
from torch_lms.timeline import Link


class IoThread(threading.Thread):
    """A thread of a store. The class is the mark by which a session knows not to attach it (N13).

    A daemon: whoever forgot to close a store must still be able to leave the interpreter.
    """

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)


_STACK_BYTES = 512 << 10
"""By itself a stack takes 8 MiB of a limited address space, four of them 32 MiB."""


@contextmanager
def _small_stacks() -> Iterator[None]:
    before = threading.stack_size(_STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(before)


class IoPool:
    """Performs copies first come, first served; all threads work on one large page together."""

    def __init__(self, file: SpillFile, threads: int, name: str) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._link = Link()
        # with chunks of copies; None: one thread less
        self._queue: SimpleQueue[tuple[Copy, int] | None] = SimpleQueue()
        # every thread's buffer is made here: a thread that died for want of one would leave its copies waiting forever
        tasks = [partial(self._serve, aligned_buffer(CHUNK_BYTES)) for _ in range(threads)]
        self._threads = [IoThread(task, f"torch-lms-disk-{name}-{number}") for number, task in enumerate(tasks)]
        started = []
        try:
            with _small_stacks():
                for thread in self._threads:
                    thread.start()
                    started.append(thread)
        except RuntimeError as error:
            self._threads = started
            self.close()
            raise StoreError(f"no threads for the disk: {error}") from error

    @property
    def bytes_per_s(self) -> float:
        """What was reached so far while copies were under way; 0 before any."""
        return self._link.bytes_per_s

    def submit(self, copy: Copy) -> None:
        for index in range(copy.chunks):
            self._queue.put((copy, index))

    def close(self) -> None:
        """Perform what was submitted, then end the threads."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self, bounce: Bytes) -> None:
        while (chunk := self._queue.get()) is not None:
            copy, index = chunk
            if copy.perform(index, self._file, bounce):
                self._count(copy)
            # held on to until the next chunk comes, they would keep the page's memory
            del chunk, copy

    def _count(self, copy: Copy) -> None:
        with self._lock:
            self._link.add([(copy.began_s, copy.ended_s, copy.moved_bytes)])
