"""Figures as SVG inside a page, in the page's theme and font, without styles of their own."""

from __future__ import annotations

import re
from hashlib import sha256
from io import BytesIO
from xml.etree import ElementTree

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from fedml_dapper.evaluation.style import names_as_text
from fedml_dapper.evaluation.theme import themed

_PIXELS_A_POINT = 1.5
"""CSS pixels per point on a wide screen; a phone shrinks a chart of 4.4 inches to 1.1, which leaves 10 pt text legible.
"""
_BROAD = 340
"""Width in points above which a chart keeps its size on a phone, and scrolls inside its box."""
_COLOUR = re.compile(r"#[0-9a-f]{6}")
_DIGITS = re.compile(r"(\.\d\d)\d+")
_SHAPES = ("d", "x", "y", "width", "height", "transform", "points")


def inline_svg(figure: Figure) -> Markup:
    """Return ``figure`` as an ``svg`` element without background."""
    buffer = BytesIO()
    for background in (figure.patch, *(axes.patch for axes in figure.axes)):
        background.set_facecolor("none")
    # text stays text, a third of the size of outlines; with a fixed salt equal ledgers give equal reports
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedml_dapper"}), names_as_text(figure):
        # not Figure.savefig, which would draw it twice
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})  # type: ignore[no-untyped-call]  # matplotlib's
    written = buffer.getvalue()
    root = ElementTree.fromstring(written)
    names = _Names(root, sha256(written).hexdigest()[:8])
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    for element in root.iter():
        _plain(element, names)
    width = float(root.attrib["viewBox"].split()[2])
    shape = "broad" if width > _BROAD else "narrow"
    root.attrib = {
        "class": shape,
        "viewBox": root.attrib["viewBox"],
        "width": f"{_PIXELS_A_POINT * width:.0f}",
        "fill": themed("#000000"),
        "stroke-linejoin": "round",
    }
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # the serialiser escapes


class _Names:
    """Ids that are referred to, renamed so that they differ from those of other charts on the page."""

    def __init__(self, root: ElementTree.Element, prefix: str) -> None:
        values = [value for element in root.iter() for value in element.attrib.values()]
        used = {found for value in values for found in re.findall(r"^#([\w-]+)$|url\(#([\w-]+)\)", value)}
        self._known = {name: f"{prefix}{place}" for place, name in enumerate(sorted("".join(pair) for pair in used))}

    def of(self, name: str) -> str | None:
        return self._known.get(name)

    def renamed(self, value: str) -> str:
        return re.sub(r"#([\w-]+)", lambda found: f"#{self._known.get(found[1], found[1])}", value)


def _plain(element: ElementTree.Element, names: _Names) -> None:
    """Turn styles into attributes, which the content policy allows, and drop namespaces, which HTML lacks."""
    element.tag = element.tag.rpartition("}")[2]
    attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    style = attributes.pop("style", "")
    attributes |= {
        key.strip(): value.strip() for key, _, value in (part.partition(":") for part in style.split(";")) if value
    }
    attributes.pop("font-family", None)
    element.attrib = {}
    for key, value in attributes.items():
        if key == "id":
            name = names.of(value)
            element.attrib |= {} if name is None else {key: name}
        elif key in ("href", "clip-path") and not value.startswith("data:"):
            element.attrib[key] = names.renamed(value)
        elif key in _SHAPES:
            element.attrib[key] = _DIGITS.sub(r"\1", " ".join(value.split()))
        else:
            element.attrib[key] = themed(value) if _COLOUR.fullmatch(value) else value
    if element.tag != "text" and element.text is not None and not element.text.strip():
        element.text = None
    element.tail = None
