"""Self-contained HTML pages: templates, inlined pictures, and a content policy."""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from io import BytesIO
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from PIL import Image

from fedml_dapper.evaluation.theme import colour_variables, themed
from fedml_dapper.evaluation.units import decimal, duration, quantity, share, signed
from fedml_dapper.files.atomic import written_whole


def environment(package: str) -> Environment:
    """Return the templates of ``package``, with ``page.html`` and ``macros.html``, which all pages share."""
    templates = Environment(
        loader=ChoiceLoader([PackageLoader(package, ""), PackageLoader("fedml_dapper.evaluation", "")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (code_spans, decimal, duration, quantity, share, signed, themed)
    templates.filters |= {written.__name__: written for written in filters}
    templates.globals |= {"colour_variables": colour_variables, "content_policy": content_policy}
    return templates


def code_spans(text: str) -> Markup:
    """Escape ``text``, and set what stands between backticks as code."""
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(text))))


def write_page(path: Path, html: str) -> None:
    """Write ``html`` to ``path``; an older file there stays until the new one is complete."""
    with written_whole(path) as scratch:
        scratch.write_text(html, encoding="utf-8")


def content_policy(style: str) -> str:
    """Return the policy of a page that loads and runs nothing, with this one ``style`` and inlined pictures."""
    digest = base64.b64encode(sha256(style.encode("utf-8")).digest()).decode("ascii")
    return f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def jpeg_uri(picture: Image.Image) -> str:
    """Return a photograph as the ``src`` of an ``img``."""
    buffer = BytesIO()
    picture.convert("RGB").save(buffer, format="JPEG", quality=85, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
