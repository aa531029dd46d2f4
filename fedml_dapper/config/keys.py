"""Description of every setting: its place, its type, its default and its meaning."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_KEYS = "\n\nKeys:\n\n"
_LIMITS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
_NULL = " | null"


@dataclass(frozen=True)
class Key:
    """A setting, as ``fedml-dapper settings`` shows it."""

    path: str
    """Dotted path, from the section on."""
    kind: str
    """Type and limits, e.g. ``int >= 1`` or ``sp | MPI``."""
    default: str | None
    """Default as YAML writes it; None for a setting that is required."""
    meaning: str

    @property
    def headline(self) -> str:
        return f"{self.path}: {self.kind}" + ("" if self.default is None else f" = {self.default}")


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[Key]:
    """Yield every setting below ``model``, in order; for an optional section also the section itself."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        if not is_section(field.annotation):
            meaning = " ".join((field.description or "").replace("``", "").split())
            yield Key(path, _kind(field), _default(field), meaning)
        for section in filter(is_section, _parts(field.annotation)):
            yield from keys_of(section, f"{path}.")


def with_keys(model: type[BaseModel]) -> str:
    """Return the docstring of ``model`` followed by its keys, for ``help()``."""
    keys = "\n".join(f"{key.headline}\n    {key.meaning}" for key in keys_of(model))
    return f"{inspect.cleandoc(model.__doc__ or '')}{_KEYS}{keys}"


def heading_of(model: type[BaseModel]) -> str:
    """Return the docstring of a class of settings, without its keys."""
    return " ".join((model.__doc__ or "").partition(_KEYS)[0].replace("``", "").split())


def is_section(kind: Any) -> TypeGuard[type[BaseModel]]:
    """Whether an annotation is a class of settings."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield an annotation, and everything it is made of."""
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def _kind(field: FieldInfo) -> str:
    name = _name_of(field.annotation)
    return f"{name.removesuffix(_NULL)}{_limits(field)}{_NULL if name.endswith(_NULL) else ''}"


def _limits(field: FieldInfo) -> str:
    found = (f" {sign} {getattr(one, at):g}" for one in field.metadata for at, sign in _LIMITS if hasattr(one, at))
    return "".join(found)


def _name_of(kind: Any) -> str:
    origin = get_origin(kind)
    parts = get_args(kind)
    if origin is Annotated:
        return _name_of(parts[0]) + "".join(_limits(part) for part in parts[1:] if isinstance(part, FieldInfo))
    if origin is Literal:
        return " | ".join(map(str, parts))
    if origin in (Union, UnionType):
        return " | ".join(map(_name_of, parts))
    if origin in (tuple, list):
        return f"list of {_name_of(parts[0])}"
    names = {type(None): "null", Path: "path", Any: "anything"}
    return names[kind] if kind in names else "section" if is_section(kind) or origin is dict else kind.__name__


def _default(field: FieldInfo) -> str | None:
    if field.is_required():
        return None
    value = field.get_default(call_default_factory=True)
    names = {None: "null", True: "true", False: "false", "": "''"}
    if isinstance(value, str | bool | None) and value in names:
        return names[value]
    return str(list(value) if isinstance(value, tuple) else value)
