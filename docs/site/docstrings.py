"""Docstrings as the site shows them: Sphinx's roles become code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|exc|data|obj):`~?([^`]+)`")


class PlainRoles(griffe.Extension):  # type: ignore[misc]  # not there where types are checked
    """``:class:`Run` `` -> ``Run`` in code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
