"""What the native interposer can be told and asked."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

PageId = int

Columns = tuple[list[bool], list[float], list[float], list[int], list[PageId]]
"""Of copies that ended: whether up, when they began and ended, bytes, pages."""


class RecordedCall(Protocol):
    """A call of an operator that was recorded."""

    def made(self, result: Any, find: Any) -> None:
        """Note the pages in ``result``, which it returned. They are looked up in the interposer's table."""

    def repeat(self, storages: dict[PageId, torch.UntypedStorage]) -> dict[PageId, torch.UntypedStorage]:
        """Repeat it, on these storages of the pages among its arguments. Those of the pages that it makes.

        For tests.
        """


class StepCalls(Protocol):
    """Those of a step, by their positions in its plan."""

    def keep(self, position: int, call: Any) -> None:
        """It may have to be repeated."""

    def clear(self) -> None:
        """The step ended."""

    def bind(
        self, page: PageId, inputs: list[PageId], positions: list[int], writes_of: Callable[[PageId], int]
    ) -> bool:
        """The page is recomputed from ``inputs``, by the calls at ``positions``. False if that would not give it as it
        is. ``writes_of``: how often a page was written so far, -1 if it is none any more.
        """


ToldRecipe = tuple[PageId, int, tuple[PageId, ...], int]
"""A page, and how it is recomputed: its number among the plan's recomputations, inputs, bytes needed beside these."""


class Spilling(Protocol):
    """Copies pages of the CPU to a file and back, on threads of its own."""

    def grant(self, offset: int, length: int) -> None:
        """Pages may be copied to this part of the file, in bytes that are multiples of 4096."""

    def free_bytes(self) -> int:
        """Of what was granted."""

    def has(self, page: PageId) -> bool:
        """Whether the page has a copy in the file, or is about to."""

    def start_evict(self, page: PageId, storage: torch.UntypedStorage) -> bool:
        """Start to copy it down. False if there is no room for it."""

    def start_fetch(self, page: PageId, storage: torch.UntypedStorage) -> None:
        """Start to copy it up, into the memory that its storage has again."""

    def finish(self, page: PageId, patience_s: float) -> int | None:
        """Wait until its copy has ended, at most so long. None if it is still under way. Else 0, or how it failed: an
        error number of the system, -1 if the file ends before, -2 if the bytes are not those written.
        """

    def discard(self, page: PageId) -> None:
        """Give up its copy, if it has one."""

    def place(self, page: PageId) -> tuple[int, bool]:
        """Where its copy is in the file, and whether the latest came from there."""

    def landed(self) -> list[PageId]:
        """Pages whose copies have ended, though nobody waited for that. Small ones that were left for long begin."""

    def made(self) -> int:
        """How many copies were made since ``take_copied``."""

    def take_copied(self) -> Columns:
        """Those, by ``time.perf_counter``."""

    def effort(self) -> tuple[float, float]:
        """Seconds of a processor that copies beside the program took so far, and how long they lasted."""

    def take_stalled_s(self) -> float:
        """Seconds in which somebody waited, since this was last asked."""

    def close(self) -> None:
        """Perform what was asked for, then end the threads."""

    def abandon(self) -> None:
        """This is a forked child: the threads stayed with the parent."""


class Moment(Protocol):
    """A place in the work of a stream."""

    def is_past(self) -> bool:
        """Whether the stream is beyond it."""

    def wait(self) -> None:
        """Block until it is."""

    def seconds_since(self, earlier: Any) -> float:
        """Between two moments that are past."""


class Laning(Protocol):
    """Copies pages of a device with streams to page-locked host memory and back, and has streams wait for each other as
    ``runtime.streams`` tells. Errors of the device are PyTorch's.
    """

    def copy_on(self, out: int, into: int) -> None:
        """The numbers of the streams of copies down and up."""

    def grant(self, offset: int, length: int, address: int) -> None:
        """Pages may be copied to this page-locked memory; ``offset``: its place in the store, a multiple of 4096."""

    def take_back(self, offset: int, length: int) -> bool:
        """What was granted so is granted no more, if all of it is free."""

    def free_bytes(self) -> int:
        """Of what was granted."""

    def wait_for_memory(self) -> bool:
        """Wait for memory that a copy still reads or writes, though its page is gone. False if there is none."""

    def record(self, stream: int) -> Moment:
        """After all that was asked of the stream so far."""

    def hold_up(self, stream: int, moment: Any) -> None:
        """What is asked of the stream from now on runs after ``moment``."""

    def mark(self, tick: int) -> Moment:
        """Now, on the current stream: all that used a page before ``tick`` has been asked for."""

    def forget_marks(self) -> None:
        """Pages were used without a tick since the last mark."""

    def use(self, page: PageId, storage: torch.UntypedStorage) -> bool:
        """An operation is about to use the page on the current stream. Whether it is new to that as it is."""

    def born(self, page: PageId, home: int) -> None:
        """Its memory was allocated for that stream."""

    def adopt(self, page: PageId) -> None:
        """Its memory may have been allocated on any stream."""

    def streams_of(self, page: PageId) -> list[int]:
        """Those on which it may be used as it is."""

    def known(self) -> list[PageId]:
        """Pages that have such."""

    def has(self, page: PageId) -> bool:
        """Whether it has a copy in host memory, or is about to."""

    def start_evict(self, page: PageId, storage: torch.UntypedStorage, last_use: int) -> bool:
        """Start to copy it down, after its last use. False if there is no room for it."""

    def await_uses(self, page: PageId, last_use: int) -> None:
        """Another copy down waits as that would."""

    def finish_evict(self, page: PageId) -> None:
        """Its copy counts from now on. The host waits for nothing."""

    def release(self, page: PageId, storage: torch.UntypedStorage) -> None:
        """Free its memory on the device."""

    def start_fetch(self, page: PageId, storage: torch.UntypedStorage) -> None:
        """Give it memory, and start to copy it up."""

    def finish_fetch(self, page: PageId) -> None:
        """Its home waits for that, or for what ``came``."""

    def allocate(self, page: PageId, storage: torch.UntypedStorage, nbytes: int) -> None:
        """Give it memory, for a copy from elsewhere."""

    def came(self, page: PageId) -> Moment:
        """Such a copy has been asked for; when it is complete."""

    def begin_recompute(self, page: PageId) -> int:
        """The page's home is the current stream from now on, and may be given memory. Which was the current one."""

    def end_recompute(self, page: PageId, inputs: list[PageId], before: int, is_done: bool) -> None:
        """It was recomputed from ``inputs``, or could not be; ``before`` is the current stream again."""

    def discard(self, page: PageId) -> None:
        """Give up its copy, if it has one."""

    def forget(self, page: PageId) -> None:
        """It is gone, with its copy."""

    def landed(self) -> list[PageId]:
        """Pages whose copies have ended, though nobody waited for that."""

    def made(self) -> int:
        """How many copies, and waits for them, were asked for that ``take_copied`` has not told of."""

    def take_copied(self, near: Moment, near_s: float) -> Columns:
        """Copies that have ended since, by a clock that was at ``near_s`` at the moment ``near``."""

    def take_stalled_s(self) -> float:
        """Seconds for which the program's streams waited, as far as ``take_copied`` saw, since this was last asked."""

    def close(self) -> None:
        """All copies have ended: from now on nothing is known of any page."""

    def abandon(self) -> None:
        """This is a forked child: nothing of the device is touched."""


class Native(Protocol):
    """The extension module. Any thread may call it."""

    def alias(
        self, tensor: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int
    ) -> torch.Tensor:
        """Another tensor of the same storage, which may be too small for it."""

    def claim(self, key: str) -> None:
        """Take the dispatch key of that name, for as long as the process lives.

        Raises:
            RuntimeError: it is somebody else's, or PyTorch knows none of that name.
        """

    def start(self, owner: Any, device_type: str, sizes: dict[str, int], has_streams: bool) -> None:
        """A session begins. ``owner`` is asked what needs a decision: see ``runtime.native_interposer``."""

    def stop(self) -> None:
        """It ended: operations pass unseen."""

    def include(self, is_included: bool) -> bool:
        """Whether the operations of the calling thread are seen. Returns what was."""

    def exclude(self, is_excluded: bool) -> bool:
        """Whether they are not, for the moment. Returns what was."""

    def open(self, limits: list[tuple[int, int, int]]) -> None:
        """Open the fast path, for devices by their index (-1 for the CPU): the limit of each, and the bytes of pages up
        to which it stays open.
        """

    def close(self) -> list[tuple[int, list[PageId], int]]:
        """Close it. The operations that are on it now: the identities of their threads, their pages, and the bytes that
        they are about to create, as far as is known.
        """

    def Spill(self, fd: int, threads: int) -> Spilling:
        """Copies pages to an open file. So many threads in each direction.

        Raises:
            RuntimeError: they cannot be started.
        """

    def Lanes(self, device: str) -> Laning:
        """Copies pages of that device, which has an index."""

    def Calls(self) -> StepCalls:
        """Of the steps of one device."""

    def record(
        self,
        name: str,
        overload: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        writes: list[int],
        writes_of: Callable[[PageId], int],
    ) -> RecordedCall:
        """Record a call that Python is about to make, and that can be repeated. ``writes``: the positions of the
        arguments that it writes; ``writes_of``: how often a page was written so far.
        """

    def inputs(self, page: PageId) -> list[PageId]:
        """What the page is recomputed from; nothing if there is no way to."""

    def recompute(self, page: PageId, storage: torch.UntypedStorage, nbytes: int) -> None:
        """Give its emptied storage its content again, from inputs that are there. Errors are PyTorch's."""

    def unbind(self, page: PageId) -> None:
        """It need not be recomputed any more."""

    def kernel_settings(self) -> list[int]:
        """What the settings are now by which kernels are chosen: see ``capture.call``."""

    def fail_next_copy(self) -> None:
        """Once the next copy of ``Laning`` has been asked for, something fails ("injected"). For tests."""

    def hinder(self, hindrance: Callable[[bool, int], int] | None) -> None:
        """Have ``hindrance`` called before each read (True) and write of so many bytes. It returns the error number
        with which that fails, or 0. For tests.
        """

    def refuse(self, refusal: Callable[[], bool] | None) -> None:
        """Have ``refusal`` called before each call is repeated: it says whether memory is refused to it. For tests."""

    def be_silent(self, is_silent: bool) -> None:
        """Whether ``Spilling.landed`` says nothing. For tests."""

    def StepPlan(
        self,
        ops: list[Any],
        nbytes: list[int],
        recomputations: list[tuple[int, tuple[int, ...], int, tuple[int, ...]]],
    ) -> Any:
        """A plan as far as it is followed here.

        Args:
            ops: name, pages, creates, those that die after it, new bytes; then in one tuple those that are evicted
                after it, those whose fetch starts when it begins, the recomputations of those that are dropped after
                it, and of those that are recomputed when it begins; whether any move then, whether the program waits
                for no more than it needs, whether it is captured, whether Python has it.
            nbytes: of its pages.
            recomputations: page, inputs, the bytes needed beside these, positions of the operations that are repeated.
        """

    def follow(
        self,
        plan: Any,
        is_new: bool,
        position: int,
        device: int,
        sizes: tuple[int, int, int, int, int],
        tiers: list[tuple[int, int]],
        states: list[tuple[PageId, int, int, bool, bool, int]],
        bound: list[tuple[PageId, int]],
        lists: tuple[list[PageId], list[PageId], list[PageId], list[PageId]],
        planned: list[ToldRecipe],
        dropped: list[ToldRecipe],
        outlook: tuple[int, int, int, int],
        carrier: tuple[Spilling | None, Laning | None, StepCalls, int, int, float, int],
    ) -> None:
        """From here on operations pass that follow ``plan``, as long as nothing has to be decided for them.

        Args:
            plan: a ``StepPlan``; None if they go by an outlook.
            is_new: its numbers have not been given to pages before, in this step.
            position: of the last operation.
            device: its index.
            sizes: bytes: the limit, without what operations that run are about to create; pages on the device; the most
                that lived in this step; the most that were on the device. Last, after how many microseconds it is asked
                whether copies down have ended, where a page that is to be fetched waits for their room.
            tiers: the bytes that each lower tier holds, and the most that it can.
            states: pages of which something has changed: the numbers of their states (``runtime.native_moves``) and
                tiers (-1 for none); whether their lower copies are new, whether they must stay; how often they were
                written.
            bound: pages and their numbers in the plan, as far as that is news.
            lists: what the plan still has to do: the first four of ``policy.Lists``.
            planned: how the pages are recomputed that the plan has dropped now.
            dropped: the same of those that are dropped.
            outlook: the last two fields of ``policy.Outlook``; how many operations go by it at most, and the bytes that
                one may need at most. Its pages are the first and the third of ``lists``. Zeros with a plan.
            carrier: who performs moves without Python, of the CPU or of a device with streams, if anybody does; the
                calls of the step; the number of the tier below; how many bytes are created by operations for which
                pages move until Python hears of them; when it is asked how much room there is, if that is short
                (``time.monotonic``); the tick of the last operation.
        """

    def move(
        self, position: int, pages: list[PageId], writes: list[PageId], landed: list[PageId]
    ) -> tuple[Any, ...] | None:
        """What moves before the plan's operation at ``position``, on ``pages``, of which it may write ``writes``.
        Copies of ``landed`` have ended. None if that must be decided. Else the operation has begun, no other passes
        until ``moved``, and these are told: a journal and how many operations are in it; how many passed since
        ``follow``, with this one; bytes that operations created since this was last asked for which pages moved
        without Python; bytes on the device and in each tier after the moves; the moves
        (``runtime.native_moves.Act``, page, tier, the operation since ``follow`` that used the page last, -1 for none);
        how those are recomputed that are dropped; pages that Python does not know, their storages and streams.
        """

    def writes(self, page: PageId) -> int:
        """How often the page was written since ``follow``; -1 if it is none any more."""

    def moved(self, are_all: bool, count: int, failed: PageId, state: int) -> None:
        """They moved. If not all: the first ``count``; the page ``failed`` is in that state now, and the operation has
        not begun.
        """

    def progress(self) -> tuple[int, list[int], tuple[int, ...]] | None:
        """Bytes on the device and in each tier now, and the fields of ``policy.Counts`` since ``follow``; None if no
        plan is followed.
        """

    def take_over(self) -> tuple[Any, ...]:
        """From here on none does. What passed: a journal and how many operations are in it, then the fields of
        ``policy.Passed`` but the first (births with their storages and the streams of their memory; deaths also of
        pages that Python has not heard of; moved pages and lists without recipes); the recipes of pages that the plan
        has dropped now, and of the moved ones that are; pages whose lower copies were given up; the operations that
        run now, as ``close`` tells of them; and the fields of ``policy.ByOutlook``.
        """

    def ask_python(self, always: bool) -> None:
        """Whether the mode has every operation."""

    def set_asides(self, threads: set[int]) -> None:
        """Operations of these threads follow no plan and no outlook: the mode has them meanwhile."""

    def set_min_size(self, nbytes: int) -> None:
        """Of storages first seen from now on, those of ``nbytes`` and more are pages."""

    def entered(self) -> int:
        """How many operations used pages, of those that the mode had not."""

    def find(self, storage: torch.UntypedStorage) -> PageId:
        """The number of the page; -1 if it is none."""

    def add(self, storage: torch.UntypedStorage, is_young: bool) -> PageId:
        """It becomes a page."""

    def nbytes(self, page: PageId) -> int:
        """Its size, also while it is away."""

    def name(self, page: PageId) -> int:
        """Python knows of the page, though it may still be young: its death is told. The stream of its memory."""

    def drop(self, page: PageId) -> None:
        """It is none any more."""

    def resize(self, page: PageId, nbytes: int) -> None:
        """Its storage has another size."""

    def take_deaths(self) -> list[PageId]:
        """Pages whose storages died since this was last asked."""

    def use_on(self, page: PageId, stream: int) -> None:
        """The page may be used on that stream of its device, as it is now."""

    def forget_streams(self, pages: list[PageId]) -> None:
        """Nothing is known of the streams on which they may be used."""

    def take_young(self) -> list[tuple[PageId, torch.UntypedStorage, int]]:
        """Pages that were born on the fast path, and of which no engine has heard; the streams of their memory."""

    def live_bytes(self, device: int) -> int:
        """Of all pages of a device, wherever they are."""

    def take_peak(self, device: int) -> int:
        """The most that these were on the fast path since this was last asked; 0 if nothing happened there."""

    def count(self) -> int:
        """How many pages there are."""
