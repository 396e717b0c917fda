"""The shares of its peaks that a processor reaches, by the kind of operation: measured, or assumed."""

import json
import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from torch_lms.errors import UsageError
from torch_lms.machine.host_cost import INTERPOSERS, HostCost
from torch_lms.machine.model import Accelerator

KINDS = ("matrix", "convolution", "convolution3d", "depthwise", "pooling", "normalization", "elementwise", "copy")
"""The kinds of operations (see ``torch_lms.trace.Work``)."""

AUTO = "auto"
"""Instead of the name of an interposer: the fastest that there is."""

_FOLDER = "calibrations"
_SHIPPED = "torch_lms.machine.calibrations"
_DEFAULT = "default.toml"


class Efficiency(NamedTuple):
    """Shares of the peaks that operations of a kind reach: of the arithmetic, and of the memory's speed."""

    flops: float
    memory: float


@dataclass(frozen=True)
class Calibration:
    """What one processor reaches of its peaks, and what LMS itself costs on it.

    Attributes:
        accelerator: the processor's name; "" if it is for any.
        efficiencies: by kind.
        error: the median relative error of the times that it predicts, if it was checked; a guess where it was not.
        source: where the figures come from.
        host_costs: what LMS costs the host, by interposer; of each that is missing, the default.
        paging_byte_s: seconds that the system takes to give memory for a byte of a page that was fetched or recomputed,
            where a processor computes in the host's memory; 0 elsewhere, or if nobody measured it.
    """

    accelerator: str
    efficiencies: Mapping[str, Efficiency]
    error: float
    source: str
    host_costs: Mapping[str, HostCost] = field(default_factory=dict)
    paging_byte_s: float = 0.0

    def __post_init__(self) -> None:
        unknown = [name for name in self.host_costs if name not in INTERPOSERS]
        if unknown:
            raise UsageError(f"interposers are {', '.join(INTERPOSERS)}; got {', '.join(unknown)}")
        missing = [kind for kind in KINDS if kind not in self.efficiencies]
        if missing:
            raise UsageError(f"a calibration needs the kinds {', '.join(KINDS)}; missing: {', '.join(missing)}")
        if not all(0 <= value < math.inf for value in (self.error, self.paging_byte_s)):
            raise UsageError(
                f"error and paging_byte_s must be numbers of at least 0; got {self.error!r} and {self.paging_byte_s!r}"
            )
        for kind, shares in self.efficiencies.items():
            if not all(0 < share < math.inf for share in shares):
                raise UsageError(f"{kind}: shares must be positive numbers; got {tuple(shares)}")

    def interposer(self, asked: str = AUTO) -> str:
        """The name of the interposer meant by ``asked``: that one, or with "auto" the fastest that is available.

        Raises:
            UsageError: there is no interposer of that name.
        """
        if asked == AUTO:
            return next(name for name in INTERPOSERS if self.host_cost(name).is_available)
        if asked not in INTERPOSERS:
            raise UsageError(f"interposer must be one of {', '.join((AUTO, *INTERPOSERS))}; got {asked!r}")
        return asked

    def host_cost(self, interposer: str) -> HostCost:
        """What LMS costs the host if it is interposed so: as measured, else the default."""
        measured = self.host_costs.get(interposer)
        return default_host_costs()[interposer] if measured is None else measured


@cache
def default_host_costs() -> Mapping[str, HostCost]:
    """What LMS costs a host where nobody has measured it, by interposer. docs/machines.md gives the reasons."""
    return _read(_shipped_text(_DEFAULT), _DEFAULT).host_costs


def config_dir() -> Path:
    """The folder of the user's own machines and calibrations."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "torch-lms"


def calibration_for(accelerator: Accelerator) -> Calibration:
    """The user's own calibration for that processor, else the one that is shipped, else the default one.

    Raises:
        UsageError: there is a file, but it cannot be read.
    """
    name = f"{_slug(accelerator.name)}.toml"
    own = config_dir() / _FOLDER / name
    if own.is_file():
        return _read(own.read_text(encoding="utf-8"), str(own))
    if not (resources.files(_SHIPPED) / name).is_file():
        name = _DEFAULT
    return _read(_shipped_text(name), name)


def _shipped_text(name: str) -> str:
    return (resources.files(_SHIPPED) / name).read_text(encoding="utf-8")


def save_calibration(calibration: Calibration) -> Path:
    """Write ``calibration`` to the user's own; returns the file.

    Raises:
        OSError: the file cannot be written.
    """
    path = config_dir() / _FOLDER / f"{_slug(calibration.accelerator)}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(calibration), encoding="utf-8")
    return path


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _text(calibration: Calibration) -> str:
    lines = [
        f"accelerator = {_quoted(calibration.accelerator)}",
        f"error = {calibration.error:.3g}",
        f"source = {_quoted(calibration.source)}",
        f"paging_byte_s = {calibration.paging_byte_s:.4g}",
    ]
    for kind, shares in calibration.efficiencies.items():
        lines += ["", f"[efficiencies.{kind}]", f"flops = {shares.flops:.4g}", f"memory = {shares.memory:.4g}"]
    for interposer, cost in calibration.host_costs.items():
        lines += ["", f"[host_costs.{interposer}]", *_cost_lines(cost)]
    return "\n".join(lines) + "\n"


def _cost_lines(cost: HostCost) -> Iterator[str]:
    yield f"op_s = {cost.op_s:.4g}"
    yield f"short_op_s = {cost.short_op_s:.4g}"
    yield f"action_s = {cost.action_s:.4g}"
    yield f"source = {_quoted(cost.source)}"
    if cost.launch_s is not None:
        yield f"launch_s = {cost.launch_s:.4g}"
    if not cost.is_available:
        yield "is_available = false"


def _quoted(text: str) -> str:
    return json.dumps(text)  # its escapes are TOML's, too


def _read(text: str, where: str) -> Calibration:
    try:
        table: dict[str, Any] = tomllib.loads(text)
        shares = {kind: Efficiency(**values) for kind, values in table["efficiencies"].items()}
        costs = {name: HostCost(**values) for name, values in table.get("host_costs", {}).items()}
        return Calibration(
            table["accelerator"],
            shares,
            float(table["error"]),
            table["source"],
            host_costs=costs,
            paging_byte_s=float(table.get("paging_byte_s", 0.0)),
        )
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{where}: expected a calibration as `torch-lms doctor --calibrate` writes it; got {error!r}. "
            f"Calibrate anew, or delete the file"
        ) from error
