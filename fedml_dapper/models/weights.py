"""Initial weights from a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedml_dapper.errors import ConfigError
from fedml_dapper.models.backbone import Backbone

_SHOWN = 3


def load_weights(backbone: Backbone, path: Path) -> None:
    """Load the state dict in ``path`` into ``backbone``: safetensors, or a file of ``torch.save`` with tensors alone.

    Raises:
        ConfigError: The file holds no state dict, or names and shapes are not those of the network.
    """
    found = _read(path)
    own = backbone.state_dict()
    reshaped = {name for name in found.keys() & own.keys() if found[name].shape != own[name].shape}
    if found.keys() == own.keys() and reshaped and reshaped <= backbone.head_tensors:
        found_classes, own_classes = (
            next(iter(tensors[name].shape[0] for name in reshaped)) for tensors in (found, own)
        )
        raise ConfigError(
            f"model_args.weights: {path} is for {found_classes} classes, and the data have {own_classes}, so its head"
            f" ({', '.join(sorted(reshaped))}) does not fit; let a model file of your own load it and put a new head on"
        )
    problems = [
        _listed("the file lacks", own.keys() - found.keys()),
        _listed("the network has no", found.keys() - own.keys()),
        _listed(
            "of other shape are",
            {f"{name} {tuple(found[name].shape)} for {tuple(own[name].shape)}" for name in reshaped},
        ),
    ]
    if any(problems):
        raise ConfigError(f"model_args.weights: {path} does not fit the network: {'; '.join(filter(None, problems))}")
    backbone.load_state_dict(dict(found))


def _read(path: Path) -> Mapping[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise errors of many kinds
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"model_args.weights: {path} holds no plain tensors ({reason}); save model.state_dict(), by safetensors or"
            " torch.save"
        ) from error
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ConfigError(f"model_args.weights: {path} holds no state dict; save model.state_dict()")
    return found


def _listed(what: str, names: set[str]) -> str:
    if not names:
        return ""
    shown = sorted(names)[:_SHOWN]
    more = len(names) - _SHOWN
    return f"{what} {', '.join(shown)}" + (f" and {more} more" if more > 0 else "")
