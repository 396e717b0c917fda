"""What becomes of pages when the process forks (N13)."""

from collections.abc import Iterable

from torch_lms.capture.registry import Entry
from torch_lms.errors import ForkedPageError
from torch_lms.residency import UNDER_WAY, PageId, State
from torch_lms.runtime.backend import DeviceBackend
from torch_lms.runtime.limits import auto_limit


def bring_back_for_fork(backends: Iterable[DeviceBackend]) -> None:
    """The child may read pages on the CPU: all that fits comes back, for this moment beyond the limit."""
    for backend in backends:
        if backend.device.type == "cpu":
            engine = backend.engine
            book = engine.pager.book
            unready = (*UNDER_WAY, State.DROPPED)
            engine.restore(tuple(page.id for page in book if page.state in unready))
            room = auto_limit(backend.device).nbytes
            for page in [page for page in book if page.state is State.EVICTED]:
                if page.nbytes <= room:
                    engine.restore((page.id,))
                    room -= page.nbytes
            backend.note_excess("fork")


def trim_after_fork(backends: Iterable[DeviceBackend]) -> None:
    """In the parent: back under the limit. What came back left a copy below, so this moves nothing."""
    for backend in backends:
        backend.engine.set_soft_limit(backend.engine.pager.limit)


class LostPages:
    """In a forked child: the pages that stayed behind in the parent's lower tiers."""

    def __init__(self, backends: Iterable[DeviceBackend]) -> None:
        self._pages: set[PageId] = set()
        for backend in backends:
            self._pages |= {page.id for page in backend.engine.pager.book if not page.state.on_device}
            backend.executor.abandon()

    def __bool__(self) -> bool:
        return bool(self._pages)

    def check(self, entries: list[Entry]) -> None:
        """The child uses ``entries``.

        Raises:
            ForkedPageError: one of them stayed behind.
        """
        if any(entry.page in self._pages for entry in entries):
            raise ForkedPageError(
                "a forked process touched a tensor that its parent had moved to disk, and cannot bring it back. "
                "Keep it in memory while processes are started (torch_lms.pinned), or start them by spawn"
            )
