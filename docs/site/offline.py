"""The site asks nothing of the network: a page that would is an error."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

_FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'\s>]+"
    r"|<link\b[^>]*\brel=[\"']?(?:stylesheet|preconnect|preload|icon)\b[^>]*\bhref=[\"']?(?:https?:)?//[^\"'\s>]+"
)


def on_post_build(config: MkDocsConfig) -> None:
    found = [
        f"{file.relative_to(config.site_dir)}: {match[0]}"
        for file in sorted(Path(config.site_dir).rglob("*.html"))
        for match in _FETCHED.finditer(file.read_text(encoding="utf-8"))
    ]
    if found:
        raise PluginError("the site is to work offline, but would fetch:\n" + "\n".join(found))
