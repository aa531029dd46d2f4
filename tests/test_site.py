"""The site of docs/ and the repository's own pages are written once: both readers of Markdown see the same."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import markdown
import pytest
from markdown_it import MarkdownIt

from .test_prose import LISTS, PAGES, ROOT

_TAGS = "a|blockquote|code|em|h1|h2|h3|h4|img|li|ol|pre|strong|table|td|th|tr|ul"
_COMMONMARK = MarkdownIt("commonmark").enable("table")


def structure(html: str) -> Counter[str]:
    """How many elements of each kind. Not paragraphs: the two do not agree on when a list's items have some."""
    return Counter(re.findall(rf"<({_TAGS})\b", html))


def as_in_the_site(text: str) -> str:
    return markdown.markdown(text, extensions=["tables", "sane_lists", "fenced_code"])


@pytest.mark.parametrize("page", [*PAGES, *LISTS], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_the_same_in_the_site_as_in_the_repository(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert structure(as_in_the_site(text)) == structure(_COMMONMARK.render(text)), (
        "the site wants an empty line before a list, and four spaces before what belongs to an item"
    )


@pytest.mark.parametrize(
    "text",
    ["To do, if\n- one\n- two", "* item\n\n  its end\n* next\n", "* one\n  * below\n", "A (b\n+ c)"],
)
def test_a_difference_is_seen(text: str) -> None:
    assert structure(as_in_the_site(text)) != structure(_COMMONMARK.render(text))
