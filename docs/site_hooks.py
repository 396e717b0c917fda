"""What mkdocs is told of files outside this folder: the README is the first page, and linked data comes along.

On GitHub these documents link to each other from where they are. On the site all is in one tree: a link that leads out
of ``docs`` leads to a copy in the site's root, and the README's links into ``docs`` lose that folder.
"""

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]

PAGES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Pages of the site that are documents of the root."""

_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the root's documents, and all that any document links to."""
    for page, source in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    known = {file.src_uri for file in files}
    for document in [*(ROOT / "docs").rglob("*.md"), *(ROOT / source for source in PAGES.values())]:
        for link in _LINK.findall(document.read_text()):
            target = (document.parent / link).resolve()
            wanted = _on_site(target)
            if target.is_file() and wanted not in known:
                known.add(wanted)
                files.append(File.generated(config, wanted, abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let the links of a page lead to where their targets are on the site."""
    source = ROOT / PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def moved(match: re.Match[str]) -> str:
        target = _on_site((source.parent / match[1]).resolve())
        return "../" * page.file.src_uri.count("/") + target

    return _LINK.sub(moved, markdown)


def _on_site(target: Path) -> str:
    """Where a file of the repository is on the site, from its root."""
    inside = PurePosixPath(target.relative_to(ROOT))
    for page, source in PAGES.items():
        if str(inside) == source:
            return page
    return str(inside).removeprefix("docs/")
