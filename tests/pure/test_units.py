"""Sizes as people write them, and as we show them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_lms.errors import UsageError
from torch_lms.units import format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0B", 0),
        ("1B", 1),
        ("4096 b", 4096),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("600MB", 600_000_000),
        ("1MiB", 1 << 20),
        ("12GB", 12_000_000_000),
        ("12Gb", 12_000_000_000),
        ("11.5GiB", 11.5 * (1 << 30)),
        ("2TB", 2 * 10**12),
        ("2TiB", 2 << 40),
        ("1PiB", 1 << 50),
        (".5GB", 500_000_000),
        ("1.GB", 10**9),
        ("  7  MB  ", 7_000_000),
        ("4096", 4096),
        (0, 0),
        (123, 123),
    ],
)
def test_sizes(text: int | str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(("text", "nbytes"), [("0%", 0), ("80%", 800), ("12.5 %", 125), ("100%", 1000), ("4%", 40)])
def test_percentages_of_a_whole(text: str, nbytes: int) -> None:
    assert parse_bytes(text, whole=1000) == nbytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "GB",
        "12G",
        "12 GBs",
        "12XB",
        "1e9B",
        "-1GB",
        "+1GB",
        "1,5GB",
        "0x10B",
        "12GB 3MB",
        "auto",
        "nan",
        "infB",
        "80 percent",
        "%",
        "1..5GB",
        "1.5.GB",
        "12 iB",
        "12kiBB",
    ],
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_bytes(text, name="limit", whole=1000)
    assert str(error.value) == (
        f'limit must be bytes as an int, a string such as "12GB" (12e9 bytes), "11.5GiB", "80%"; got {text!r}'
    )


@pytest.mark.parametrize("value", [True, False, None, 1.5, 12.0, [], (1,), b"1GB", 1j, object])
def test_what_is_neither_an_int_nor_a_string(value: object) -> None:
    with pytest.raises(UsageError, match="min_size must be bytes as an int"):
        parse_bytes(value, name="min_size")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1, -(10**30)])
def test_negative(value: int) -> None:
    with pytest.raises(UsageError, match=f"limit must not be negative; got {value}"):
        parse_bytes(value, name="limit")


def test_percentage_of_nothing() -> None:
    with pytest.raises(UsageError) as error:
        parse_bytes("80%", name="min_size")
    message = str(error.value)
    assert "min_size takes no percentage" in message
    assert '"80%"' not in message.split("got")[0]  # a form that is refused is not offered


@pytest.mark.parametrize("text", ["101%", "100.1%", "1000000%"])
def test_percentage_above_all(text: str) -> None:
    with pytest.raises(UsageError, match="limit must be at most 100%"):
        parse_bytes(text, name="limit", whole=1000)


def test_absurd_sizes_are_sizes() -> None:
    """Whether a device has so much is for others to say."""
    assert parse_bytes("999999PB") == pytest.approx(999999 * 10**15)
    assert parse_bytes(10**30) == 10**30


@given(st.integers(0, 2**60))
def test_ints_are_bytes(nbytes: int) -> None:
    assert parse_bytes(nbytes) == nbytes
    assert parse_bytes(nbytes, whole=1) == nbytes


@given(st.integers(0, 2**50))
def test_bytes_in_full_round_trip(nbytes: int) -> None:
    assert parse_bytes(f"{nbytes}B") == nbytes


@given(st.integers(0, 999 * 10**12))
def test_what_we_show_is_understood(nbytes: int) -> None:
    """To the three digits that are shown."""
    assert math.isclose(parse_bytes(format_bytes(nbytes)), nbytes, rel_tol=0.5e-2)


@given(st.integers(1, 2**60), st.floats(0, 100))
def test_a_percentage_is_a_part(whole: int, percent: float) -> None:
    assert 0 <= parse_bytes(f"{percent:.6f}%", whole=whole) <= whole


@given(st.text(max_size=20))
def test_any_text_is_a_size_or_a_usage_error(text: str) -> None:
    try:
        nbytes = parse_bytes(text, whole=1 << 40)
    except UsageError:
        return
    assert isinstance(nbytes, int)
    assert nbytes >= 0


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1234567, "1.23 MB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (12e9, "12 GB"),
        (1 << 40, "1.1 TB"),
        (-2_500_000, "-2.5 MB"),
    ],
)
def test_bytes_for_people(nbytes: float, text: str) -> None:
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 us"),
        (12.34e-6, "12.3 us"),
        (4.56e-3, "4.56 ms"),
        (7.89, "7.89 s"),
        (119.0, "119 s"),
        (125.4, "2 min 5 s"),
        (3600, "60 min 0 s"),
    ],
)
def test_seconds_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
