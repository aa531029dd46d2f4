"""Data sets whose items are rows of tensors in memory, so that a batch is one look-up."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from fedml_dapper.datasets.readable import hindrance


def rows_at(dataset: object, indices: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return inputs and targets at ``indices`` int64 (B,) of a ``TensorDataset`` of two, or of a subset of one.

    They are what a ``DataLoader`` collates of its items. None for all other data sets, whose items may be anything, and
    where an index is none of its own, as fetching that item says which it is.
    """
    tensors = _tensors_of(_whole_of(dataset))
    if not tensors or not all(map(_is_plain, tensors)):
        return None
    places: Tensor | None = indices
    while _is_subset(dataset):
        places = _part_of(_places(dataset), places)
        dataset = dataset.dataset
    inputs, targets = (_part_of(tensor, places) for tensor in tensors)
    return None if inputs is None or targets is None else (inputs, targets)


def inputs_in_memory(dataset: object) -> Tensor | None:
    """Return all inputs of a data set that :func:`rows_at` knows; None for others. A whole one's are not copied."""
    if _is_subset(dataset):
        whole = inputs_in_memory(dataset.dataset)
        return None if whole is None else part_of(whole, dataset)
    tensors = _tensors_of(dataset)
    return tensors[0] if tensors and not hindrance(tensors[0]) else None


def part_of(whole: Tensor, subset: Subset[Any]) -> Tensor | None:
    """Return the rows of ``whole`` that ``subset`` takes; None where an index is none of these."""
    return _part_of(whole, _places(subset))


def _places(subset: Subset[Any]) -> Tensor | None:
    """Return what ``subset`` takes; None where it is told otherwise than by numbers, as by keys."""
    try:
        places = torch.as_tensor(subset.indices)
    except (TypeError, ValueError, RuntimeError):  # they make no tensor
        return None
    # as indices of a tensor these two are a mask
    return None if places.dtype in (torch.bool, torch.uint8) else places


def _part_of(tensor: Tensor | None, places: Tensor | None) -> Tensor | None:
    return None if tensor is None or places is None else _taken(tensor, places)


def _is_subset(dataset: object) -> TypeGuard[Subset[Any]]:
    """Return whether a data set is a part of another one, and nothing else: a subclass may change the items."""
    return type(dataset) is Subset


def _whole_of(dataset: object) -> object:
    """Return the data set that ``dataset`` is a part of, perhaps of a part of it; itself where it is whole."""
    while _is_subset(dataset):
        dataset = dataset.dataset
    return dataset


def _tensors_of(dataset: object) -> tuple[Tensor, ...]:
    """Return inputs and targets of which the data set's items are rows; none where its items may be something else."""
    if not isinstance(dataset, TensorDataset) or type(dataset) is not TensorDataset:  # a subclass may do otherwise
        return ()
    return dataset.tensors if len(dataset.tensors) == 2 else ()


def _taken(tensor: Tensor, indices: Tensor) -> Tensor | None:
    try:
        return tensor[indices]
    except (IndexError, RuntimeError):
        return None


def _is_plain(tensor: Tensor) -> bool:
    is_in_memory = type(tensor) is Tensor and tensor.device.type == "cpu" and tensor.layout == torch.strided
    return is_in_memory and not tensor.requires_grad and not hindrance(tensor)
