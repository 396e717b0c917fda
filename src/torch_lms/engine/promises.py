"""Room that operations which run have been given, and do not fill yet."""

from threading import get_ident


class Promises:
    """Bytes that operations are about to create, by the threads that they run on."""

    def __init__(self) -> None:
        self._by_thread: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._by_thread)

    def give(self, nbytes: int, thread: int | None = None) -> None:
        """The operation that begins on ``thread``, or on the one that calls, is about to create ``nbytes``."""
        if nbytes:
            self._by_thread[get_ident() if thread is None else thread] = nbytes

    def keep(self, nbytes: int) -> None:
        """It created so many of them."""
        thread = get_ident()
        left = self._by_thread.get(thread, 0) - nbytes
        if left > 0:
            self._by_thread[thread] = left
        else:
            self._by_thread.pop(thread, None)

    def end(self) -> None:
        """It is over: it creates nothing more."""
        self._by_thread.pop(get_ident(), None)

    def of_others(self) -> int:
        """Bytes that operations on other threads are about to create."""
        return sum(self._by_thread.values()) - self._by_thread.get(get_ident(), 0)
