"""Frozen parameters: a base that nobody trains. Every process builds it with the network, so it never travels."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

FROZEN_SOURCE = "model_args.frozen"
"""Name, among the code and data from outside of this package, of what frozen parameters hold."""
_DIGITS = 12


class MovedAtServer(nn.Parameter):
    """A parameter that no client trains and the server changes, so that it travels as trained ones do."""


def frozen_digest(network: nn.Module) -> str | None:
    """Return a digest of the values of all parameters with ``requires_grad=False``; None where there are none.

    Processes whose networks are built alike may still hold other values, as each loads its own file.
    """
    digest = hashlib.sha256()
    names = list[str]()
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            names.append(name)
            digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
            digest.update(parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return f"{len(names)} tensors (content {digest.hexdigest()[:_DIGITS]})" if names else None
