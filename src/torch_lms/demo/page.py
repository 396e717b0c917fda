"""The demo's report: what was found, the last steps in time, the picture."""

import json
from pathlib import Path

from torch_lms.demo.report import Demo, as_json
from torch_lms.output import to_plain
from torch_lms.report.page import page
from torch_lms.report.read import read_all


def demo_page(demo: Demo, folder: Path, picture: Path, made_by: str) -> str:
    """The HTML of the report. ``folder`` has the timelines."""
    found = folder / "demo.json"
    found.write_text(json.dumps(to_plain(as_json(demo))))
    timelines = [path for path in (folder / "lms.json", folder / "moves.json") if path.is_file()]
    pictures = [picture] if picture.is_file() else []
    return page(read_all([found, *timelines, *pictures]), "torch-lms demo", made_by)
