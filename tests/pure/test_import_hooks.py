"""Actions that wait for a module."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import pytest

from torch_lms.import_hooks import once_imported

NAME = "a_module_that_is_waited_for"


@pytest.fixture(name="module")
def file_of_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / f"{NAME}.py"
    file.write_text("is_loaded = True\n")
    yield file
    sys.modules.pop(NAME, None)


def test_actions_follow_the_import_in_their_order(module: Path) -> None:
    seen: list[tuple[str, bool]] = []
    for name in ("first", "second"):
        once_imported(NAME, lambda name=name: seen.append((name, sys.modules[NAME].is_loaded)))  # type: ignore[misc]
    assert not seen
    loader = import_module(NAME).__loader__
    assert seen == [("first", True), ("second", True)]
    assert "exec_module" not in vars(loader)
    once_imported(NAME, lambda: seen.append(("now", True)))
    assert seen[-1] == ("now", True)


def test_an_action_that_was_given_up_is_not_called(module: Path) -> None:
    seen: list[str] = []
    give_up = once_imported(NAME, lambda: seen.append("given up"))
    once_imported(NAME, lambda: seen.append("waiting"))
    give_up()
    give_up()
    import_module(NAME)
    assert seen == ["waiting"]


def test_an_import_that_fails_is_waited_for_again(module: Path) -> None:
    seen: list[str] = []
    once_imported(NAME, lambda: seen.append("imported"))
    module.write_text("raise OSError('not now')\n")
    with pytest.raises(OSError, match="not now"):
        import_module(NAME)
    assert not seen
    module.write_text("is_loaded = True\n# no longer\n")
    import_module(NAME)
    assert seen == ["imported"]


class Meanwhile(MetaPathFinder):
    """Does something in the midst of an import, as another thread may."""

    def __init__(self, does: Callable[[], None]) -> None:
        self._does = does

    def find_spec(self, *_: object) -> ModuleSpec | None:  # type: ignore[override]
        self._does()
        return None


def test_another_import_under_way_misses_no_finder(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_up = once_imported("another_module_that_is_waited_for", lambda: None)
    finders = list(sys.meta_path)
    finders.insert(finders.index(PathFinder), Meanwhile(give_up))  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "meta_path", finders)
    assert import_module(NAME).is_loaded
