"""Bytes and seconds as people write them.

Decimal prefixes are powers of 1000 (``"12GB"`` is 12e9), binary ones of 1024 (``"11.5GiB"``), as in IEC 80000-13.
"""

import re

from torch_lms.errors import UsageError

_FACTORS = {
    "": 1,
    **{prefix: 1000**power for power, prefix in enumerate("kmgtp", start=1)},
    **{prefix + "i": 1024**power for power, prefix in enumerate("kmgtp", start=1)},
}
_SIZE = re.compile(
    r"\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?:(?P<prefix>[kmgtp]i?|)b|(?P<percent>%))?\s*", re.IGNORECASE
)
_MOST = 1e18
_FORMS = 'bytes as an int, a string such as "12GB" (12e9 bytes), "11.5GiB", "80%"'


def parse_bytes(value: int | str, *, name: str = "size", whole: int | None = None) -> int:
    """Bytes meant by ``value``; ``whole`` is what a percentage is taken of (None: percentages are refused).

    Raises:
        UsageError: not a size, negative, a percentage above 100, or a percentage of nothing.
    """
    forms = _FORMS if whole is not None else _FORMS.rsplit(",", 1)[0]
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UsageError(f"{name} must be {forms}; got {value!r}")
    if isinstance(value, int):
        if value < 0:
            raise UsageError(f"{name} must not be negative; got {value}")
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise UsageError(f"{name} must be {forms}; got {value!r}")
    number = float(match["number"])
    if number > _MOST:
        raise UsageError(f"{name} is more than anything holds; got {value!r}")
    if match["percent"]:
        if whole is None:
            raise UsageError(f"{name} takes no percentage; give {forms}; got {value!r}")
        if number > 100:
            raise UsageError(f"{name} must be at most 100%; got {value!r}")
        return min(whole, int(whole * number / 100))  # large numbers are rounded
    factor: int = _FACTORS[(match["prefix"] or "").lower()]
    return round(number * factor)


def format_bytes(nbytes: float) -> str:
    """``nbytes`` for people, in decimal prefixes: ``1234567`` is ``"1.23 MB"``."""
    sign, size = ("-" if nbytes < 0 else ""), abs(nbytes)
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if size < 999.5 or unit == "PB":
            return f"{sign}{size:.0f} B" if unit == "B" else f"{sign}{size:.3g} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def format_seconds(seconds: float) -> str:
    """``seconds`` for people: ``"12.3 us"``, ``"4.56 ms"``, ``"7.89 s"``, ``"2 min 5 s"``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"
