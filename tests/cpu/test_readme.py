"""The README's example runs as it stands, and pages."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_example() -> None:
    example = re.search(r"<!-- example -->\n```python\n(.*?)```", README, re.DOTALL)
    assert example is not None
    ended = subprocess.run([sys.executable, "-c", example[1]], text=True, capture_output=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"LMS \(\w+\): 3 steps, demand \d+ MB, limit 150 MB", ended.stdout)
    moved = re.search(r"in (\d+) evictions", ended.stdout)
    assert moved is not None
    assert int(moved[1]) > 0
