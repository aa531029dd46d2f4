"""A picture as SVG: texts, shapes and arrows in a few named colours, each of which has a light and a dark value.

Coordinates are pixels from the upper left corner of a picture that is 900 wide. Nothing is painted behind it.
"""

from __future__ import annotations

from math import hypot
from typing import Literal
from xml.etree import ElementTree

Colour = Literal["ink", "soft", "blue", "orange", "green", "purple"]
Anchor = Literal["start", "middle", "end"]

WIDTH = 900
_LIGHT_AND_DARK: dict[Colour, tuple[str, str]] = {
    "ink": ("#1f2328", "#e6edf3"),
    "soft": ("#59636e", "#9198a1"),
    "blue": ("#0550ae", "#79c0ff"),
    "orange": ("#953800", "#ffa657"),
    "green": ("#116329", "#7ee787"),
    "purple": ("#6639ba", "#d2a8ff"),
}
_FONTS = 'system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif'
_HEAD = 9
"""Length of an arrow's head."""


def _style() -> str:
    light, dark = (
        "".join(f".{name}{{color:{values[theme]}}}" for name, values in _LIGHT_AND_DARK.items()) for theme in (0, 1)
    )
    return (
        f"text{{font-family:{_FONTS};fill:currentColor}}"
        ".tint{fill:currentColor;fill-opacity:.16;stroke:currentColor}"
        ".full{fill:currentColor}"
        ".line{fill:none;stroke:currentColor}"
        ".dash{fill:none;stroke:currentColor;stroke-dasharray:4 3}"
        f"{light}@media (prefers-color-scheme:dark){{{dark}}}"
    )


class Picture:
    """Elements one above the other in the order in which they are drawn."""

    def __init__(self, title: str, description: str, height: int) -> None:
        """``title`` and ``description`` are what a screen reader says."""
        self.title = title
        self._root = ElementTree.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "viewBox": f"0 0 {WIDTH} {height}",
                "width": str(WIDTH),
                "height": str(height),
                "role": "img",
                "aria-labelledby": "title desc",
            },
        )
        self._add("title", id="title").text = title
        self._add("desc", id="desc").text = description
        self._add("style").text = _style()

    def text(
        self, x: float, y: float, words: str, *, size: int = 14, anchor: Anchor = "start", colour: Colour = "ink",
        bold: bool = False,
    ) -> None:  # fmt: skip
        """A line of text, whose baseline is at ``y``."""
        weight = {"font-weight": "600"} if bold else {}
        placed = {} if anchor == "start" else {"text-anchor": anchor}
        element = self._add("text", colour, x=x, y=y, **{"font-size": str(size)}, **placed, **weight)
        element.text = words

    def lines(
        self, x: float, y: float, *lines: str, size: int = 14, anchor: Anchor = "start", colour: Colour = "ink"
    ) -> None:
        """Several lines of text, the first at ``y``."""
        for number, words in enumerate(lines):
            self.text(x, y + number * round(size * 1.35), words, size=size, anchor=anchor, colour=colour)

    def box(
        self, x: float, y: float, width: float, height: float, *, colour: Colour = "soft",
        fill: Literal["tint", "full", "line", "dash"] = "tint", round_by: float = 6,
    ) -> None:  # fmt: skip
        self._add("rect", f"{colour} {fill}", x=x, y=y, width=width, height=height, rx=round_by)

    def circle(
        self, x: float, y: float, radius: float, *, colour: Colour = "soft", fill: Literal["tint", "full", "dash"]
    ) -> None:
        self._add("circle", f"{colour} {fill}", cx=x, cy=y, r=radius)

    def line(
        self, *points: tuple[float, float], colour: Colour = "soft", dashed: bool = False, thick: float = 1
    ) -> None:
        """From point to point."""
        path = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._add("polyline", f"{colour} {'dash' if dashed else 'line'}", points=path, **{"stroke-width": thick})

    def image(self, x: float, y: float, side: float, png: str) -> None:
        """A square photograph, whose file is ``png`` in base64, pixel by pixel."""
        self._add(
            "image",
            x=x,
            y=y,
            width=side,
            height=side,
            href=f"data:image/png;base64,{png}",
            style="image-rendering:pixelated",
        )

    def arrow(self, *points: tuple[float, float], colour: Colour = "ink", thick: float = 1.5) -> None:
        """From point to point, with a head at the last."""
        (before_x, before_y), (x, y) = points[-2:]
        length = hypot(x - before_x, y - before_y)
        ahead_x, ahead_y = (x - before_x) / length, (y - before_y) / length
        neck_x, neck_y = x - _HEAD * ahead_x, y - _HEAD * ahead_y
        self.line(*points[:-1], (neck_x, neck_y), colour=colour, thick=thick)
        sides = [(neck_x - side * ahead_y, neck_y + side * ahead_x) for side in (_HEAD / 2, -_HEAD / 2)]
        path = " ".join(f"{_number(a)},{_number(b)}" for a, b in ((x, y), *sides))
        self._add("polygon", f"{colour} full", points=path)

    def svg(self) -> str:
        """The same for the same calls, byte for byte."""
        ElementTree.indent(self._root, space=" ")
        return ElementTree.tostring(self._root, encoding="unicode") + "\n"

    def _add(self, tag: str, classes: str = "", **attributes: str | float) -> ElementTree.Element:
        written = {name: value if isinstance(value, str) else _number(value) for name, value in attributes.items()}
        return ElementTree.SubElement(self._root, tag, {"class": classes, **written} if classes else written)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
