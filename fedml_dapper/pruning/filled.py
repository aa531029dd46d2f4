"""Linear layers with fewer weights between activations of full width."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FilledLinear(nn.Linear):
    """A linear layer without the weights of pruned attention heads, between activations that keep their full width.

    Used where the network's own views fix how many heads there are. The layer reads only the inputs for which its
    weight has columns, and outputs zeros where rows are missing. ``in_features`` and ``out_features`` are those of the
    activations. Tensors keep their names.
    """

    _read: Tensor | None
    _written: Tensor | None

    @classmethod
    def take_over(cls, layer: nn.Linear, cuts: dict[int, Tensor]) -> None:
        """Turn ``layer``, whose tensors are already cut, into this class in place.

        Args:
            layer: A linear layer, or one of this class that is cut once more.
            cuts: Axis of the weight (0 for rows, 1 for columns) -> kept entries, counted among those that the layer had
                until now.
        """
        places = {}
        for dim, name, features in ((0, "_written", layer.out_features), (1, "_read", layer.in_features)):
            before = getattr(layer, name, None)
            kept = cuts.get(dim)
            places[name] = before if kept is None else kept if before is None else before[kept.to(before.device)]
            if places[name] is None:
                setattr(layer, ("out_features", "in_features")[dim], layer.weight.shape[dim])
            else:
                setattr(layer, ("out_features", "in_features")[dim], features)
        layer.__class__ = cls
        for name, entries in places.items():
            layer.register_buffer(name, None if entries is None else entries.to(layer.weight.device), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        read = input if self._read is None else input.index_select(-1, self._read)
        out = F.linear(read, self.weight, self.bias)
        if self._written is None:
            return out
        return torch.index_copy(out.new_zeros(*out.shape[:-1], self.out_features), -1, self._written, out)
