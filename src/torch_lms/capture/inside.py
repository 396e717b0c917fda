"""What holds for one thread, for a while."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Inside(threading.local):
    """Whether the calling thread is inside of a block.

    Attributes:
        now: whether it is.
    """

    now = False

    @contextmanager
    def block(self) -> Iterator[None]:
        """Such a block. They may be nested."""
        before = self.now
        self.now = True
        try:
            yield
        finally:
            self.now = before
