"""Values that a GPU has computed, fetched together: each wait for one costs more than computing it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fetched(flags: Sequence[Tensor]) -> list[bool]:
    """Return the values of ``flags``, bool of shape (), waiting once for those of one device."""
    found: dict[int, bool] = {}
    for device in {flag.device for flag in flags}:
        places = [place for place, flag in enumerate(flags) if flag.device == device]
        values: list[bool] = torch.stack([flags[place] for place in places]).tolist()
        found.update(zip(places, values, strict=True))
    return [found[place] for place in range(len(flags))]
