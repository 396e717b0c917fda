"""A wheel with the native interposer is of one platform and one Python; without it, of any (``nox -s wheels``)."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelTag(BuildHookInterface):
    """Has the wheel named by what it holds."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is built."""
        if any(Path(self.root, "src", "torch_lms", "native", "lib").glob("*.so")):
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
