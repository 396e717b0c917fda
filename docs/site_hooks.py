"""What mkdocs is told of files outside this folder: the README is the first page, and linked data comes along.

On GitHub these documents link to each other from where they are. On the site all is in one tree: a link that leads out
of ``docs`` leads to a copy in the site's root, and the README's links into ``docs`` lose that folder.

GitHub draws diagrams of Mermaid. The site needs no network, and shows a picture of each, drawn beforehand.
"""

import hashlib
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]

PAGES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Pages of the site that are documents of the root."""

_DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_DRAW = """No picture of a diagram on {page}: expected docs/{picture}. Draw it, and remove that of before:
    cat > diagram.mmd <<'END'
{diagram}END
    npx -y @mermaid-js/mermaid-cli -b white -i diagram.mmd -o docs/{picture}
With a Chromium of yours, or as root: -p FILE, of {{"executablePath": "/usr/bin/chromium", "args": ["--no-sandbox"]}}"""

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


def picture_of(diagram: str) -> str:
    """Where the picture of a diagram is, below ``docs``: a diagram that has changed has none until it is drawn anew."""
    return f"pictures/diagram-{hashlib.sha256(diagram.encode()).hexdigest()[:8]}.svg"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let the links of a page lead to where their targets are on the site, and show diagrams as pictures.

    Raises:
        PluginError: a diagram was not drawn.
    """
    source = ROOT / PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def moved(match: re.Match[str]) -> str:
        target = _on_site((source.parent / match[1]).resolve())
        return "../" * page.file.src_uri.count("/") + target

    def drawn(match: re.Match[str]) -> str:
        picture = picture_of(match[1])
        if not (ROOT / "docs" / picture).exists():
            raise PluginError(_DRAW.format(page=page.file.src_uri, picture=picture, diagram=match[1]))
        return f"![a diagram]({'../' * page.file.src_uri.count('/')}{picture})"

    return _DIAGRAM.sub(drawn, _LINK.sub(moved, markdown))


def _on_site(target: Path) -> str:
    """Where a file of the repository is on the site, from its root."""
    inside = PurePosixPath(target.relative_to(ROOT))
    for page, source in PAGES.items():
        if str(inside) == source:
            return page
    return str(inside).removeprefix("docs/")
