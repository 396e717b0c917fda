"""Links and anchors of all documents, and what the site is made of, without building it."""

import re
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from documents import DOCUMENTS, ROOT, links, slugs

import torch_lms

LINKING = [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"]

SITE = (ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize("document", LINKING, ids=lambda document: str(document.relative_to(ROOT)))
def test_links_and_anchors_lead_somewhere(document: Path) -> None:
    """On GitHub, and on the site: both make an anchor of a heading, each in its way."""
    for link in links(document):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{document.name} links to {link}: there is no such file"
        if anchor:
            known = slugs(target)
            assert anchor in known, f"{document.name} links to {link}: {target.name} has no such heading"
            assert known[anchor] == anchor, f"{link} leads nowhere on the site, where it is #{known[anchor]}"


def test_every_document_is_on_the_site() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", SITE.split("\nnav:\n")[1], re.MULTILINE))
    of_docs = {str(file.relative_to(ROOT / "docs")) for file in (ROOT / "docs").rglob("*.md")}
    assert listed == of_docs | {"index.md", "contributing.md", "changelog.md"}


def test_every_public_name_has_its_docstring_on_the_site() -> None:
    shown = re.findall(r"^::: torch_lms\.([\w.]+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    public = {name for name in torch_lms.__all__ if not name.startswith("__")}
    errors = {name for name in public if name.endswith("Error")}  # of the module, all at once
    assert "errors" in shown
    assert public - errors <= set(shown)
    for name in set(shown) - public:
        module = f"torch_lms.{name}"
        assert (ROOT / "src" / Path(*module.split("."))).is_dir() or _is_in_a_module(module), name


def _is_in_a_module(name: str) -> bool:
    if (ROOT / "src" / Path(*name.split("."))).with_suffix(".py").exists():
        return True
    parent = name.rsplit(".", 1)[0]
    return find_spec(parent) is not None


def test_the_site_loads_nothing_from_elsewhere() -> None:
    assert "font: false" in SITE
    assert re.findall(r"https?:", SITE) == []
    assert (ROOT / "docs" / "assets" / "iframe-worker.js").exists()
    assert "polyfills: [assets/iframe-worker.js]" in SITE


@pytest.fixture
def hooks() -> ModuleType:
    """What mkdocs is told; skips where mkdocs is not installed."""
    pytest.importorskip("mkdocs", reason="the site needs the extra docs")
    spec = spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_diagram_has_its_picture_and_every_picture_a_diagram(hooks: ModuleType) -> None:
    diagrams = [diagram for document in DOCUMENTS for diagram in hooks._DIAGRAM.findall(document.read_text())]
    pictures = {f"pictures/{file.name}" for file in (ROOT / "docs" / "pictures").glob("diagram-*.svg")}
    assert diagrams
    assert {hooks.picture_of(diagram) for diagram in diagrams} == pictures


def test_the_site_shows_a_diagram_as_a_picture_or_says_how_to_draw_it(hooks: ModuleType) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="design.md"))
    shown = hooks.on_page_markdown((ROOT / "docs" / "design.md").read_text(), page)
    assert "mermaid" not in shown
    assert re.search(r"^!\[a diagram\]\(pictures/diagram-\w{8}\.svg\)$", shown, re.MULTILINE)
    with pytest.raises(Exception, match=r"No picture of a diagram on design.md(.|\n)*npx -y @mermaid-js/mermaid-cli"):
        hooks.on_page_markdown("```mermaid\nstateDiagram-v2\n```\n", page)
