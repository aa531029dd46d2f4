"""Copies to a GPU that nobody waits for: a plain copy waits until the GPU has done all that it was given before."""

from __future__ import annotations

import torch
from torch import Tensor


def sent_to(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Return ``tensor`` on ``device``: the tensor itself where it is there, otherwise a copy.

    A copy to a GPU is made when the GPU comes to it; ``tensor`` may change or go meanwhile.
    """
    target = torch.device(device)
    if target.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(target, non_blocking=True)
    return tensor.to(target)
