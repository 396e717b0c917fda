"""What the pager is told."""

from typing import NamedTuple

from torch_lms.residency import PageId


class OpBegins(NamedTuple):
    """An operation is about to run: ``pages`` must be resident, and ``new_bytes`` will be created by it. It may write
    ``writes``.
    """

    pages: tuple[PageId, ...]
    new_bytes: int
    writes: tuple[PageId, ...] = ()


class OpEnds(NamedTuple):
    """The operation of ``pages`` ended (or failed); it wrote ``written``."""

    pages: tuple[PageId, ...]
    written: tuple[PageId, ...]


class Created(NamedTuple):
    """A new page, resident. ``unpageable`` says why it must stay on the device, "" if it may leave."""

    page: PageId
    nbytes: int
    unpageable: str = ""


class Died(NamedTuple):
    """The storage of ``page`` is gone."""

    page: PageId


class Copied(NamedTuple):
    """The copies of ``pages`` that were under way have ended."""

    pages: tuple[PageId, ...]


class Exported(NamedTuple):
    """The address of ``pages`` escaped: they stay on the device for good, because of ``reason``."""

    pages: tuple[PageId, ...]
    reason: str


class Resized(NamedTuple):
    """The user resized the storage of ``page``."""

    page: PageId
    nbytes: int


class Spoiled(NamedTuple):
    """``pages`` are about to lose their content, unused."""

    pages: tuple[PageId, ...]


class Pinned(NamedTuple):
    """``pages`` must be resident until ``Unpinned``, and may be written unseen until then."""

    pages: tuple[PageId, ...]


class Unpinned(NamedTuple):
    """Undoes one ``Pinned``; meanwhile ``written`` may have changed."""

    pages: tuple[PageId, ...]
    written: tuple[PageId, ...] = ()


class Reclaim(NamedTuple):
    """Everything that may leave, leaves."""


class Restore(NamedTuple):
    """``pages`` come back, whatever the limit."""

    pages: tuple[PageId, ...]


class LimitChanged(NamedTuple):
    """The limit is ``nbytes`` from now on."""

    nbytes: int


class StepEnded(NamedTuple):
    """A training step (or inference call) ended."""


Event = (
    OpBegins
    | OpEnds
    | Created
    | Died
    | Copied
    | Exported
    | Resized
    | Spoiled
    | Pinned
    | Unpinned
    | Reclaim
    | Restore
    | LimitChanged
    | StepEnded
)
