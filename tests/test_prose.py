"""The README and docs/ as a reader meets them: sentences that are read once, and links that lead somewhere."""

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
LISTS = [ROOT / "data" / "README.md", ROOT / "results" / "README.md"]
"""Pages beside what they list, to which pages link."""

MOST_WORDS = 30
README_LINES = 120

_MARKDOWN = MarkdownIt("commonmark").enable("table")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|al|Eq|vs|cf)\.$")
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\.\.\.)[)\"']*\s+")


class Sentence(NamedTuple):
    line: int
    """In its file, from 1."""
    text: str

    @property
    def words(self) -> int:
        """Whatever stands between spaces and has a letter or digit; code counts as it is written."""
        return sum(any(char.isalnum() for char in word) for word in self.text.split())


class Link(NamedTuple):
    line: int
    target: str


def sentences(markdown: str) -> Iterator[Sentence]:
    """Those of paragraphs and lists; headings, tables and code blocks have none, and a link's target is no word."""
    tokens = _MARKDOWN.parse(markdown)
    for before, token in pairwise(tokens):
        if token.type == "inline" and before.type == "paragraph_open":
            yield from _split(_plain(token), first_line=_line(token))


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
    """The words of a paragraph, its line breaks as they are."""
    code, breaks = "`{}`", ("softbreak", "hardbreak")
    return "".join(
        "\n" if child.type in breaks else code.format(child.content) if child.type == "code_inline" else child.content
        for child in token.children or ()
    )


def _split(text: str, first_line: int) -> Iterator[Sentence]:
    begin = 0
    ends = [end.span() for end in _SENTENCE_END.finditer(text) if not _ABBREVIATION.search(text[: end.start()])]
    for stop, following in [*ends, (len(text), len(text))]:
        yield Sentence(first_line + text.count("\n", 0, begin), " ".join(text[begin:stop].split()))
        begin = following


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_sentence_is_read_once(page: Path) -> None:
    too_long = [
        f"{page.relative_to(ROOT)}:{sentence.line}: {sentence.words} words, at most {MOST_WORDS}: {sentence.text}"
        for sentence in sentences(page.read_text(encoding="utf-8"))
        if sentence.words > MOST_WORDS
    ]
    assert not too_long, "\n" + "\n".join(too_long)


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


def test_what_counts_as_a_word_and_where_a_sentence_ends() -> None:
    page = (
        "# A heading of many words. Two of them\n\n"
        "One [link of four](docs/far.md) and `code of five words`. mpiexec begins\n"
        "small (see Eq. 6, e.g. 1.5 -> 2, ...) and ends. **Bold.** After.\n\n"
        "* An item\n* Another. Third line\n\n"
        "| a | table. With text |\n|---|---|\n| b | c |\n\n"
        "```\nNo code. At all.\n```\n"
    )
    assert [(sentence.line, sentence.words, sentence.text.split()[0]) for sentence in sentences(page)] == [
        (3, 9, "One"),
        (3, 11, "mpiexec"),
        (4, 1, "Bold."),
        (4, 1, "After."),
        (6, 2, "An"),
        (7, 1, "Another."),
        (7, 2, "Third"),
    ]


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
