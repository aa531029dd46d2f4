"""The README and docs/ as a reader meets them: links lead somewhere, and the README is short."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BESIDE = sorted(page for folder in ("results", "run") for page in (ROOT / folder).glob("*/*.md"))
LISTS = [ROOT / "data" / "README.md", *sorted((ROOT / "results").glob("*.md")), *BESIDE]
"""Pages beside what they list, to which pages link."""

README_LINES = 120

_MARKDOWN = MarkdownIt("commonmark").enable("table")


class Link(NamedTuple):
    line: int
    target: str


def links(markdown: str) -> Iterator[Link]:
    """Links and images, those in tables and headings too, but for those to other hosts."""
    for token in _MARKDOWN.parse(markdown):
        for child in token.children or ():
            target = str(child.attrGet("href") or child.attrGet("src") or "")
            if target and not re.match(r"[a-z]+:", target):
                yield Link(_line(token), target)


def anchors(markdown: str) -> set[str]:
    """What GitHub names the headings: small letters, hyphens for spaces, ``-1`` after the second of a name."""
    tokens, seen, found = _MARKDOWN.parse(markdown), Counter[str](), set()
    for before, token in pairwise(tokens):
        if before.type == "heading_open":
            name = re.sub(r"[^\w\- ]", "", _plain(token).lower()).replace(" ", "-")
            found.add(f"{name}-{seen[name]}" if seen[name] else name)
            seen[name] += 1
    return found


def broken(link: Link, page: Path) -> str:
    """What is wrong with a link of ``page``; empty where it leads somewhere."""
    path, _, anchor = link.target.partition("#")
    file = page.parent / path if path else page
    if not file.exists():
        return f"there is no {path}"
    if anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
        return f"{file.name} has no heading #{anchor}"
    return ""


def _line(token: Token) -> int:
    assert token.map is not None
    return token.map[0] + 1


def _plain(token: Token) -> str:
    """The words of a heading; code as it is written."""
    return "".join(
        f"`{child.content}`" if child.type == "code_inline" else child.content for child in token.children or ()
    )


@pytest.mark.parametrize("page", [*PAGES, *LISTS], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    astray = [
        f"{page.relative_to(ROOT)}:{link.line}: [...]({link.target}): {wrong}"
        for link in links(page.read_text(encoding="utf-8"))
        if (wrong := broken(link, page))
    ]
    assert not astray, "\n" + "\n".join(astray)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


def test_the_page_of_methods_has_all_of_them() -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    catalogue = (ROOT / "fedml_dapper" / "methods" / "catalogue").glob("[!_]*.py")
    assert [file.stem for file in catalogue if f"`{file.stem}`" not in page] == []


@pytest.mark.parametrize(
    ("target", "wrong"),
    [
        ("there.md", ""),
        ("there.md#the-codes-draw-1-of-2", ""),
        ("there.md#twice-1", ""),
        ("#here", ""),
        ("", ""),
        ("gone.md", "there is no gone.md"),
        ("there.md#gone", "there.md has no heading #gone"),
        ("#gone", "page.md has no heading #gone"),
    ],
)
def test_what_a_link_may_lead_to(tmp_path: Path, target: str, wrong: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Here\n\n| [far](https://example.org/gone) | [near]({target}) |\n|---|---|\n")
    (tmp_path / "there.md").write_text("# The code's `draw`, 1 of 2\n\n## Twice\n\n## Twice\n")
    assert [broken(link, page) for link in links(page.read_text())] == ([wrong] if target else [])
