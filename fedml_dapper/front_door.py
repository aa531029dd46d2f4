"""Rooms whose names are loaded when they are asked for, so that whoever reads a ledger does not wait for torch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path


def loaded_when_asked(package: str, file: str) -> Callable[[str], object]:
    """``__getattr__`` of ``package``, whose ``file`` imports under ``if TYPE_CHECKING`` what the package has to give.

    So type checkers and this read one list. No name in it may be that of a module of the package, which would hide it.
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
