"""Data sets whose items are rows of tensors in memory, so that a batch is one look-up."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from fedml_dapper.datasets.readable import hindrance


def rows_at(dataset: object, indices: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return inputs and targets at ``indices`` int64 (B,) of a ``TensorDataset`` of two, or of a subset of one.

    They are what a ``DataLoader`` collates of its items. None for all other data sets, whose items may be anything, and
    where an index is none of its own, as fetching that item says which it is.
    """
    if isinstance(dataset, Subset) and type(dataset) is Subset:
        places = _taken(torch.as_tensor(dataset.indices), indices)
        return None if places is None else rows_at(dataset.dataset, places)
    if not isinstance(dataset, TensorDataset) or type(dataset) is not TensorDataset:  # a subclass may do otherwise
        return None
    if len(dataset.tensors) != 2 or not all(map(_is_plain, dataset.tensors)):
        return None
    inputs, targets = (_taken(tensor, indices) for tensor in dataset.tensors)
    return None if inputs is None or targets is None else (inputs, targets)


def _taken(tensor: Tensor, indices: Tensor) -> Tensor | None:
    try:
        return tensor.index_select(0, indices)
    except (IndexError, RuntimeError):
        return None


def _is_plain(tensor: Tensor) -> bool:
    is_in_memory = type(tensor) is Tensor and tensor.device.type == "cpu" and tensor.layout == torch.strided
    return is_in_memory and not tensor.requires_grad and not hindrance(tensor)
