"""Lazy loading of a package's public names, so that e.g. reading a ledger does not import torch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path


def lazy_names(package: str, file: str) -> Callable[[str], object]:
    """Return a ``__getattr__`` for ``package`` that imports public names when they are used.

    The names are those that ``file``, the package's ``__init__.py``, imports under ``if TYPE_CHECKING``: one list for
    type checkers and for this function. No name may be that of a module of the package, which would hide it.
    """

    @cache
    def homes() -> dict[str, str]:
        imports = [node for node in ast.walk(ast.parse(Path(file).read_bytes())) if isinstance(node, ast.ImportFrom)]
        return {alias.name: node.module for node in imports if node.module is not None for alias in node.names}

    def get(name: str) -> object:
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes()[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
