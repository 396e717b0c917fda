"""The tree in the docstring is the tree in the code."""

import inspect
import re

import pytest

from torch_lms import errors
from torch_lms.errors import LmsError

CLASSES = {
    name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and kind.__module__ == errors.__name__
}
LINE = re.compile(r"(?P<indent>[ |]*)(?:\+-- )?(?P<name>[A-Z]\w+)(?:\s+\(also (?P<also>\w+)\))?")


def drawn_tree() -> dict[str, tuple[str, str | None]]:
    """Of each class in the docstring: under which it is drawn, and its second base."""
    assert errors.__doc__ is not None
    tree: dict[str, tuple[str, str | None]] = {}
    branch: list[str] = []
    for line in errors.__doc__.splitlines():
        match = LINE.match(line.removeprefix("    ")) if line.startswith("    ") else None
        if match is None:
            continue
        depth = (len(match["indent"]) // 4) + ("+-- " in line)
        branch[depth:] = [match["name"]]
        tree[match["name"]] = (branch[depth - 1] if depth else "", match["also"])
    return tree


def test_every_class_is_drawn() -> None:
    assert drawn_tree().keys() == CLASSES.keys()


@pytest.mark.parametrize("name", CLASSES)
def test_the_bases_are_those_drawn(name: str) -> None:
    above, also = drawn_tree()[name]
    ours = [base.__name__ for base in CLASSES[name].__bases__ if base.__module__ == errors.__name__]
    foreign = [base.__name__ for base in CLASSES[name].__bases__ if base.__module__ != errors.__name__]
    if name == "LmsError":
        assert (ours, foreign) == ([], ["Exception"])
    else:
        assert (ours, foreign) == ([above], [also] if also else [])


@pytest.mark.parametrize("name", CLASSES)
def test_each_says_what_it_means(name: str) -> None:
    assert issubclass(CLASSES[name], LmsError)
    assert CLASSES[name].__doc__


def test_what_a_program_that_knows_only_pytorch_catches() -> None:
    """A batch-size finder catches RuntimeError, a trainer OSError, an argument parser ValueError."""
    assert issubclass(errors.WorkingSetError, RuntimeError)
    assert issubclass(errors.StoreFullError, OSError)
    assert issubclass(errors.SessionError, ValueError)


@pytest.mark.parametrize("name", CLASSES)
def test_a_message_survives(name: str) -> None:
    assert str(CLASSES[name]("what went wrong")) == "what went wrong"
