"""Packages that one feature needs: looked for before it does anything, and named where they are missing."""

from __future__ import annotations

from importlib import import_module

from fedml_dapper.errors import ConfigError


def need(feature: str, *packages: str, install: str) -> None:
    """Raises :class:`ConfigError` where one of ``packages``, by import name, is missing or broken; ``install`` is what
    brings them."""
    missing = []
    for package in packages:
        try:
            import_module(package)
        except ModuleNotFoundError as error:
            missing.append(package if (error.name or package) == package else f"{package} ({error})")
        except ImportError as error:  # it is there, and something it rests on is not as it should be
            missing.append(f"{package} ({error})")
    if missing:
        raise ConfigError(f"{feature} needs {', '.join(missing)}; pip install '{install}'")
