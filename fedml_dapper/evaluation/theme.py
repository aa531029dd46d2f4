"""Colours in the light and the dark theme: a CSS variable a colour, whose dark value follows from its light one."""

from __future__ import annotations

import re

_INK = (228, 232, 236)
_PAPER = (21, 25, 29)
"""What black and white are in the dark: ``page.css`` has the same."""
_LIGHTER = 0.4
"""How far colours go towards white in the dark: deep ones stand out, and an order from dark to light stays one."""
_GREY = 12
"""Channels that differ by no more are a grey."""
_VARIABLE = re.compile(r"var\(--c([0-9a-f]{6})\)")


def themed(colour: str) -> str:
    """``colour``, as ``#rrggbb`` of the light theme, for an SVG attribute or a style of a page."""
    return f"var(--c{colour.removeprefix('#').lower()})"


def colour_variables(html: str) -> str:
    """The CSS that says in both themes what the colours of ``html`` are, each of which :func:`themed` wrote."""
    used = sorted(set(_VARIABLE.findall(html)))
    light = "".join(f"--c{colour}:#{colour};" for colour in used)
    dark = "".join(f"--c{colour}:{in_the_dark(colour)};" for colour in used)
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n" if used else ""


def in_the_dark(colour: str) -> str:
    """What stands for ``colour``, as ``rrggbb``: greys are turned over, so that ink stays ink; others are lighter."""
    channels = bytes.fromhex(colour)
    if max(channels) - min(channels) <= _GREY:
        grey = sum(channels) / 3 / 255
        mixed = [ink + (paper - ink) * grey for ink, paper in zip(_INK, _PAPER, strict=True)]
    else:
        mixed = [channel + _LIGHTER * (255 - channel) for channel in channels]
    return "#" + bytes(round(channel) for channel in mixed).hex()
