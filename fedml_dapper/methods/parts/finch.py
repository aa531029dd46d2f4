"""FINCH (Sarfraz et al., CVPR 2019): clustering by first neighbours, without a number of clusters.

Every point is linked to its nearest neighbour in cosine similarity; connected points are a cluster. The same is done
with the means of the clusters, and so on, while more than one cluster is left.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def finch(points: Tensor) -> Tensor:
    """Labels, shape (n,), of the coarsest partition of ``points``, (n, d), that has more than one cluster.

    Points that all connect at once, such as any two or three, are one cluster. Clusters are numbered in the order of
    their lowest members; of equally near neighbours the lower index counts.
    """
    labels = link_first_neighbours(points)
    while True:
        coarser = link_first_neighbours(cluster_means(points, labels))[labels]
        if int(coarser.max()) == 0:
            return labels
        labels = coarser


def cluster_means(points: Tensor, labels: Tensor) -> Tensor:
    """The mean of each cluster's points, shape (clusters, d)."""
    return torch.stack([points[labels == label].mean(dim=0) for label in range(int(labels.max()) + 1)])


def link_first_neighbours(points: Tensor) -> Tensor:
    """Labels of one step: the connected components once each point is linked to its first neighbour."""
    directions = F.normalize(points.double(), dim=1)
    similarity = (directions @ directions.T).fill_diagonal_(-torch.inf)
    neighbours = similarity.argmax(dim=1)  # the first of equals
    itself = torch.arange(len(points), device=points.device)
    lowest = itself  # each point's lowest known companion
    while True:
        shared = torch.minimum(lowest, lowest[neighbours])
        shared = shared.scatter_reduce(0, neighbours, shared, "amin")
        if torch.equal(shared, lowest):
            return ((lowest == itself).cumsum(dim=0) - 1)[lowest]
        lowest = shared
