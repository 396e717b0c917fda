"""Acts once a module has been imported, without importing it."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def once_imported(name: str, action: Callable[[], None]) -> Callable[[], None]:
    """Call ``action`` right after the first ``import name`` has succeeded; now, if it already has.

    Returns:
        A function that gives up waiting. It may be called at any time.
    """
    if name in sys.modules:
        action()
        return lambda: None
    watcher = _Watcher(name, action)
    sys.meta_path.insert(0, watcher)
    return watcher.stop


class _Watcher(MetaPathFinder):
    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as the other finders do; its loader then acts when it has loaded it."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            loader = spec.loader
            load = loader.exec_module

            def load_and_act(module: ModuleType) -> None:
                load(module)
                vars(loader).pop("exec_module", None)  # back to the class's; another watcher may have done it
                if self in sys.meta_path:
                    self.stop()
                    self._action()

            loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec
