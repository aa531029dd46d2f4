"""Every client's vector as a mean of all clients' vectors, weighted by similarity (FDSE Eq. 9)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def mix_by_similarity(vectors: Tensor, tau: float) -> Tensor:
    """A V, where the rows of V are the clients' ``vectors``, (N, P), themselves and not their directions."""
    return similarity_weights(vectors, tau) @ vectors


def similarity_weights(vectors: Tensor, tau: float) -> Tensor:
    """A = softmax over rows of q q^T / ``tau``, q_k = V_k / ||V_k||: (N, N), from ``vectors`` (N, P).

    ``tau`` towards 0 leaves every vector as it is, towards infinity all become the plain mean.
    """
    directions = F.normalize(vectors, dim=1)
    return torch.softmax(directions @ directions.T / tau, dim=1)
