"""What a setting may name: something built in, of an installed package, or of the user's own.

Everything that users may bring comes in here, and the built-in ones as well: ``path/to/file.py:Name``,
``package.module:Name``, the name of an entry point, or a name from the built-in list.
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
from fedml_dapper.errors import ConfigError, DapperError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """What the setting ``key`` may name; a mapping of the built-in ones that finds others too.

    ``noun`` is for error messages. ``fits`` says whether what a user brought can be used: the empty text if so,
    otherwise what it is instead and what to do, in words that go on from "is". ``elsewhere`` are words that the setting
    knows besides, without an object behind them; error messages list them.
    """

    def __init__(
        self, key: str, noun: str, built_in: Mapping[str, T], fits: Callable[[object], str],
        elsewhere: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
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
        """What ``name`` stands for; raises :class:`ConfigError` where that is nothing, or nothing that can be used."""
        if name in self._built_in:
            return self._built_in[name]
        packages = installed(ENTRY_POINTS[self.key])
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
    """The object that ``reference`` names; raises :class:`ConfigError` with ``key`` where it cannot be had."""
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
    except Exception as error:
        raise ConfigError(
            f"{key}: {reference.place} cannot be loaded: {type(error).__name__}: {error}{_where(error, file)}"
        ) from error


def _from_file(file: Path) -> ModuleType:
    """The module in ``file``, loaded once for each content; it may import what lies beside it."""
    digest = hashlib.sha256(bytes(file.resolve()) + file.read_bytes()).hexdigest()[:12]
    name = f"fedml_dapper_user_{file.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look themselves up there
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
    """The last line of ``file`` that was at work when ``error`` came up."""
    trace = error.__traceback__
    line = None
    while trace is not None:
        if file is not None and Path(trace.tb_frame.f_code.co_filename) == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" (line {line})"
