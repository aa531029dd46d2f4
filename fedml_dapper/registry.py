"""Registries of the objects that settings may name: built-in ones, those of installed packages, and users' own.

A name is one from the built-in list, ``path/to/file.py:Name``, ``package.module:Name`` or the name of an entry point.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar, cast

from fedml_dapper.config import ENTRY_POINTS, Reference, did_you_mean, installed
from fedml_dapper.errors import USER_CODE_ERRORS, ConfigError, DapperError

T = TypeVar("T")
_FOR_SCRIPTS = '; put what it does as a script below `if __name__ == "__main__":`'


class Registry(Mapping[str, T], Generic[T]):
    """Objects that a setting may name: a mapping of the built-in ones, whose :meth:`find` finds others too.

    Args:
        key: The setting.
        noun: What the objects are called in errors.
        built_in: Built-in objects by name.
        fits: Checks an object of a user. It returns an empty text where the object can be used, or else what it is and
            what to do, as an end of a sentence that begins with "`name` is".
        elsewhere: Further words that the setting may have, without an object; errors list them.
    """

    def __init__(
        self,
        key: str,
        noun: str,
        built_in: Mapping[str, T],
        fits: Callable[[object], str],
        elsewhere: tuple[str, ...] = (),
    ) -> None:
        self.key = key
        self._noun = noun
        self._built_in = built_in
        self._elsewhere = elsewhere
        self._fits = fits

    def __getitem__(self, name: str) -> T:
        return self._built_in[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._built_in)

    def __len__(self) -> int:
        return len(self._built_in)

    def find(self, name: str) -> T:
        """Return the object that ``name`` stands for.

        Raises:
            ConfigError: There is none, it does not fit, or an installed package calls another one so.
        """
        packages = installed(ENTRY_POINTS[self.key])
        if name in self._built_in:
            if name in packages:
                raise ConfigError(
                    f"{self.key}: `{name}` is built in, and an installed package calls its `{packages[name]}` so, too;"
                    f" set {self.key} to the latter, or give its entry point another name"
                )
            return self._built_in[name]
        reference = Reference.parse(name) or packages.get(name)
        if reference is None:
            known = did_you_mean(name, [*self._built_in, *self._elsewhere, *packages])
            raise ConfigError(
                f"{self.key}: unknown {self._noun} `{name}`{known} (your own: path/to/file.py:Name or"
                " package.module:Name)"
            )
        found = load(reference, self.key)
        problem = self._fits(found)
        if problem:
            raise ConfigError(f"{self.key}: `{reference}` is {problem}")
        return cast(T, found)


def load(reference: Reference, key: str) -> object:
    """Import the object that ``reference`` names; raise :class:`ConfigError` for the setting ``key`` where it fails."""
    module = _module(reference, key)
    if not hasattr(module, reference.name):
        public = [name for name in vars(module) if not name.startswith("_")]
        raise ConfigError(f"{key}: {reference.place} has no `{reference.name}`{did_you_mean(reference.name, public)}")
    return getattr(module, reference.name)


def _module(reference: Reference, key: str) -> ModuleType:
    file = reference.file
    if file is not None and not file.is_file():
        raise ConfigError(f"{key}: no file {file.absolute()}")
    try:
        return importlib.import_module(reference.place) if file is None else _from_file(file)
    except DapperError:
        raise
    except USER_CODE_ERRORS as error:
        remedy = _FOR_SCRIPTS if isinstance(error, SystemExit) else ""
        raise ConfigError(
            f"{key}: {reference.place} cannot be loaded: {type(error).__name__}: {error}{_where(error, file)}{remedy}"
        ) from error


def _from_file(file: Path) -> ModuleType:
    """Load the module in ``file``, once for each content; it may import modules beside it."""
    digest = hashlib.sha256(bytes(file.resolve()) + file.read_bytes()).hexdigest()[:12]
    name = f"fedml_dapper_user_{file.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, since dataclasses look up their module there
    try:
        with _importable(file.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(folder.resolve()))


def _where(error: BaseException, file: Path | None) -> str:
    """Return the last line of ``file`` in the traceback of ``error``, as text; empty where there is none."""
    trace = error.__traceback__
    line = None
    while trace is not None:
        if file is not None and Path(trace.tb_frame.f_code.co_filename) == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" (line {line})"
