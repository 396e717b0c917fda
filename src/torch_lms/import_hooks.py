"""Acts once a module has been imported, without importing it."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Action = Callable[[], None]


def once_imported(name: str, action: Action) -> Callable[[], None]:
    """Call ``action`` right after the first ``import name`` has succeeded; now, if it already has.

    Returns:
        A function that gives up waiting. It may be called at any time.
    """
    if name in sys.modules:
        action()
        return lambda: None
    return _WATCHER.wait(name, action)


class _Watcher(MetaPathFinder):
    """Finds modules that somebody waits for as the other finders do, and has their loader act afterwards.

    There is one, which stays in ``sys.meta_path``. Python goes through that list without a copy: were a finder
    taken out, an import under way in another thread would miss the next one, and with it its module.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[Action]] = {}

    def wait(self, name: str, action: Action) -> Callable[[], None]:
        actions = self._waiting.setdefault(name, [])
        actions.append(action)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

        def give_up() -> None:
            if action in actions:
                actions.remove(action)

        return give_up

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self._waiting.get(fullname):
            return None
        spec = self._found_by_others(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader = spec.loader
            load = loader.exec_module

            def load_and_act(module: ModuleType) -> None:
                load(module)
                del loader.exec_module  # the class's is there again
                actions = self._waiting.pop(fullname, [])
                while actions:  # an action may have others given up
                    actions.pop(0)()

            loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec

    def _found_by_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is not self and (spec := finder.find_spec(fullname, path, target)) is not None:
                return spec
        return None


_WATCHER = _Watcher()
