"""Checks that a network can be trained, sent and saved; each error names the layer and what to do."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedml_dapper.errors import ConfigError
from fedml_dapper.models.running import first_line

ModuleT = TypeVar("ModuleT", bound=nn.Module)
_TORCHS_OWN = frozenset(vars(nn.Module()))
"""Attributes by which a module stores what it has registered."""
_REGISTERED = ("_parameters", "_buffers", "_modules")


def check_network(module: nn.Module, label: str) -> None:
    """Check that ``module``, called ``label`` in errors, can be traced, and that its state can be averaged and sent.

    Raises:
        ConfigError: A layer is scripted or gives sparse gradients, or an entry of the state dict is no tensor,
            quantised or complex.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse:
            where = f"`{name}` in it gives" if name else "it gives"
            raise ConfigError(
                f"{label} cannot be trained: {where} sparse gradients, which neither weight decay nor clipping takes;"
                " make it with sparse=False"
            )
        if isinstance(layer, torch.jit.ScriptModule):
            where = f"`{name}` in it is" if name else "it is"
            raise ConfigError(
                f"{label} cannot be taken apart: {where} scripted or traced by torch.jit; give the module that it was"
                " made from"
            )
    for name, entry in module.state_dict(keep_vars=True).items():
        if not isinstance(entry, Tensor) or entry.is_quantized:
            kind = "quantised" if isinstance(entry, Tensor) else f"{type(entry).__name__}, no tensor"
            raise ConfigError(
                f"{label} has a state that cannot be averaged: `{name}` is {kind}; give the network before it was"
                " quantised, and leave all but tensors out of its state dict"
            )
        if entry.is_complex():
            buffer = "" if isinstance(entry, nn.Parameter) else ", or register it with persistent=False"
            raise ConfigError(
                f"{label} has complex numbers in `{name}`, which are not averaged; keep torch.view_as_real of them"
                f" there, and use torch.view_as_complex of that in forward{buffer}"
            )


def check_starting_weights(module: nn.Module, label: str, *, from_file: bool = False) -> None:
    """Check that training starts from finite numbers. ``label`` says in errors where they come from.

    Raises:
        ConfigError: A tensor of the state dict holds NaN or infinity, which would be in every upload.
    """
    for name, entry in module.state_dict(keep_vars=True).items():
        held = int(entry.isfinite().sum())
        if held == entry.numel():
            continue
        if from_file:
            remedy = "name other weights"
        elif isinstance(entry, nn.Parameter):
            remedy = "let __init__ draw it, as torch.nn.init does"
        else:
            remedy = "register it with persistent=False, or write -1e9 for a minus infinity"
        raise ConfigError(
            f"{label}: its starting weights are not finite: `{name}` (NaN or infinity, in {entry.numel() - held} of"
            f" {entry.numel()} entries); {remedy}"
        )


def copied(module: ModuleT, label: str) -> ModuleT:
    """Return a deep copy of ``module``, called ``label`` in errors.

    Raises:
        ConfigError: It cannot be copied.
    """
    try:
        return copy.deepcopy(module)
    except Exception as error:  # whatever the user's objects raise
        raise ConfigError(f"{label} cannot be copied: {_uncopied(module) or first_line(error)}") from error


def _uncopied(module: nn.Module) -> str:
    """Return what of ``module`` cannot be copied, and what to do about it; empty if that cannot be told."""
    for name, layer in module.named_modules():
        for attribute, value in vars(layer).items():
            place = f"`{name}.{attribute}`" if name else f"`{attribute}`"
            if isinstance(value, Tensor) and value.grad_fn is not None:
                return (
                    f"{place} is computed of other tensors and kept; compute it in forward, or as"
                    " torch.nn.utils.parametrizations do (weight_norm there replaces torch.nn.utils.weight_norm)"
                )
            if attribute in _REGISTERED:
                continue
            try:
                copy.deepcopy(value)
            except Exception as error:  # noqa: BLE001  # whatever the user's objects raise
                return f"{place} ({type(value).__name__}: {first_line(error)}); make it in forward, or as a global"
    return ""


def return_hint(outputs: object) -> str:
    """Say how a network that returns ``outputs`` can return one tensor instead."""
    names = [str(name) for name in outputs] if isinstance(outputs, Mapping) else []
    if hasattr(outputs, "logits"):
        wanted = "`.logits` of that"
    elif names:
        wanted = f"its entry `{'logits' if 'logits' in names else names[0]}`"
    elif isinstance(outputs, tuple | list) and outputs:
        wanted = "one of them, as [0]"
    else:
        return "leave auxiliary outputs out"
    return f"leave auxiliary outputs out: put a module around it whose forward returns {wanted}"


def layers_out_of_sight(network: nn.Module) -> list[str]:
    """Return a line for each plain list, tuple, set or dict that hides layers or parameters from torch.

    Torch knows of those in ``nn.ModuleList`` and the like, but not of those in plain containers.
    """
    known = {id(each) for each in (*network.modules(), *network.parameters())}
    lines = []
    for name, module in network.named_modules():
        for attribute, value in vars(module).items():
            if attribute in _TORCHS_OWN or not isinstance(value, list | tuple | set | dict):
                continue
            found = [each for each in _layers_in(value, set()) if id(each) not in known]
            if found:
                kind = type(value).__name__
                like = "Dict" if isinstance(value, dict) else "List"
                what = "Parameter" if all(isinstance(each, nn.Parameter) for each in found) else "Module"
                where = f"{name}.{attribute}" if name else attribute
                lines.append(
                    f"`{where}` is a plain {kind}: what it holds is neither trained, cut, sent nor saved; make it an"
                    f" nn.{what}{like}"
                )
    return lines


def _layers_in(value: Any, seen: set[int]) -> Iterator[nn.Module | nn.Parameter]:
    """Yield parameters, and layers that have some, in a container or in containers inside it."""
    if isinstance(value, nn.Parameter) or (isinstance(value, nn.Module) and next(value.parameters(), None) is not None):
        yield value
    elif isinstance(value, list | tuple | set | dict) and id(value) not in seen:
        seen.add(id(value))
        inside: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for each in inside:
            yield from _layers_in(each, seen)
