"""Sizes that layers declare as attributes, brought in line with their cut tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrize import is_parametrized

from fedml_dapper.models.adapters import AdaptedLinear
from fedml_dapper.pruning.attention import SlimAttention
from fedml_dapper.pruning.filled import FilledLinear


def match_attributes(module: nn.Module) -> None:
    """Set a layer's declared sizes to those of its cut tensors, so that it runs, prints and serialises consistently.

    Grouped convolutions and group norms are expected to have lost whole groups, and attention whole heads.
    """
    if is_parametrized(module):
        with _as_in_evaluation(module):
            _match(module)
    else:
        _match(module)


@contextmanager
def _as_in_evaluation(module: nn.Module) -> Iterator[None]:
    """Have a parametrized layer compute its weight without a trace; ``spectral_norm`` goes a step on in training."""
    modes = {part: part.training for part in module.modules()}
    for part in modes:
        part.training = False
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def _match(module: nn.Module) -> None:
    match module:
        case _ConvNd():
            _match_convolution(module)
        case AdaptedLinear():
            module.match_sizes()
        case FilledLinear():
            pass  # its sizes are those of the activations around it
        case nn.Linear():
            module.out_features, module.in_features = module.weight.shape
        case _NormBase():
            sized = module.weight if module.weight is not None else module.running_mean
            module.num_features = module.num_features if sized is None else len(sized)
        case nn.GroupNorm() if module.affine:
            module.num_groups = module.num_groups * len(module.weight) // module.num_channels
            module.num_channels = len(module.weight)
        case nn.LayerNorm() | nn.RMSNorm() if module.weight is not None:
            module.normalized_shape = tuple(module.weight.shape)
        case nn.PReLU():
            module.num_parameters = len(module.weight)
        case nn.Embedding():
            module.num_embeddings, module.embedding_dim = module.weight.shape
        case nn.MultiheadAttention() if module.in_proj_weight is not None:
            if module.in_proj_weight.shape != (3 * module.embed_dim, module.embed_dim):
                SlimAttention.take_over(module)


def _match_convolution(module: _ConvNd) -> None:
    rows, columns = module.weight.shape[:2]
    if module.transposed:
        if module.groups > 1:
            module.groups = rows * module.groups // module.in_channels
        module.in_channels = rows
        module.out_channels = columns * module.groups
    else:
        if module.groups > 1:
            module.groups = rows * module.groups // module.out_channels
        module.in_channels = columns * module.groups
        module.out_channels = rows
