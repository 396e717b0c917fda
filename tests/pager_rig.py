"""An engine on a device that exists only as a table: which copy of each page holds which version of its content.

The rig performs actions as naively as possible and checks each against that table, so a pager that frees the last copy,
fetches a stale one, or evicts a page twice is caught at the action, not by the numbers it would have ruined.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from pager_events import Created, Died, Event, FoundInFile, OpBegins, OpEnds, Resized, tell

from torch_lms.engine import Engine, Spent
from torch_lms.errors import StoreError
from torch_lms.pager import (
    Action,
    Discard,
    Drop,
    FinishEvict,
    FinishFetch,
    Pager,
    Recompute,
    Release,
    StartEvict,
    StartFetch,
)
from torch_lms.policy import Policy, Prefetch, Reactive, Recipe, View
from torch_lms.residency import Page, PageId, State, Tier
from torch_lms.timeline import Copies

IN_FLIGHT = -1
"""The version of a device copy that has been started, and not waited for."""

Outcome = Callable[[Action], Exception | None]


class Interrupt(BaseException):
    """As Ctrl-C: thrown into the pager, whatever it was waiting for."""


class Done(list[Action]):
    """Actions, equal to a list of equal actions of the same kinds: named tuples alone would not mind the kind."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and list(map(kind_and_fields, self)) == list(map(kind_and_fields, other))


def kind_and_fields(action: Action) -> tuple[object, ...]:
    """What tells ``action`` from every other."""
    return type(action), *action


@dataclass(slots=True)
class LowerCopy:
    """``version`` is what the page held when the copy was started."""

    tier: Tier
    version: int
    complete: bool = False


@dataclass(slots=True)
class Rig:
    """An engine, and as its backend the device that it thinks it drives.

    Attributes:
        tiers: the lower tiers, nearest first, and the most bytes of each.
        engine: set once it exists.
        truth: the version that the program must find in each living page.
        device, lower: the copies that exist.
        recipes: for each dropped page, what it held, and what the pages hold from which it is made.
        unrepeatable: pages that cannot be recomputed.
        torn: pages of which an action was interrupted, so that nobody knows whether it was done. Executors bear it if
            such an action comes again; of any other page the rig insists on every action coming exactly once.
        refuse: what outcome an action has instead of being done; it may raise.
        interrupt_after: whether to raise once an action was done.
        done: the actions of the last event, in order, those that failed included.
    """

    tiers: Mapping[Tier, int]
    engine: Engine = field(init=False)
    truth: dict[PageId, int] = field(default_factory=dict)
    device: dict[PageId, int] = field(default_factory=dict)
    lower: dict[PageId, LowerCopy] = field(default_factory=dict)
    recipes: dict[PageId, tuple[int, dict[PageId, int]]] = field(default_factory=dict)
    unrepeatable: set[PageId] = field(default_factory=set)
    torn: set[PageId] = field(default_factory=set)
    refuse: Outcome = lambda action: None
    interrupt_after: Callable[[Action], bool] = lambda action: False
    done: Done = field(default_factory=Done)

    @property
    def pager(self) -> Pager:
        """The engine's."""
        return self.engine.pager

    def tell(self, event: Event) -> Done:
        """Tell the engine of ``event``; the actions that this took."""
        self.done = Done()
        tell(self.engine, event)
        return self.done

    # -- as a backend ------------------------------------------------------------------------------------------------

    overlap_penalty = 0.0
    repeat_s = launch_s = action_s = 0.0
    transfers_made = 0

    def perform(self, action: Action, spent: Spent) -> Exception | None:
        self.done.append(action)
        try:
            error = self.refuse(action)
        except BaseException:
            self.torn.add(action.page)
            self._give_up(action)
            raise
        if error is not None:
            self._give_up(action)
            return error
        if isinstance(action, Drop) and action.page in self.unrepeatable:
            return StoreError("not repeatable")
        self._performs[type(action)](self, action)
        if self.interrupt_after(action):
            self.torn.add(action.page)
            raise Interrupt
        return None

    def unobserved(self) -> AbstractContextManager[object]:
        return nullcontext()

    def landed(self) -> Sequence[PageId]:
        """None by themselves: tests say when (``TransfersDone``)."""
        return ()

    def use(self, pages: Sequence[PageId]) -> None:
        """All must be there."""
        for page in pages:
            assert page in self.device, f"page {page} is used while it is not on the device"

    def grows(self, new_bytes: int, resident_bytes: int, limit: int) -> None:
        assert limit == self.pager.limit

    def mark(self) -> int:
        return 0

    def seconds(self, mark: int) -> float:
        return float(mark)

    def take_transfers(self) -> Copies:
        return Copies.of([])

    # -- actions -----------------------------------------------------------------------------------------------------

    def _start_evict(self, action: StartEvict) -> None:
        assert action.page in self.device, f"{action}: nothing on the device"
        assert action.page not in self.lower or action.page in self.torn, f"{action}: there is a lower copy already"
        self.lower[action.page] = LowerCopy(action.tier, self.device[action.page])

    def _finish_evict(self, action: FinishEvict) -> None:
        self.lower[action.page].complete = True

    def _release(self, action: Release) -> None:
        copy = self.lower.get(action.page)
        assert copy is not None, f"{action}: the last copy"
        assert copy.complete, f"{action}: the lower copy is not complete"
        assert copy.version == self.truth[action.page], f"{action}: the lower copy is stale"
        assert action.page in self.device, f"{action}: nothing to free"
        del self.device[action.page]

    def _start_fetch(self, action: StartFetch) -> None:
        assert action.page not in self.device or action.page in self.torn, f"{action}: it is there already"
        copy = self.lower.get(action.page)
        assert copy is not None, f"{action}: nothing to fetch"
        assert copy.complete, f"{action}: an unfinished copy"
        self.device[action.page] = IN_FLIGHT

    def _finish_fetch(self, action: FinishFetch) -> None:
        assert self.device[action.page] == IN_FLIGHT, f"{action}: not under way"
        self.device[action.page] = self.lower[action.page].version

    def _discard(self, action: Discard) -> None:
        copy = self.lower.pop(action.page, None)
        if action.page in self.torn and copy is None:
            return
        assert copy is not None, f"{action}: no lower copy"
        assert copy.tier is action.tier or action.page in self.torn, f"{action}: the copy is in {copy.tier}"
        if action.page in self.truth:
            assert self.device.get(action.page) == self.truth[action.page], f"{action}: the last copy"

    def _drop(self, action: Drop) -> None:
        assert self.device[action.page] == self.truth[action.page], f"{action}: not on the device"
        assert action.page not in self.lower or action.page in self.torn, f"{action}: there is a lower copy"
        self.recipes[action.page] = self.truth[action.page], {page: self.truth[page] for page in action.recipe.inputs}
        del self.device[action.page]

    def _recompute(self, action: Recompute) -> None:
        if action.page in self.device and action.page in self.torn:
            return
        assert action.page not in self.device, f"{action}: it is there already"
        made, inputs = self.recipes[action.page]
        for page, version in inputs.items():
            assert self.device.get(page) == version, f"{action}: {page} is not as it was"
        self.device[action.page] = made

    _performs = {  # noqa: RUF012
        StartEvict: _start_evict,
        FinishEvict: _finish_evict,
        Release: _release,
        StartFetch: _start_fetch,
        FinishFetch: _finish_fetch,
        Discard: _discard,
        Drop: _drop,
        Recompute: _recompute,
    }

    def _give_up(self, action: Action) -> None:
        """What an executor leaves behind of an action that failed: a lower copy that failed is gone, and device memory
        into which a copy failed is free."""
        if isinstance(action, FinishEvict):
            self.lower.pop(action.page, None)
        elif isinstance(action, FinishFetch):
            self.device.pop(action.page, None)

    # -- the program -------------------------------------------------------------------------------------------------

    def create(self, page: PageId, nbytes: int, unpageable: str = "") -> None:
        """A storage is made and written."""
        self.truth[page] = self.device[page] = 0
        self.tell(Created(page, nbytes, unpageable))

    def load(self, page: PageId, nbytes: int) -> None:
        """A storage is made from a file."""
        self.create(page, nbytes)
        self.lower[page] = LowerCopy(Tier.FILE, 0, complete=True)
        self.tell(FoundInFile(page))

    def write(self, pages: Iterable[PageId]) -> None:
        """The program writes resident pages."""
        for page in pages:
            self.read([page])
            self.truth[page] += 1
            self.device[page] = self.truth[page]

    def read(self, pages: Iterable[PageId]) -> None:
        """The program reads pages: they must be there, and hold what was written last."""
        for page in pages:
            assert page in self.device, f"page {page} is used while it is not on the device"
            assert self.device[page] == self.truth[page], f"page {page} holds version {self.device[page]}"

    def op(self, reads: Sequence[PageId] = (), writes: Sequence[PageId] = (), new_bytes: int = 0) -> Done:
        """A whole operation; the actions that made it possible."""
        pages = tuple(dict.fromkeys((*reads, *writes)))
        before = self.tell(OpBegins(pages, new_bytes, tuple(writes)))
        self.read(pages)
        self.write(writes)
        self.tell(OpEnds(pages, tuple(writes)))
        return before

    def die(self, page: PageId) -> Done:
        """The storage of ``page`` dies."""
        del self.truth[page]
        actions = self.tell(Died(page))
        self.device.pop(page, None)
        return actions

    def resize(self, page: PageId, nbytes: int) -> Done:
        """The program resizes a storage: its content is new."""
        self.write([page])
        return self.tell(Resized(page, nbytes))

    # -- looking -----------------------------------------------------------------------------------------------------

    def state(self, page: PageId) -> State:
        return self.pager.book[page].state

    def states(self) -> dict[PageId, State]:
        return {page.id: page.state for page in self.pager.book}

    def check(self, written: Iterable[PageId] = ()) -> None:
        """The books are in order, and say of every page what is the case. ``written``: by operations that still run, of
        which the pager has not been told yet."""
        self.pager.validate()
        assert {page.id for page in self.pager.book} == self.truth.keys()
        for page in self.pager.book:
            if page.state in (State.EVICTING, State.FETCHING):
                self._check_under_way(page)
                continue
            if page.state is State.DROPPED:
                self._check_recipe(page)
            if page.state.on_device:
                self.read([page.id])
            else:
                assert page.id not in self.device or page.id in self.torn, f"{page.story}: still occupies the device"
            if page.tier is not None:
                copy = self.lower[page.id]
                assert copy.complete, f"{page.story}: counts on an unfinished copy"
                assert copy.tier is page.tier
                assert copy.version == self.truth[page.id] or page.id in written, f"{page.story}: its copy is stale"
            else:
                assert page.id not in self.lower or page.id in self.torn, f"{page.story}: a copy left behind"
        for page_id in self.lower:
            assert page_id in self.truth or page_id in self.torn, f"page {page_id} is dead, its copy is not"
        assert self.pager.book.ledger.host <= self.pager.tiers.get(Tier.HOST, 0)
        assert self.pager.book.ledger.disk <= self.pager.tiers.get(Tier.DISK, 0)

    def _check_recipe(self, page: Page) -> None:
        made, inputs = self.recipes.get(page.id, (self.truth[page.id], {}))
        assert made == self.truth[page.id] or page.id in self.torn, f"{page.story}: would be made as it was before"
        for other, version in inputs.items():
            assert self.truth.get(other) == version or page.id in self.torn, f"{page.story}: {other} is not as it was"

    def _check_under_way(self, page: Page) -> None:
        """Only what nobody uses is."""
        assert not page.pins, f"{page.story}: in use while it is under way"
        assert self.lower[page.id].version == self.truth[page.id], f"{page.story}: a stale copy is under way"
        if page.state is State.EVICTING:
            self.read([page.id])
        else:
            assert self.lower[page.id].complete, f"{page.story}: an unfinished copy is under way"
            assert self.device[page.id] == IN_FLIGHT, f"{page.story}: not under way"


@dataclass
class Foreseeing(Reactive):
    """Reactive, but for what it is told to begin beside an operation, and to drop."""

    next: Prefetch | None = None
    recipes: dict[PageId, Recipe] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def recipe(self, page: PageId) -> Recipe | None:
        return self.recipes.get(page)

    def prefetch(self, view: View) -> Prefetch | None:
        prefetch = self.next
        self.next = None
        return super().prefetch(view) if prefetch is None else prefetch


def new_rig(
    limit: int = 100, *, policy: Policy | None = None, host: int | None = None, disk: int | None = 10**6
) -> Rig:
    """A rig whose tiers are those that are given a size."""
    sizes = {Tier.HOST: host, Tier.DISK: disk}
    rig = Rig({tier: size for tier, size in sizes.items() if size is not None})
    rig.engine = Engine(rig, policy or Reactive(), limit)
    return rig


def failing(*wanted: Action, error: BaseException | None = None, times: int = 1) -> Outcome:
    """Each of the actions ``wanted`` fails with ``error`` so many times: it is raised unless it is an outcome."""
    left = dict.fromkeys(map(kind_and_fields, wanted), times)

    def outcome(action: Action) -> Exception | None:
        kind = kind_and_fields(action)
        if left.get(kind, 0) == 0:
            return None
        left[kind] -= 1
        failure = error if error is not None else StoreError("injected")
        if isinstance(failure, Exception):
            return failure
        raise failure

    return outcome
