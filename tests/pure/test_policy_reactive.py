"""Who leaves first."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from torch_lms.policy import FirstUse, Reactive, View
from torch_lms.residency import Page

NOW = 1000


def page(number: int, nbytes: int = 10, last_use: int = 0) -> Page:
    return Page(number, nbytes, last_use=last_use)


def view(clean: Iterable[Page] = (), dirty: Iterable[Page] = ()) -> View:
    return View({page.id: page for page in clean}, {page.id: page for page in dirty}, NOW)


def order(view: View) -> list[int]:
    """As the pager takes them: one that left does not leave again."""
    return list(dict.fromkeys(page.id for page in Reactive().victims(view)))


def test_nobody() -> None:
    assert order(view()) == []


def test_its_name() -> None:
    assert Reactive().name == "reactive"


def test_clean_before_dirty() -> None:
    assert order(view(clean=[page(1)], dirty=[page(2, nbytes=10**9)])) == [1, 2]


def test_a_clean_page_just_used_goes_last() -> None:
    just_used, long_unused = page(1, last_use=NOW - 1), page(2, last_use=NOW - 100)
    assert order(view(clean=[just_used, long_unused], dirty=[page(3)])) == [2, 3, 1]


def test_clean_ones_by_last_use() -> None:
    assert order(view(clean=[page(3), page(1), page(2)])) == [3, 1, 2]


def test_of_equal_size_the_longest_inactive() -> None:
    assert order(view(dirty=[page(1, last_use=500), page(2, last_use=100), page(3, last_use=900)])) == [2, 1, 3]


def test_of_equal_age_the_largest() -> None:
    assert order(view(dirty=[page(1, nbytes=10), page(2, nbytes=30), page(3, nbytes=20)])) == [2, 3, 1]


def test_age_times_size() -> None:
    old_and_small, young_and_large = page(1, nbytes=10, last_use=0), page(2, nbytes=200, last_use=NOW - 60)
    assert order(view(dirty=[old_and_small, young_and_large])) == [2, 1]  # 10,000 against 12,000


def test_a_large_young_page_does_not_leave_before_a_window_of_older_ones() -> None:
    older = [page(number, last_use=1) for number in range(32)]
    young = page(99, nbytes=10**9, last_use=NOW - 1)
    assert order(view(dirty=[*older, young]))[-1] == 99


pages = st.builds(page, st.integers(0, 200), st.integers(1, 10**9), st.integers(0, NOW))


@given(
    st.lists(pages, unique_by=lambda page: page.id, max_size=100).flatmap(
        lambda all_pages: st.tuples(st.just(all_pages), st.integers(0, len(all_pages)))
    )
)
def test_every_page_is_named(drawn: tuple[list[Page], int]) -> None:
    all_pages, cut = drawn
    assert sorted(order(view(all_pages[:cut], all_pages[cut:]))) == sorted(page.id for page in all_pages)


def test_victims_may_leave_while_they_are_named() -> None:
    everyone = [page(number, last_use=NOW * (number % 2)) for number in range(100)]
    clean = {page.id: page for page in everyone[:50]}
    dirty = {page.id: page for page in everyone[50:]}
    named = 0
    for victim in Reactive().victims(View(clean, dirty, NOW)):
        named += bool(clean.pop(victim.id, None) or dirty.pop(victim.id, None))
    assert (named, clean, dirty) == (100, {}, {})


def test_an_outlook_names_idle_victims_in_the_order_of_eviction() -> None:
    clean = [page(1, last_use=NOW - 1), page(2, last_use=NOW - 100)]
    dirty = [page(3, nbytes=10), page(4, nbytes=30), page(5, last_use=NOW - 3)]
    outlook = Reactive().outlook(view(clean, dirty))
    assert outlook is not None
    assert outlook.leaving == [2, 4, 3]


def test_where_the_program_goes_in_rounds_there_is_no_outlook() -> None:
    """Who leaves depends on what is needed next."""
    reactive = Reactive()
    pages = view(dirty=[page(1)])
    pages.limit, pages.away = 1000, {9: page(9)}
    for pages.step_began in (0, 500):
        assert reactive.outlook(pages) is not None
        reactive.went_on(pages, [FirstUse(NOW, 10 + number, 100) for number in range(4)], ran_short=True)
    pages.step_began = 600
    assert reactive.outlook(pages) is None
