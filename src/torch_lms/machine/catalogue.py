"""Machines by name, from ``catalogue.toml`` or a file of the user's. docs/machines.md explains the keys."""

import dataclasses
import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from torch_lms.errors import UsageError
from torch_lms.machine.model import Accelerator, Disk, Link, Machine, Switch
from torch_lms.units import parse_bytes

_FILE = "catalogue.toml"
_SECTION_OF = {"accelerator": "accelerators", "link": "links", "uplink": "links", "disk": "disks"}
_NONE = "none"
"""TOML has no null: this takes away what ``like`` brought."""


def names() -> tuple[str, ...]:
    """The names of the machines of the catalogue, in its order."""
    return tuple(_catalogue()["machines"])


def load(name: str | Path) -> Machine:
    """The machine of that name, or the one that a file describes whose name ends in ``.toml``.

    Raises:
        UsageError: no such machine or file, or a file that does not describe one.
    """
    path = Path(name)
    if path.suffix == ".toml":
        return _built(path.stem, _read(path), where=str(path))
    return _built(str(name), {"like": str(name)}, where=None)


def _built(name: str, table: dict[str, Any], where: str | None) -> Machine:
    try:
        return _machine(name, _Table(_resolved(table, "machines"), ""))
    except UsageError as error:
        if where is None:
            raise
        raise UsageError(f"{where}: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the machine file {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not a TOML file: {error}") from None


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    return tomllib.loads(resources.files("torch_lms.machine").joinpath(_FILE).read_text(encoding="utf-8"))


def text_of(machine: Machine) -> str:
    """The text of a file from which ``load`` makes ``machine``. The machine's name is the file's."""
    figures = dataclasses.asdict(machine)
    del figures["name"]
    return "\n".join(_lines(figures, "")) + "\n"


def _lines(figures: Mapping[str, Any], section: str) -> Iterator[str]:
    for key, value in figures.items():
        if value is None:
            yield f"{key} = {_quoted(_NONE)}"
        elif isinstance(value, str):
            yield f"{key} = {_quoted(value)}"
        elif not isinstance(value, dict):
            yield f"{key} = {value!r}"
    for key, value in figures.items():
        if isinstance(value, dict):
            path = f"{section}.{key}" if section else key
            yield from ("", f"[{path}]", *_lines(value, path))


def _quoted(text: str) -> str:
    return json.dumps(text)  # its escapes are TOML's, too


# -- names and `like` ------------------------------------------------------------------------------------------------


def _resolved(table: Mapping[str, Any], section: str | None) -> dict[str, Any]:
    """``table`` laid over what its ``like`` names, with every name of a part replaced by that part's table."""
    whole = {key: value for key, value in table.items() if key != "like"}
    if section is not None and "like" in table:
        whole = _merged(_entry(table["like"], section), whole)
    for key, value in whole.items():
        if isinstance(value, str) and key in _SECTION_OF and value != _NONE:
            whole[key] = _entry(value, _SECTION_OF[key])
        elif isinstance(value, dict):
            whole[key] = _resolved(value, _SECTION_OF.get(key))
    return whole


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``base`` with the keys of ``over`` replaced. Tables are merged, but for one that names a base of its own."""
    merged = base | over
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict) and "like" not in value:
            merged[key] = _merged(base[key], value)
    return merged


def _entry(name: object, section: str) -> dict[str, Any]:
    entries = _catalogue()[section]
    if isinstance(name, str) and name in entries:
        return _resolved(entries[name], section)
    near = difflib.get_close_matches(str(name), entries)
    hint = f"; near it: {', '.join(near)}" if near else ""
    own = ", or the path of a .toml file" if section == "machines" else ", or a table of its figures"
    raise UsageError(f"no {section[:-1]} is called {name!r}{hint}; give one of: {', '.join(entries)}{own}")


# -- tables to values ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a machine's file: values by key, and the key under which the table itself stands. Messages name it."""

    values: dict[str, Any]
    path: str

    def only(self, kind: type[Any]) -> None:
        """Refuse keys that are no fields of ``kind``; a machine's name is no key, since it is that of its file."""
        known = [field.name for field in fields(kind) if (kind, field.name) != (Machine, "name")]
        for key in self.values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                meant = f"did you mean {near[0]!r}?" if near else f"keys are: {', '.join(known)}"
                raise UsageError(f"unknown key {self.at(key)!r}; {meant}")

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def text(self, key: str) -> str:
        value = self._required(key, "a text")
        if not isinstance(value, str) or not value:
            raise self._wrong(key, "a text", value)
        return value

    def count(self, key: str) -> int:
        value = self._required(key, "a whole number")
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(key, "a whole number", value)
        return value

    def nbytes(self, key: str) -> int:
        value = self._required(key, 'bytes, such as 16e9 as "16GB"')
        return parse_bytes(value, name=self.at(key))

    def number(self, key: str) -> float:
        value = self._required(key, "a number")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(key, "a number", value)
        return float(value)

    def number_or_none(self, key: str) -> float | None:
        return None if self.lacks(key) else self.number(key)

    def table(self, key: str) -> "_Table":
        value = self._required(key, "a table, or a name of the catalogue")
        if not isinstance(value, dict):
            raise self._wrong(key, "a table, or a name of the catalogue", value)
        return _Table(value, self.at(key))

    def lacks(self, key: str) -> bool:
        return bool(self.values.get(key, _NONE) == _NONE)

    def _required(self, key: str, expected: str) -> Any:
        if key not in self.values:
            raise UsageError(f"missing key {self.at(key)!r}: give {expected}, or say `like` and a machine's name")
        return self.values[key]

    def _wrong(self, key: str, expected: str, value: object) -> UsageError:
        return UsageError(f"{self.at(key)!r} must be {expected}; got {value!r}")


def _machine(name: str, table: _Table) -> Machine:
    table.only(Machine)
    return Machine(
        name=name,
        title=table.text("title"),
        gpus=table.count("gpus"),
        accelerator=_accelerator(table.table("accelerator")),
        link=None if table.values.get("link") == _NONE else _link(table.table("link")),
        switch=None if table.lacks("switch") else _switch(table.table("switch")),
        sockets=table.count("sockets"),
        host_bytes=table.nbytes("host_bytes"),
        host_bytes_per_s=table.number("host_bytes_per_s"),
        peer_bytes_per_s=table.number_or_none("peer_bytes_per_s"),
        far_peer_bytes_per_s=table.number_or_none("far_peer_bytes_per_s"),
        disk=None if table.lacks("disk") else _disk(table.table("disk")),
    )


def _accelerator(table: _Table) -> Accelerator:
    table.only(Accelerator)
    return Accelerator(
        name=table.text("name"),
        memory_bytes=table.nbytes("memory_bytes"),
        reserved_bytes=table.nbytes("reserved_bytes"),
        memory_bytes_per_s=table.number("memory_bytes_per_s"),
        fp32_flop_per_s=table.number("fp32_flop_per_s"),
        tf32_flop_per_s=table.number_or_none("tf32_flop_per_s"),
        fp16_flop_per_s=table.number("fp16_flop_per_s"),
        bf16_flop_per_s=table.number_or_none("bf16_flop_per_s"),
        fp64_flop_per_s=table.number("fp64_flop_per_s"),
        launch_s=table.number("launch_s"),
    )


def _link(table: _Table) -> Link:
    table.only(Link)
    return Link(
        nominal_bytes_per_s=table.number("nominal_bytes_per_s"),
        to_device_bytes_per_s=table.number("to_device_bytes_per_s"),
        to_host_bytes_per_s=table.number("to_host_bytes_per_s"),
        duplex_bytes_per_s=table.number_or_none("duplex_bytes_per_s"),
        latency_s=table.number("latency_s"),
    )


def _switch(table: _Table) -> Switch:
    table.only(Switch)
    return Switch(gpus=table.count("gpus"), uplink=_link(table.table("uplink")))


def _disk(table: _Table) -> Disk:
    table.only(Disk)
    return Disk(
        write_bytes_per_s=table.number("write_bytes_per_s"),
        read_bytes_per_s=table.number("read_bytes_per_s"),
        nbytes=table.nbytes("nbytes"),
    )
