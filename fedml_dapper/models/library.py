"""Networks of torchvision and timm, e.g. ``torchvision:mobilenet_v2``, with a head for the data's classes."""

from __future__ import annotations

import importlib
from types import ModuleType

from fedml_dapper.config import LIBRARIES, did_you_mean
from fedml_dapper.errors import ConfigError
from fedml_dapper.models.catalogue import Factory


def library_factory(name: str) -> Factory | None:
    """Return a function that makes the network ``name`` from keyword arguments; None if ``name`` names no library.

    Nothing is downloaded unless the arguments ask for it.

    Raises:
        ConfigError: The library is not installed, or has no such network.
    """
    library, colon, network = name.partition(":")
    if not colon or library not in LIBRARIES:
        return None
    try:
        module = importlib.import_module(library)
    except ImportError as error:
        raise ConfigError(f"model_args.model: `{name}` needs {library} ({error}); pip install {library}") from error
    known = _names(module)
    if network not in known:
        raise ConfigError(f"model_args.model: {library} has no network `{network}`{_close(network, known)}")
    make: Factory = module.create_model if library == "timm" else module.models.get_model
    return lambda num_classes, **arguments: make(network, num_classes=num_classes, **arguments)


def _names(library: ModuleType) -> list[str]:
    names: list[str] = library.list_models() if library.__name__ == "timm" else library.models.list_models()
    return names


def _close(network: str, known: list[str]) -> str:
    """A spelling hint like that of ``did_you_mean``, without its list of all known names, which are hundreds."""
    return text if "did you mean" in (text := did_you_mean(network, known)) else ""
