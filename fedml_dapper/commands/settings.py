"""``fedml-dapper settings``: show every key of an experiment file, with type, default and meaning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from fedml_dapper.config import Settings, did_you_mean
from fedml_dapper.config.keys import Key, heading_of, is_section, keys_of
from fedml_dapper.errors import ConfigError

if TYPE_CHECKING:
    from fedml_dapper.methods import Method
    from fedml_dapper.registry import Registry

_PARAMS = "dapper_args.params"


@click.command()
@click.argument("word", required=False)
def settings(word: str | None) -> None:
    """Say which keys an experiment file has, what they may be, their defaults and meanings.

    WORD: a section (train_args), a key (comm_round, dapper_args.levels.ratios), or a method (dapperfl) for its own
    settings; without it, all keys but the methods'.
    """
    console = Console(highlight=False)
    found = {place: [key for key in keys if _is_meant(word, place, key)] for place, keys in _places()}
    if word is None:
        found = {place: keys for place, keys in found.items() if not place.startswith(_PARAMS)}
    if not any(found.values()):
        known = {part for place, keys in _places() for part in (place, *(key.path for key in keys))}
        raise ConfigError(f"no section, key or method `{word}`{did_you_mean(str(word), known)}")
    for place, keys in found.items():
        if keys:
            console.print(Text(_heading(place), style="bold"))
            for key in keys:
                console.print(Text.assemble("  ", (key.path, "cyan"), key.headline.removeprefix(key.path)))
                console.print(Padding(Text(key.meaning), (0, 0, 0, 6)))
    if word is None:
        console.print(f"\nA method's own settings: fedml-dapper settings NAME, of {', '.join(sorted(_methods()))}.")


def _places() -> Iterator[tuple[str, list[Key]]]:
    """Sections and methods, each with its place and its keys."""
    for section, field in Settings.model_fields.items():
        assert is_section(field.annotation)
        yield section, list(keys_of(field.annotation))
    for name in _methods():
        yield f"{_PARAMS}.{name}", list(keys_of(_methods()[name].Params))


def _methods() -> Registry[type[Method[Any]]]:
    from fedml_dapper.methods import METHODS

    return METHODS


def _heading(place: str) -> str:
    if place.startswith(_PARAMS):
        return f"{place}: {heading_of(_methods()[place.rpartition('.')[2]].Params)}"
    annotation = Settings.model_fields[place].annotation
    assert is_section(annotation)
    return heading_of(annotation)


def _is_meant(word: str | None, place: str, key: Key) -> bool:
    """Whether ``word`` is the place, a key of it, or a section that holds the key."""
    if word is None or word in (place, place.rpartition(".")[2]):
        return True
    if place.startswith(_PARAMS):
        return word in (key.path, f"{place}.{key.path}")
    return f".{word}." in f".{place}.{key.path}."
