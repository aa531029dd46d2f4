"""Findings on values of an upload, which stay on a GPU until somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.round.fetched import fetched
from fedml_dapper.federation.round.update_norm import is_finite


@dataclass(frozen=True, eq=False)
class Finding:
    """A rule that each entry of several tensors keeps or breaks."""

    broken: Tensor
    """Whether each entry breaks the rule, bool (N,), over all tensors in order."""
    sizes: Mapping[str, int]
    """Number of entries of each tensor, by name."""
    rule: str
    """What is wrong with a tensor that breaks it, going on after its name."""

    def first(self) -> str:
        """Return the name of the first tensor that breaks the rule; one of them has to."""
        parts = torch.split(self.broken.cpu(), list(self.sizes.values()))
        return next(name for name, part in zip(self.sizes, parts, strict=True) if part.any())


def raise_first(findings: Sequence[Finding]) -> None:
    """Raise :class:`ProtocolError` where a rule is broken; a GPU is waited for once."""
    for finding, is_broken in zip(findings, fetched([each.broken.any() for each in findings]), strict=True):
        if is_broken:
            raise ProtocolError(f"upload's `{finding.first()}` {finding.rule}")


def all_finite(tensors: Iterable[Tensor]) -> Tensor:
    """Return whether no tensor holds infinity or NaN: bool (), without waiting for a GPU that has them."""
    floating = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not floating or not all(tensor.is_cuda for tensor in floating):
        return torch.tensor(is_finite(floating))
    largest = torch._foreach_norm(floating, float("inf"))  # one call, and no overflow
    return torch.isfinite(torch.stack([each.float() for each in largest])).all()
