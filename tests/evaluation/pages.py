"""What every page promises to whoever opens it."""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from html import unescape

from fedml_dapper.evaluation.theme import dark_variant

MOST_BYTES = 1_500_000


def check_promises(html: str) -> None:
    """The page is small, loads and runs nothing, lets nothing in, and has every colour in both themes."""
    assert len(html.encode()) < MOST_BYTES
    [style] = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    [policy] = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', html)
    digest = base64.b64encode(sha256(style.encode()).digest()).decode()
    rules = dict(rule.strip().split(" ", 1) for rule in unescape(policy).split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["style-src"] == f"'sha256-{digest}'"
    assert rules["img-src"] == "data:"
    assert "script-src" not in rules
    assert html.index("Content-Security-Policy") < html.index("<style>")
    body = html.replace(style, "")
    assert not re.search(r"<(script|link|iframe|object)\b|<[^>]+ (style|on\w+)=", body)
    loads = re.findall(r' (?:src|href|srcset|data|action)="([^"]*)"', re.sub("<a [^>]*>", "", body))
    assert all(load.startswith(("data:image/", "#")) for load in loads), loads
    assert not re.search(r"""@import|url\(\s*["']?(?!#)""", html)
    light, _, dark = style[style.index(":root{") :].partition("@media screen and (prefers-color-scheme: dark)")
    used = set(re.findall(r"var\(--c(\w{6})\)", body))
    assert used
    for colour in used:
        assert f"--c{colour}:#{colour};" in light
        assert f"--c{colour}:{dark_variant(colour)};" in dark
    assert not re.search(r'(fill|stroke)="#', body)
