"""A direction that no client's update disagrees with: the shortest point of the updates' convex hull (FDSE)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def consensus_step(updates: Tensor) -> Tensor:
    """Step r sum_k u_k e_k (FDSE Eq. 8), where r is the mean length of all ``updates`` and e_k = D_k / ||D_k||.

    ``updates`` are D_k, float64 (N, P); the step has shape (P,) and a non-negative inner product with each of them.
    Updates of length zero have no direction and count in r alone. Where directions cancel, the step is zero: nothing
    suits all clients better than what they have.
    """
    lengths = torch.linalg.vector_norm(updates, dim=1)
    moved = lengths > 0
    if not bool(moved.any()):
        return torch.zeros_like(updates[0])
    directions = updates[moved] / lengths[moved, None]
    step: Tensor = lengths.mean() * (min_norm_weights(directions) @ directions)
    return step


def min_norm_weights(points: Tensor) -> Tensor:
    """Weights u (N,) = argmin ||sum_k u_k e_k||^2, u >= 0, sum u = 1, of the rows e_k of ``points``, float64 (N, P).

    Exact: for v = s u the non-negative least-squares objective ||E^T v||^2 + (1^T v - 1)^2 is s^2 q + (s - 1)^2 with
    q = ||E^T u||^2; its minimum over s, q / (q + 1), grows with q, so u = v / sum(v). Only the Gram matrix matters:
    R from E^T = Q R, of no more than N rows, stands for E^T, which may have millions.
    """
    from scipy.optimize import nnls  # noqa: PLC0415  # slow, and most methods do without

    factor = torch.linalg.qr(points.T, mode="r").R.cpu().numpy()
    count = len(points)
    solution, _ = nnls(np.vstack([factor, np.ones(count)]), np.append(np.zeros(len(factor)), 1.0))
    return torch.from_numpy(solution / solution.sum()).to(points.device)
