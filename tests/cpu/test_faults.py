"""Every fault of the table is met with nothing lost. ``python -m tests.faults`` prints the table."""

from pathlib import Path

import pytest

from tests.faults import FAULTS, KNOWN_BROKEN, NotHere, Row


def _case(name: str) -> object:
    reason = KNOWN_BROKEN.get(name)
    return pytest.param(name, marks=[pytest.mark.xfail(reason=reason, strict=True)] if reason else [])


@pytest.mark.parametrize("name", [_case(name) for name in FAULTS])
def test_the_fault_is_met(name: str, tmp_path: Path) -> None:
    try:
        row = FAULTS[name](tmp_path)
    except NotHere as error:
        pytest.skip(str(error))
    assert isinstance(row, Row)


def test_what_is_known_to_be_broken_is_in_the_table() -> None:
    assert KNOWN_BROKEN.keys() <= FAULTS.keys()
