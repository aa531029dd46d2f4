"""YAML as people write it, without what only an attack or a typing mistake would contain.

A section that stands twice would silently replace the first. Aliases can make a few lines mean billions of values, or a
value that contains itself.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from fedml_dapper.errors import ConfigError, shortened

MAX_LETTERS = 1 << 20
"""Most letters of a file."""
MAX_DEPTH = 40
"""Most lists and sections within each other."""
MAX_VALUES = 100_000
"""Most values, with aliases written out, which together may have no more letters than a file."""
_FLOAT = "tag:yaml.org,2002:float"
_NUMBERS = ("tag:yaml.org,2002:int", _FLOAT)
_EXPONENTIAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+\Z")
"""A number with an exponent in YAML 1.2. PyYAML goes by YAML 1.1, and takes one without a dot or a sign for a word."""
_OCTAL = re.compile(r"[-+]?0[0-7]+")
_MOST_DIGITS = 4300
"""Most digits of a number that Python reads."""
_MOST_SHOWN = 20
"""Most digits of a number that an error quotes in full."""


def parse_yaml(text: str, where: str) -> Any:
    """Return the value that ``text`` means.

    Raises:
        ConfigError: It is no YAML, or breaks a rule of this module; the message begins with ``where``.
    """
    if len(text) > MAX_LETTERS:
        raise ConfigError(f"{where}: no settings are longer than {MAX_LETTERS} letters")
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _Check(where).measure(node)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except RecursionError as error:
        raise ConfigError(f"{where}: lists and sections lie deeper in each other than {MAX_DEPTH}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not valid YAML: {' '.join(str(error).split())[:300]}") from error


def to_yaml(value: Any) -> str:
    """Return a text that :func:`parse_yaml` reads as ``value``, with keys in their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False)


class _Loader(yaml.SafeLoader):
    """A loader that names the word and its line where a word is not of the kind that it looks like, or is said to be.

    PyYAML's own constructors raise what their conversion stumbles over: ``KeyError: 'maybe'`` for ``!!bool maybe``.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError, LookupError, AttributeError) as error:
            reason = f": {error}" if isinstance(error, ValueError | OverflowError) else ""
            kind = node.tag.rpartition(":")[2]
            problem = f"{_line(node)}: `{node.value!s:.60}` is no {kind}{reason}"
            raise yaml.constructor.ConstructorError(problem=problem) from error


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes words which :class:`_Loader` would read as numbers."""


_Loader.add_implicit_resolver(_FLOAT, _EXPONENTIAL, list("-+.0123456789"))
_Dumper.add_implicit_resolver(_FLOAT, _EXPONENTIAL, list("-+.0123456789"))


class _Check:
    """Checks a document before values are made of it."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._measures: dict[yaml.Node, tuple[int, int, int] | None] = {}
        """Node -> how many values it means, how deep they lie, and how many letters they have; None while these are
        computed."""

    def measure(self, node: yaml.Node) -> tuple[int, int, int]:
        if node not in self._measures:
            self._measures[node] = None
            below = [self.measure(child) for child in self._children(node)]
            size = 1 + sum(size for size, _, _ in below)
            depth = 1 + max((depth for _, depth, _ in below), default=0)
            own = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
            letters = own + sum(letters for _, _, letters in below)
            if depth > MAX_DEPTH:
                raise ConfigError(f"{self._where}: lists and sections lie deeper in each other than {MAX_DEPTH}")
            if size > MAX_VALUES:
                raise ConfigError(f"{self._where}: {_line(node)}: aliases make this more than {MAX_VALUES} values")
            if letters > MAX_LETTERS:
                raise ConfigError(f"{self._where}: {_line(node)}: aliases make this more than {MAX_LETTERS} letters")
            self._measures[node] = size, depth, letters
        found = self._measures[node]
        if found is None:
            raise ConfigError(f"{self._where}: {_line(node)}: a value that contains itself")
        return found

    def _children(self, node: yaml.Node) -> list[yaml.Node]:
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)
            return [part for pair in node.value for part in pair]
        if isinstance(node, yaml.SequenceNode):
            return list(node.value)
        self._check_text(node)
        self._check_number(node)
        return []

    def _check_keys(self, node: yaml.MappingNode) -> None:
        lines: dict[str, str] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in lines:
                    both = f"{lines[key.value]} and {_line(key)}"
                    raise ConfigError(f"{self._where}: `{key.value:.60}` stands twice, in {both}; keep one")
                lines[key.value] = _line(key)

    def _check_number(self, node: yaml.Node) -> None:
        """Refuse what YAML reads as another number than people do, or not at all."""
        text = str(node.value).replace("_", "")
        if node.tag not in _NUMBERS:
            return
        if base := _unusual_base(text):
            value = _value_of(text, base) if len(text) <= _MOST_SHOWN else "a number"
            raise ConfigError(
                f"{self._where}: {_line(node)}: `{shortened(text, _MOST_SHOWN)}` is {value} in YAML, read to the base"
                f" {base}; write the number that you mean in decimal, or put a word in quotes"
            )
        if len(text) > _MOST_DIGITS and text.lstrip("+-").isdecimal():
            raise ConfigError(
                f"{self._where}: {_line(node)}: `{shortened(text, _MOST_SHOWN)}` has {len(text)} digits, and no setting"
                " takes so large a number; where a word is meant, put it in quotes"
            )

    def _check_text(self, node: yaml.Node) -> None:
        try:
            str(node.value).encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{self._where}: {_line(node)}: a text with half a character (a surrogate)") from error


def _unusual_base(text: str) -> int:
    """The base to which YAML reads a number that looks like one of another; 0 where it reads it as people do."""
    if ":" in text:
        return 60
    if not _OCTAL.fullmatch(text) or (len(text) <= _MOST_SHOWN and int(text) == int(text, 8)):
        return 0
    return 8


def _value_of(text: str, base: int) -> str:
    """What YAML makes of a short number to the base 8 or 60."""
    if base == 8:
        return str(int(text, 8))
    value = 0.0
    for part in text.lstrip("+-").split(":"):
        value = 60 * value + float(part)
    return f"{-value if text.startswith('-') else value:g}"


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
