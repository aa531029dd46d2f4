"""Values that a GPU has computed, fetched together: each wait for one costs more than computing it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor


def fetched(values: Sequence[Tensor]) -> list[float]:
    """Return ``values``, numbers or flags of shape (), waiting once for those of one device and dtype."""
    places: defaultdict[tuple[torch.device, torch.dtype], list[int]] = defaultdict(list)
    for place, value in enumerate(values):
        places[value.device, value.dtype].append(place)
    found: dict[int, float] = {}
    for alike in places.values():
        found.update(zip(alike, torch.stack([values[place] for place in alike]).tolist(), strict=True))
    return [found[place] for place in range(len(values))]
