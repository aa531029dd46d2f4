"""Check of packages that one feature alone needs, to be made before the feature does anything."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution

from fedml_dapper.errors import ConfigError


def need(feature: str, *packages: str, install: str) -> None:
    """Import the ``packages`` that ``feature`` needs.

    Args:
        feature: What the error says needs them.
        packages: Names by which they are imported.
        install: What pip has to install to get them.

    Raises:
        ConfigError: A package is missing, or cannot be imported.
    """
    missing = []
    for package in packages:
        try:
            import_module(package)
        except ModuleNotFoundError as error:
            missing.append(package if (error.name or package) == package else f"{package} ({error})")
        except ImportError as error:  # it is installed, and something that it imports is broken
            missing.append(f"{package} ({error})")
    if missing:
        raise ConfigError(f"{feature} needs {', '.join(missing)}; pip install '{install}'")


def extra(feature: str) -> str:
    """Return what pip has to install for a ``feature`` of the distribution that is installed here."""
    try:
        distribution("fedml-dapper-device")
    except PackageNotFoundError:
        return f"fedml-dapper[{feature}]"
    return f"fedml-dapper-device[{feature}]"
