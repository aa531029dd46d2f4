"""HTML pages that need nothing but a browser: templates, pictures inlined, one file each."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure
from PIL import Image

from fedml_dapper.durable import written_whole
from fedml_dapper.evaluation.units import decimal, duration, quantity, share, signed


def environment(package: str) -> Environment:
    """Templates of ``package`` and, below them, ``page.html`` and ``macros.html``, which all pages share."""
    templates = Environment(
        loader=ChoiceLoader([PackageLoader(package, ""), PackageLoader("fedml_dapper.evaluation", "")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (decimal, duration, quantity, share, signed)
    templates.filters |= {written.__name__: written for written in filters}
    return templates


def write_page(path: Path, html: str) -> None:
    """Write ``html`` to ``path``; an older file there stays until the new one is complete."""
    with written_whole(path) as scratch:
        scratch.write_text(html, encoding="utf-8")


def svg_uri(figure: Figure) -> str:
    """A figure as the ``src`` of an ``img``."""
    buffer = BytesIO()
    # Text as text is a third of the size of text as outlines; without a fixed salt equal ledgers give unequal reports.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedml_dapper"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return _data_uri("image/svg+xml", buffer)


def jpeg_uri(picture: Image.Image) -> str:
    """A photograph as the ``src`` of an ``img``."""
    buffer = BytesIO()
    picture.convert("RGB").save(buffer, format="JPEG", quality=85, optimize=True)
    return _data_uri("image/jpeg", buffer)


def _data_uri(media_type: str, buffer: BytesIO) -> str:
    return f"data:{media_type};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
