"""Copies of many tensors in few calls: on a GPU each call costs more than copying a layer's weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


@torch.no_grad()
def copies_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return a copy of each tensor, as ``detach().clone()`` makes it."""
    originals = [tensor.detach() for tensor in tensors]
    copies = [torch.empty_like(tensor) for tensor in originals]
    copy_each(originals, copies)
    return copies


@torch.no_grad()
def copy_each(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Copy each source into the target in its place, of the same shape."""
    for places in places_by_dtype(targets):
        torch._foreach_copy_([targets[place] for place in places], [sources[place] for place in places])


def places_by_dtype(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return the places of the tensors of each dtype, which are copied in one call."""
    places: defaultdict[torch.dtype, list[int]] = defaultdict(list)
    for place, tensor in enumerate(tensors):
        places[tensor.dtype].append(place)
    return list(places.values())
