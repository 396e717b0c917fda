"""What an engine needs of a device, be it real, simulated, or a table in a test."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch_lms.pager import Action
from torch_lms.residency import PageId, Tier
from torch_lms.timeline import Copies

Mark = Any
"""A moment of the program's work, in the form in which a backend's clock has it."""

Spent = Callable[[str, int, PageId], None]
"""Says what the program was kept busy with since it last said so: a name as in ``timeline.Span``, bytes, page."""


class Backend(Protocol):
    """Carries out the actions of one engine, on one device. There are three: ``runtime.DeviceBackend`` moves bytes,
    ``sim.LaneBackend`` advances a virtual clock, and the tests' table checks every action.
    """

    @property
    def tiers(self) -> Mapping[Tier, int]:
        """The lower tiers, nearest first, and the most bytes of each."""

    @property
    def overlap_penalty(self) -> float:
        """Share of a transfer's time that the program loses though it does not wait for it."""

    @property
    def repeat_s(self) -> float:
        """Seconds that the program loses for each operation that is recorded and repeated."""

    @property
    def launch_s(self) -> float:
        """See ``Speeds``."""

    @property
    def action_s(self) -> float:
        """See ``Speeds``."""

    @property
    def disk_bytes_per_s(self) -> tuple[float, float]:
        """What a disk behind another tier reaches, written and read; 0 as long as that is not known."""

    def perform(self, action: Action, spent: Spent) -> Exception | None:
        """Do ``action``.

        Returns:
            Why it could not be done, where the pager knows how to go on: the tier has no room, a copy failed, the
            device has no memory, a page cannot be recomputed. Whatever else goes wrong is raised.
        """

    def unobserved(self) -> AbstractContextManager[object]:
        """Inside, actions are performed; what they do is no operation of the program's."""

    def landed(self) -> Sequence[PageId]:
        """Pages whose transfer has ended, though nobody waited for it: finishing these waits for nothing."""

    def use(self, pages: Sequence[PageId]) -> None:
        """An operation is about to use ``pages``, which are resident, on the current stream."""

    def grows(self, new_bytes: int, resident_bytes: int, limit: int) -> None:
        """An operation is about to create ``new_bytes``, beside ``resident_bytes``, under ``limit``."""

    # -- the clock ---------------------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        """Now."""

    def seconds(self, mark: Mark) -> float:
        """When that was, in seconds of one clock. Waits until then, where the host is ahead of the device."""

    @property
    def transfers_made(self) -> int:
        """How many transfers ended since ``take_transfers`` was last asked, about."""

    def take_transfers(self) -> Copies:
        """The transfers that ended since this was last asked, in the order in which they did."""
