"""What pages link to and does not lie in ``docs/``: other pages and sources of the repository, in the site as well.

A link stays as the repository's own pages need it, for example ``../examples/own_data/my_data.py``. In the site it
leads to a page that shows the file, or the files of a folder.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]

_RESULTS = sorted((ROOT / "results").glob("*/README.md"))

PAGES = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "data/README.md": "data.md",
    "results/README.md": "results.md",
    **{f"results/{file.parent.name}/README.md": f"results_{file.parent.name}.md" for file in _RESULTS},
    "results/attacks/README.md": "attacks.md",
    "results/benchmarks/silos.md": "silos.md",
    "results/dependencies.md": "dependencies.md",
    "run/container/README.md": "containers.md",
    "run/systemd/README.md": "services.md",
    "run/launch/README.md": "launch.md",
}
"""Pages outside of ``docs/`` -> where they are in the site."""

_SOURCES = "sources"
_CODE = re.compile(r"(^ *(?:```|~~~).*?^ *(?:```|~~~) *$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
_TARGET = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "bash"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages outside of ``docs/``, and a page for each source that a page links to."""
    for origin, uri in PAGES.items():
        listed = InclusionLevel.NOT_IN_NAV if ROOT / origin in _RESULTS else InclusionLevel.INCLUDED
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / origin), inclusion=listed))
    for page in files.documentation_pages():
        for target in _targets(page.content_string, _origin(page.src_uri)):
            place = _place(target)
            if place.startswith(_SOURCES) and (ROOT / target).exists() and not files.get_file_from_path(place):
                shown = File.generated(config, place, content=_shown(target), inclusion=InclusionLevel.NOT_IN_NAV)
                files.append(shown)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page's text with links that lead to where things are in the site."""
    uri, origin = page.file.src_uri, _origin(page.file.src_uri)
    if uri.startswith(f"{_SOURCES}/"):
        return markdown

    def here(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), match[0]))
        return posixpath.relpath(_place(target), posixpath.dirname(uri) or ".")

    parts = _CODE.split(markdown)
    return "".join(part if number % 2 else _TARGET.sub(here, part) for number, part in enumerate(parts))


def _targets(markdown: str, origin: str) -> Iterator[str]:
    """Paths below the repository's root that a page at ``origin`` links to."""
    for part in _CODE.split(markdown)[::2]:
        for match in _TARGET.finditer(part):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(origin), match[0]))


def _origin(uri: str) -> str:
    """Path of the page that is at ``uri`` in the site, below the repository's root."""
    return {place: page for page, place in PAGES.items()}.get(uri, f"docs/{uri}")


def _place(target: str) -> str:
    """Where a file or folder of the repository is in the site."""
    if target.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", target.removeprefix("docs/"))
    return PAGES.get(target, f"{_SOURCES}/{target}.md")


def _shown(target: str) -> str:
    """A page that shows a file, or the files of a folder."""
    place = ROOT / target
    if place.is_file():
        return f"# {target}\n\n{_block(place)}"
    shown = [f"## {file.name}\n\n{_block(file)}" for file in sorted(place.iterdir()) if file.is_file()]
    return "\n\n".join([f"# {target}/", *shown])


def _block(file: Path) -> str:
    return f"````{_LANGUAGES.get(file.suffix, 'text')}\n{file.read_text(encoding='utf-8').rstrip()}\n````"
