"""Code and documents keep to the words of docs/design.md (``python -m tests.old_words`` prints what does not)."""

import pytest

from tests.old_words import ALLOWED, DESIGN, KINDS, ROOT, Old, hits, hits_in, old_words

IS_HELD = True
"""Whether the old words are gone. Once they are, this is True for good."""


@pytest.mark.xfail(not IS_HELD, reason="the old words are being replaced", strict=False)
def test_no_old_word_is_left() -> None:
    found = hits(old_words(DESIGN.read_text()))
    assert not found, "\n".join(map(str, found))


def test_the_table_is_understood() -> None:
    olds = old_words(DESIGN.read_text())
    assert len({old.word for old in olds}) == len(olds)
    assert {old.kind for old in olds} == set(KINDS)
    assert all(old.word and old.instead for old in olds)


def test_what_is_allowed_exists() -> None:
    known = {old.word for old in old_words(DESIGN.read_text())}
    for (file, word), reason in ALLOWED.items():
        assert (ROOT / file).exists(), file
        assert word in known
        assert reason


def found(kind: str, word: str, text: str, file: str = "file.py") -> list[int]:
    return [line for line, _ in hits_in(file, text, [Old(word, "another", kind)])]


@pytest.mark.parametrize("text", ["made_again = 1", "class MadeAgain: ...", "# Made again", "'''made\nagain'''"])
def test_a_word_is_found_anywhere(text: str) -> None:
    assert found("word", "made again", text) == [1]


@pytest.mark.parametrize("text", ["remade_again = 1", "# made. Again", "# made it again", "# made against"])
def test_other_words_are_not(text: str) -> None:
    assert found("word", "made again", text) == []


def test_a_word_is_found_in_the_name_of_a_file() -> None:
    assert found("word", "remakes", "x = 1", "test_planner_remakes.py") == [1]


def test_a_name_is_a_whole_identifier() -> None:
    code = "x = 1\nTold = ToldBy = told = 2\n# Told of it, as ``Told`` says\n"
    assert found("name", "Told", code) == [2, 3]
    assert found("name", "Told", "Told of it\n\nby `Told`", "page.md") == [3]


def test_a_part_is_one_of_an_identifier() -> None:
    assert found("part", "fly", "self.fly(x)\n_fly_by = FlyBy = 1\nbutterfly = 'they fly'\n") == [1, 2, 2]


def test_a_part_may_be_several_words() -> None:
    assert found("part", "stand_in", "stand_in = StandIn = stand_inside = 1  # they stand in a row\n") == [1, 1]


def test_a_hyphen_counts_if_there_is_one() -> None:
    assert found("word", "stand-in", "a stand-in\nthey stand in a row", "page.md") == [1]


def test_a_prefix_begins_an_identifier() -> None:
    assert found("prefix", "_MOST_", "_MOST_OPS = 1\nUP_TO_MOST_ = 2\n") == [1]


def test_a_file_is_named_or_is_there() -> None:
    assert found("file", "told.py", "x = 1\n", "told.py") == [1]
    assert found("file", "told.py", "# see\n# told.py, and retold.py\n") == [2]


def test_the_table_itself_is_not_searched() -> None:
    table = "<!-- begin: old words -->\n| a | b | c |\n|---|---|---|\n| `told` | x | word |\n<!-- end: old words -->\n"
    assert old_words(table) == [Old("told", "x", "word")]
    assert found("word", "told", table + "told", "page.md") == [6]
