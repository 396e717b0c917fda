"""What an engine can be told, as values: tests draw them, and a rig tells its engine."""

from typing import NamedTuple

from torch_lms.engine import Engine
from torch_lms.residency import PageId


class OpBegins(NamedTuple):
    pages: tuple[PageId, ...]
    new_bytes: int
    writes: tuple[PageId, ...] = ()

    name = "op"
    is_repeatable = False


class OpEnds(NamedTuple):
    pages: tuple[PageId, ...]
    written: tuple[PageId, ...]


class Created(NamedTuple):
    page: PageId
    nbytes: int
    unpageable: str = ""


class FoundInFile(NamedTuple):
    page: PageId


class FilesForgotten(NamedTuple):
    pass


class Died(NamedTuple):
    page: PageId


class TransfersDone(NamedTuple):
    pages: tuple[PageId, ...]


class Exported(NamedTuple):
    pages: tuple[PageId, ...]
    reason: str


class Resized(NamedTuple):
    page: PageId
    nbytes: int


class Invalidated(NamedTuple):
    pages: tuple[PageId, ...]


class Pinned(NamedTuple):
    pages: tuple[PageId, ...]


class Unpinned(NamedTuple):
    pages: tuple[PageId, ...]
    written: tuple[PageId, ...] = ()


class Reclaim(NamedTuple):
    pass


class Restore(NamedTuple):
    pages: tuple[PageId, ...]


class LimitChanged(NamedTuple):
    nbytes: int


class StepEnded(NamedTuple):
    pass


Event = (
    OpBegins
    | OpEnds
    | Created
    | FoundInFile
    | FilesForgotten
    | Died
    | TransfersDone
    | Exported
    | Resized
    | Invalidated
    | Pinned
    | Unpinned
    | Reclaim
    | Restore
    | LimitChanged
    | StepEnded
)


def tell(engine: Engine, event: Event) -> None:
    """Tell ``engine`` of ``event``."""
    match event:
        case OpBegins(pages, new_bytes, writes):
            engine.op_begins(event, pages, new_bytes, writes)
        case OpEnds():
            engine.op_ends(*event)
        case Created():
            engine.created(*event)
        case FoundInFile():
            engine.found_in_file(*event)
        case FilesForgotten():
            engine.forget_files()
        case Died():
            engine.died(*event)
        case Exported():
            engine.exported(*event)
        case Resized():
            engine.resized(*event)
        case Invalidated():
            engine.invalidated(*event)
        case Pinned():
            engine.pinned(*event)
        case Unpinned():
            engine.unpinned(*event)
        case Reclaim():
            engine.reclaim()
        case Restore():
            engine.restore(*event)
        case LimitChanged():
            engine.set_soft_limit(*event)
        case StepEnded():
            engine.step_ended()
        case TransfersDone():
            engine.transfers_done(*event)
