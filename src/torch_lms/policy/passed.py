"""What operations did that passed without a decision."""

from typing import NamedTuple

from torch_lms.residency import PageId


class Birth(NamedTuple):
    """A page that was created, and lives.

    Attributes:
        page: its id.
        number: in the plan.
        nbytes: bytes of its storage.
        unpageable: why it must stay on the device, "" if it may leave.
    """

    page: PageId
    number: int
    nbytes: int
    unpageable: str


class Passed(NamedTuple):
    """Operations that followed a plan, one after the other, since the last event.

    Attributes:
        ops: how many.
        position: in the plan, of the last.
        created: how many pages that created.
        births: the pages that they created and that live, in the order of their births.
        bound: numbers in the plan of pages that had none.
        uses: pages that they used or created: how many operations after the last event, and how often they were
            written. The one used last comes last.
        deaths: pages that lived before, and died.
        peak_live, peak_device: the most bytes of pages that were alive, and on the device.
    """

    ops: int
    position: int
    created: int
    births: list[Birth]
    bound: list[tuple[PageId, int]]
    uses: list[tuple[PageId, int, int]]
    deaths: list[PageId]
    peak_live: int
    peak_device: int
