"""Layers of users' own classes that only multiply by a matrix, found by trying."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedml_dapper.models.adapters import AdaptedLinear
from fedml_dapper.models.running import in_mode
from fedml_dapper.pruning.layout import LinearMap

_SEED = 17
_TOLERANCE = 1e-4
_BATCHES = ((3,), (3, 2))
"""Sizes of the batches that are tried, as some layers take inputs of two axes alone, and some of three."""


def linear_maps(model: nn.Module) -> dict[str, LinearMap]:
    """Return the layers that map their input to its product with a matrix, plus perhaps a bias; by name.

    ``nn.Linear`` does, and so may layers of any class that hold a matrix, at most one vector and nothing else. Torch's
    other classes are left out.
    """
    found = {name: _linear_map(layer) for name, layer in model.named_modules()}
    return {name: known for name, known in found.items() if known is not None}


def _linear_map(layer: nn.Module) -> LinearMap | None:
    own = dict(layer.named_parameters(recurse=False))
    if isinstance(layer, AdaptedLinear):
        bias = "bias" if "bias" in own else None
        return LinearMap("weight", bias, int(layer.is_transposed), adapter=("lora_a", "lora_b"))
    if type(layer) is nn.Linear:
        return LinearMap("weight", "bias", 0) if "weight" in own else None  # by weight_norm it is none of the layer's
    matrices = [name for name, tensor in own.items() if tensor.dim() == 2]
    vectors = [name for name, tensor in own.items() if tensor.dim() == 1]
    holds_more = bool(list(layer.children()) or list(layer.buffers()) or len(own) > len(matrices) + len(vectors))
    hooked = bool(layer._forward_hooks or layer._forward_pre_hooks)
    if type(layer).__module__.startswith("torch.") or holds_more or hooked:
        return None
    if len(matrices) != 1 or len(vectors) > 1:
        return None
    for rows in (0, 1):
        known = LinearMap(matrices[0], vectors[0] if vectors else None, rows)
        fits = known.bias is None or len(own[known.bias]) == own[known.matrix].shape[rows]
        if fits and _is(layer, known):
            return known
    return None


def _is(layer: nn.Module, known: LinearMap) -> bool:
    """Return whether ``layer`` computes what ``known`` says, in evaluation and in training, for random numbers."""
    generator = torch.Generator().manual_seed(_SEED)
    tensors = {
        name: torch.randn(tensor.shape, generator=generator).to(tensor) for name, tensor in layer.named_parameters()
    }
    matrix = tensors[known.matrix] if known.rows == 0 else tensors[known.matrix].t()
    bias = None if known.bias is None else tensors[known.bias]
    parameters = {id(parameter): parameter for parameter in layer.parameters()}
    for training in (False, True):
        trial = in_mode(copy.deepcopy(layer, dict(parameters)), training)
        for batch in _BATCHES:
            x = torch.randn(*batch, matrix.shape[1], generator=generator).to(matrix)
            out = _output(trial, tensors, x)
            if out is not None:
                break
        expected = F.linear(x, matrix, bias)
        if not isinstance(out, Tensor) or out.shape != expected.shape:
            return False
        if not bool((out - expected).abs().max() <= _TOLERANCE * expected.abs().max()):
            return False
    return True


def _output(layer: nn.Module, tensors: dict[str, Tensor], x: Tensor) -> object:
    """Return what the layer puts out with these tensors; None if it fails."""
    try:
        return functional_call(layer, tensors, (x,))
    except Exception:  # noqa: BLE001  # whatever a user's layer raises for an input that it does not expect
        return None
