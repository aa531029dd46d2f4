"""Colours of the light and the dark theme: one CSS variable per colour, with its dark value computed."""

from __future__ import annotations

import re

_INK = (228, 232, 236)
_PAPER = (21, 25, 29)
"""Black and white in the dark theme, as in ``page.css``."""
_LIGHTER = 0.4
"""How far colours move towards white in the dark theme: deep ones stand out, and an order from dark to light stays."""
_GREY = 12
"""Largest difference between the channels of a colour that counts as grey."""
_VARIABLE = re.compile(r"var\(--c([0-9a-f]{6})\)")


def themed(colour: str) -> str:
    """Return the CSS variable of ``colour``, ``#rrggbb`` in the light theme, for an SVG attribute or a style."""
    return f"var(--c{colour.removeprefix('#').lower()})"


def colour_variables(html: str) -> str:
    """Return the CSS that defines, in both themes, the colours in ``html`` that :func:`themed` wrote."""
    used = sorted(set(_VARIABLE.findall(html)))
    light = "".join(f"--c{colour}:#{colour};" for colour in used)
    dark = "".join(f"--c{colour}:{dark_variant(colour)};" for colour in used)
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n" if used else ""


def dark_variant(colour: str) -> str:
    """Return the dark theme's value of ``colour``, ``rrggbb``: greys are inverted, others are lighter."""
    channels = bytes.fromhex(colour)
    if max(channels) - min(channels) <= _GREY:
        grey = sum(channels) / 3 / 255
        mixed = [ink + (paper - ink) * grey for ink, paper in zip(_INK, _PAPER, strict=True)]
    else:
        mixed = [channel + _LIGHTER * (255 - channel) for channel in channels]
    return "#" + bytes(round(channel) for channel in mixed).hex()
