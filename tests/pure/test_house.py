"""Sources are measured as the review measured them (``python -m tests.house``)."""

from tests.house import MEASURES, REVIEWED, SOURCES, House, measure

SOURCE = '''"""A module."""

# A comment alone.
LIMIT = 3  # and one beside code
"""Of an attribute."""


class Room:
    """Of a house."""

    @property
    def size(self) -> int:
        a, b = 1, 2
        return sum(x for x in (a, b))

    def _hidden(self) -> None: ...


def bare() -> None:
    return None
'''


def test_a_file_is_measured() -> None:
    house = House()
    house.add("room.py", SOURCE)
    assert house.file_lines == [len(SOURCE.splitlines())]
    assert sorted(house.functions) == [(1, "_hidden (room.py)"), (2, "bare (room.py)"), (3, "size (room.py)")]
    assert house.classes == [(9, 2, "Room (room.py)")]
    assert (house.full_lines, house.code_lines, house.comments) == (12, 9, 2)
    assert (house.comprehensions, house.tuple_assignments) == (1, 1)
    assert house.public == [True, False, False]
    assert house.fragments == ["room.py: Of a house."]


def test_the_measures_are_those_of_the_review() -> None:
    assert {len(row) for row in REVIEWED.values()} == {len(MEASURES)}
    assert len(measure([SOURCES]).row()) == len(MEASURES)
