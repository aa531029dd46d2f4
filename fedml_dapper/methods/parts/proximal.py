"""The quadratic term that holds a model near another one (FedProx, Ditto, FedDyn)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedml_dapper.pruning import Tensors


def proximal(parameters: Tensors, reference: Tensors, mu: float) -> Tensor:
    """(mu / 2) sum ||w - W||^2 over ``parameters``, a scalar."""
    squares = [(parameter - reference[name]).square().sum() for name, parameter in parameters.items()]
    return mu / 2 * torch.stack(squares).sum()
