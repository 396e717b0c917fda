"""Random programs on random devices, with failures at random actions, against the table of ``pager_rig``.

The table knows for each page which copies exist and which version of its content each holds. So a stale lower copy that
is fetched, a page freed without a complete copy, a page that is used while it is away, and a lost last copy are caught
when they happen.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pager_events import (
    Created,
    Exported,
    FilesForgotten,
    Invalidated,
    LimitChanged,
    OpBegins,
    OpEnds,
    Pinned,
    Reclaim,
    Restore,
    StepEnded,
    TransfersDone,
    Unpinned,
)
from pager_rig import Foreseeing, Interrupt, Rig, new_rig

from torch_lms.errors import StoreError, StoreFullError
from torch_lms.pager import Action, Discard, Recompute, Release, StartFetch
from torch_lms.policy import Prefetch, Recipe
from torch_lms.residency import PageId, State

SIZES = st.integers(1, 60)
LIMITS = st.one_of(st.just(0), st.integers(0, 200))
TIERS = st.one_of(st.none(), st.integers(0, 200))

FAULTS = st.one_of(
    st.just({}),
    st.just(dict.fromkeys(range(100), "refused")),
    st.dictionaries(
        st.integers(0, 9), st.sampled_from(["refused", "interrupted before", "interrupted after"]), max_size=3
    ),
)
"""What befalls the actions of an event, by their position."""

PICKS = st.lists(st.integers(0, 1000), max_size=5)
"""Which pages: positions among the living, taken around."""


class DeviceFull(RuntimeError):
    """The outcome of a fetch for which the device has no memory."""


@dataclass(eq=False)
class Operation:
    """One that runs, and has written what it writes."""

    pages: tuple[PageId, ...]
    written: tuple[PageId, ...]


class PagerMachine(RuleBasedStateMachine):
    """The program: operations on several threads, raw accesses, deaths; and a user who changes the limit."""

    rig: Rig

    @initialize(limit=LIMITS, host=TIERS, disk=TIERS)
    def start(self, limit: int, host: int | None, disk: int | None) -> None:
        self.policy = Foreseeing()
        self.rig = new_rig(limit, policy=self.policy, host=host, disk=disk)
        self.next_page = 0
        self.running: list[Operation] = []
        self.pins: list[tuple[PageId, ...]] = []
        self.exported: set[PageId] = set()
        self.fault_in_step = False

    # -- faults ------------------------------------------------------------------------------------------------------

    @contextmanager
    def faults(self, faults: dict[int, str], used: tuple[PageId, ...] = ()) -> Iterator[None]:
        """Inside, actions fail as ``faults`` says. An error that follows from it ends the block.

        ``used``: pages that could not leave meanwhile.
        """
        rig = self.rig

        def fault() -> str | None:
            found = faults.get(len(rig.done) - 1)
            self.fault_in_step |= found is not None
            return found

        def refuse(action: Action) -> Exception | None:
            if fault() == "interrupted before":
                raise Interrupt
            if fault() != "refused" or isinstance(action, Release | Discard):
                return None
            return DeviceFull() if isinstance(action, StartFetch | Recompute) else StoreError("injected")

        rig.refuse, rig.interrupt_after = refuse, lambda action: fault() == "interrupted after"
        try:
            yield
        except StoreFullError:
            note("full")
            self.check_that_nothing_could_leave(used)
        except (StoreError, DeviceFull, Interrupt) as error:
            if not faults:
                raise AssertionError("an error that nobody injected") from error
            note(repr(error))
        finally:
            note(str(rig.done))
            rig.refuse, rig.interrupt_after = (lambda action: None), (lambda action: False)

    def check_that_nothing_could_leave(self, used: tuple[PageId, ...] = ()) -> None:
        """A tier is called full only if it is."""
        pager, ledger = self.rig.pager, self.rig.pager.book.ledger
        if self.fault_in_step:
            return  # a tier that failed is not asked again
        assert not pager.view.clean.keys() - set(used)
        for page in (page for page in pager.view.dirty.values() if page.id not in used):
            for tier, most in pager.tiers.items():
                assert getattr(ledger, tier.value) + page.nbytes > most, f"{page.story} could have gone to {tier}"

    # -- pages -------------------------------------------------------------------------------------------------------

    def pick(self, picks: list[int], among: Callable[[PageId], bool] = lambda page: True) -> tuple[PageId, ...]:
        living = [page for page in self.rig.truth if among(page)]
        return tuple(dict.fromkeys(living[pick % len(living)] for pick in picks)) if living else ()

    @property
    def written(self) -> set[PageId]:
        """By operations that still run: the pager will hear of it when they end."""
        return {page for operation in self.running for page in operation.written}

    # -- the program -------------------------------------------------------------------------------------------------

    @rule(nbytes=SIZES, unpageable=st.sampled_from(["", "", "", "shared memory"]))
    def create(self, nbytes: int, unpageable: str) -> None:
        self.rig.create(self.next_page, nbytes, unpageable)
        if unpageable:
            self.exported.add(self.next_page)
        self.next_page += 1

    @rule(nbytes=SIZES)
    def load(self, nbytes: int) -> None:
        self.rig.load(self.next_page, nbytes)
        self.next_page += 1

    @rule(faults=FAULTS)
    def files_are_forgotten(self, faults: dict[int, str]) -> None:
        with self.faults(faults):
            self.rig.tell(FilesForgotten())

    @precondition(lambda self: len(self.running) < 3)
    @rule(
        picks=PICKS,
        writes=PICKS,
        new=st.lists(SIZES, max_size=3),
        told=st.booleans(),
        ahead=st.none() | st.tuples(PICKS, PICKS, PICKS),
        waits=st.booleans(),
        droppable=PICKS,
        unrepeatable=st.booleans(),
        faults=FAULTS,
    )
    def operation_begins(
        self,
        picks: list[int],
        writes: list[int],
        new: list[int],
        told: bool,
        ahead: tuple[list[int], list[int], list[int]] | None,
        waits: bool,
        droppable: list[int],
        unrepeatable: bool,
        faults: dict[int, str],
    ) -> None:
        """It may create more than was known beforehand (``told``). What is ``ahead`` may begin beside it; what is
        ``droppable`` had better be dropped until the next begins.
        """
        self.policy.next = None
        self.policy.recipes = {page: self.recipe(page, picks) for page in self.pick(droppable)}
        self.rig.unrepeatable = set(self.policy.recipes) if unrepeatable else set()
        if ahead is not None:
            leaving, coming, dropping = map(self.pick, ahead)
            self.policy.next = Prefetch(leaving, coming, [self.recipe(page, picks) for page in dropping], waits)
            self.rig.unrepeatable |= set(dropping) if unrepeatable else set()
        written = self.pick(writes)
        pages = tuple(dict.fromkeys((*self.pick(picks), *written)))
        new_bytes = sum(new) if told else 0
        with self.faults(faults, pages):
            self.rig.tell(OpBegins(pages, new_bytes, written))
            self.running.append(Operation(pages, written))
            self.rig.read(pages)
            self.rig.write(written)
            self.check_room(new_bytes)
            for nbytes in new:
                self.rig.truth[self.next_page] = self.rig.device[self.next_page] = 0
                self.rig.tell(Created(self.next_page, nbytes))
                self.next_page += 1

    def recipe(self, page: PageId, picks: list[int]) -> Recipe:
        """Of pages that were made before it."""
        return Recipe(page, self.pick(picks, among=lambda other: other < page), sum(picks) % 20)

    @rule(picks=PICKS, faults=FAULTS)
    def copies_end(self, picks: list[int], faults: dict[int, str]) -> None:
        under_way = self.pick(picks, among=lambda page: self.rig.state(page) in (State.EVICTING, State.FETCHING))
        with self.faults(faults):
            self.rig.tell(TransfersDone(under_way))

    def check_room(self, new_bytes: int) -> None:
        pager = self.rig.pager
        if pager.room < new_bytes:
            assert not pager.view.clean
            assert not pager.view.dirty

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 2), faults=FAULTS)
    def operation_ends(self, index: int, faults: dict[int, str]) -> None:
        operation = self.running.pop(index % len(self.running))
        with self.faults(faults):
            self.rig.tell(OpEnds(operation.pages, operation.written))
            if self.rig.pager.room < 0:
                self.check_that_nothing_could_leave()

    @rule(picks=PICKS, faults=FAULTS)
    def die(self, picks: list[int], faults: dict[int, str]) -> None:
        """Also while an operation has it pinned: ``set_`` drops a storage."""
        for page in self.pick(picks[:1]):
            if not self.invalidate(page, faults):
                return
            self.exported.discard(page)
            with self.faults(faults):
                self.rig.die(page)
            self.rig.device.pop(page, None)

    def invalidate(self, page: PageId, faults: dict[int, str]) -> bool:
        """A storage is about to be emptied by hand; whether that is allowed."""
        with self.faults(faults):
            self.rig.tell(Invalidated((page,)))
            return True
        return False

    @rule(picks=PICKS, faults=FAULTS)
    def export(self, picks: list[int], faults: dict[int, str]) -> None:
        pages = self.pick(picks[:2])
        with self.faults(faults, pages):
            self.rig.tell(Exported(pages, "address escaped"))
            self.exported.update(pages)

    @rule(picks=PICKS)
    def scribble(self, picks: list[int]) -> None:
        """Whoever has the address of an exported page writes it, unseen."""
        self.rig.write(self.pick(picks, among=self.exported.__contains__))

    @rule(picks=PICKS, nbytes=SIZES, faults=FAULTS)
    def resize(self, picks: list[int], nbytes: int, faults: dict[int, str]) -> None:
        ready = (State.RESIDENT, State.CLEAN)
        for page in self.pick(picks[:1], among=lambda page: self.rig.state(page) in ready):
            if self.invalidate(page, faults) and self.rig.state(page) in ready:
                with self.faults(faults):
                    self.rig.resize(page, nbytes)

    # -- the user ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.pins) < 3)
    @rule(picks=PICKS, faults=FAULTS)
    def pin(self, picks: list[int], faults: dict[int, str]) -> None:
        pages = self.pick(picks)
        with self.faults(faults, pages):
            self.rig.tell(Pinned(pages))
            self.pins.append(pages)

    @precondition(lambda self: self.pins)
    @rule(index=st.integers(0, 2), picks=PICKS, faults=FAULTS)
    def unpin(self, index: int, picks: list[int], faults: dict[int, str]) -> None:
        """What was pinned may have been written, unseen."""
        pages = self.pins.pop(index % len(self.pins))
        written = self.pick(picks, among=pages.__contains__)
        self.rig.write(written)
        with self.faults(faults):
            self.rig.tell(Unpinned(pages, written))

    @rule(faults=FAULTS)
    def reclaim(self, faults: dict[int, str]) -> None:
        with self.faults(faults):
            self.rig.tell(Reclaim())
            self.check_that_nothing_could_leave()

    @rule(picks=PICKS, faults=FAULTS)
    def restore(self, picks: list[int], faults: dict[int, str]) -> None:
        pages = self.pick(picks)
        with self.faults(faults, used=pages):  # which must not leave for each other
            self.rig.tell(Restore(pages))
            self.rig.read(pages)

    @rule(limit=LIMITS, faults=FAULTS)
    def change_limit(self, limit: int, faults: dict[int, str]) -> None:
        with self.faults(faults):
            self.rig.tell(LimitChanged(limit))
            assert self.rig.pager.limit == limit

    @rule()
    def step(self) -> None:
        self.rig.tell(StepEnded())
        self.fault_in_step = False

    # -- always ------------------------------------------------------------------------------------------------------

    @invariant()
    def all_is_in_order(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.check(self.written)
        living = self.rig.truth.keys()
        held = [page for operation in self.running for page in operation.pages]
        held += [page for pages in self.pins for page in pages]
        for page in self.rig.pager.book:
            assert page.pins == held.count(page.id)
            assert bool(page.unpageable) == (page.id in self.exported)
        self.rig.read(living & (set(held) | self.exported))

    def teardown(self) -> None:
        """The program ends its operations, and all comes back whole."""
        if not hasattr(self, "rig"):
            return
        while self.running:
            self.operation_ends(0, {})
        self.rig.tell(Restore(tuple(self.rig.truth)))
        self.rig.read(self.rig.truth)
        for page in list(self.rig.truth):
            self.rig.die(page)
        self.rig.check()
        ledger = self.rig.pager.book.ledger
        assert (ledger.device, ledger.live, ledger.host, ledger.disk) == (0, 0, 0, 0)


TestPager = PagerMachine.TestCase
TestPager.settings = settings(max_examples=250, stateful_step_count=40)
