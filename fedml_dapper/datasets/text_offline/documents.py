"""Texts that Python and the dependencies of this package ship, by kind: read from their files, and never imported."""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path, PurePath
from platform import python_version

from fedml_dapper.errors import DataError

_LICENSED = ("cryptography", "grpcio", "matplotlib", "numpy", "pandas", "pillow", "scikit-learn", "scipy", "torch")
"""Distributions whose licences are read."""
_LICENCE = re.compile(r"(licen[cs]e|copying|notice)", re.IGNORECASE)
_OTHERS = frozenset({"site-packages", "tests", "test", "idle_test", "pydoc_data"})
"""Folders that hold tests, other packages, or what is another kind of text."""
_BLOCK = 128
"""Characters of Unicode whose names are one document."""
_CHARACTERS = 0x20000
_MADE_BY_RULE = ("CJK", "HANGUL SYLLABLE", "NUSHU", "TANGUT", "KHITAN")
"""Beginnings of names that are a kind and a number, or made of syllables."""


@dataclass(frozen=True)
class Document:
    """A text that is read when it is needed."""

    name: str
    """What tells it from others of its kind, whatever the machine."""
    read: Callable[[], str]


@dataclass(frozen=True)
class Kind:
    """Texts of one kind."""

    find: Callable[[], Iterable[Document]]
    origin: Callable[[], str]
    """What they come from, with its versions."""

    def documents(self) -> list[Document]:
        """Return all documents, in an order that goes by a digest of each one's name, so that those of a folder mix.

        Raises:
            DataError: What they come from is not there.
        """
        return sorted(self.find(), key=lambda one: hashlib.sha256(one.name.encode()).digest())


def _help_topics() -> Iterable[Document]:
    path = _python() / "pydoc_data" / "topics.py"
    if not path.is_file():
        raise DataError(f"text_offline: this Python has no {path}, the pages of help(); install all of Python")
    tables = [node.value for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.Assign)]
    topics: dict[str, str] = ast.literal_eval(tables[0])
    return [Document(name, text.__str__) for name, text in topics.items()]


def _docstrings_of_python() -> Iterable[Document]:
    return _docstrings((path.relative_to(_python()), path) for path in _python().rglob("*.py"))


def _docstrings_of_scikit_learn() -> Iterable[Document]:
    return _docstrings((path, Path(str(path.locate()))) for path in _files("scikit-learn") if path.suffix == ".py")


def _docstrings(files: Iterable[tuple[PurePath, Path]]) -> Iterable[Document]:
    """Return a document for each of ``files``, by its place in what it belongs to and its path."""
    return [
        Document(place.as_posix(), partial(_docstrings_in, path))
        for place, path in files
        if not _OTHERS.intersection(place.parts)
    ]


def _docstrings_in(path: Path) -> str:
    """Return the docstrings of a module, its classes and functions; none where it is no Python of this version."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return ""
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, described))
    return "\n\n".join(filter(None, found))


def _licences() -> Iterable[Document]:
    return [
        Document(f"{name}/{'/'.join(path.parts[1:])}", partial(Path(str(path.locate())).read_text, "utf-8", "replace"))
        for name in _LICENSED
        for path in _files(name)
        if path.parts[0].endswith(".dist-info") and _LICENCE.match(path.name)
    ]


def _names_of_characters() -> Iterable[Document]:
    for first in range(0, _CHARACTERS, _BLOCK):
        names = (unicodedata.name(chr(code), "") for code in range(first, first + _BLOCK))
        known = [name.lower() for name in names if name and not name.startswith(_MADE_BY_RULE)]
        if known:
            yield Document(f"{first:05x}", "\n\n".join(known).__str__)


def _python() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _of_python() -> str:
    return f"Python {python_version()}"


def _version(name: str) -> str:
    return f"{name} {_distribution(name).version}"


def _files(name: str) -> Iterable[PackagePath]:
    """Return the files of an installed distribution; none where whoever installed it has not written them down."""
    return _distribution(name).files or ()


def _distribution(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise DataError(
            f"text_offline is made of texts of {name}, which is not installed; pip install {name}"
        ) from error


KINDS = {
    "documentation": Kind(_help_topics, _of_python),
    "docstrings": Kind(_docstrings_of_scikit_learn, partial(_version, "scikit-learn")),
    "licences": Kind(_licences, lambda: ", ".join(map(_version, _LICENSED))),
    "names": Kind(_names_of_characters, lambda: f"Unicode {unicodedata.unidata_version}"),
    "modules": Kind(_docstrings_of_python, _of_python),
}
"""Pages of Python's ``help()``, scikit-learn's docstrings, licences, names of characters, and docstrings of Python's
own modules."""
