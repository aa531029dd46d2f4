"""Linear layers with fewer weights, also between activations of full width."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.models.adapters import AdaptedLinear
from fedml_dapper.pruning.layout import ChannelLayout, LinearMap
from fedml_dapper.pruning.plan import axis_of


class _Filled(nn.Module):
    """A layer that reads only the inputs for which its matrix has columns, and outputs zeros where rows are missing.

    ``in_features`` and ``out_features`` are those of the activations.
    """

    in_features: int
    out_features: int
    _read: Tensor | None
    _written: Tensor | None

    def _note(self, rows: int, columns: int, written: Tensor | None, read: Tensor | None) -> None:
        """Note the kept rows and columns, counted among those that there were until now; None: activations fit these.

        Args:
            rows: Number of rows of the matrix, which is already cut.
            columns: The same of columns.
            written: Kept rows.
            read: Kept columns.
        """
        for name, kept, features, size in (
            ("_written", written, "out_features", rows),
            ("_read", read, "in_features", columns),
        ):
            before = getattr(self, name, None)
            places = before if kept is None else kept if before is None else before[kept.to(before.device)]
            if places is None:
                setattr(self, features, size)
            device = next(self.parameters()).device
            self.register_buffer(name, None if places is None else places.to(device), persistent=False)

    def _filled(self, input: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Return what ``compute`` makes of the inputs that are read, at the places of the outputs that are left."""
        out = compute(input if self._read is None else input.index_select(-1, self._read))
        if self._written is None:
            return out
        return torch.index_copy(out.new_zeros(*out.shape[:-1], self.out_features), -1, self._written, out)


class FilledLinear(_Filled, nn.Linear):
    """A linear layer without the weights of pruned attention heads, between activations that keep their full width.

    Used where the network's own views fix how many heads there are. Tensors keep their names.
    """

    @classmethod
    def take_over(cls, layer: nn.Linear, cuts: Mapping[int, Tensor]) -> None:
        """Turn ``layer``, whose tensors are already cut, into this class in place.

        Args:
            layer: A linear layer, or one of this class that is cut once more.
            cuts: Axis of the weight (0 for rows, 1 for columns) -> kept entries, counted among those that the layer had
                until now, where activations keep their full width.
        """
        layer.__class__ = cls
        assert isinstance(layer, cls)
        rows, columns = layer.weight.shape
        layer._note(rows, columns, cuts.get(0), cuts.get(1))

    def forward(self, input: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        return self._filled(input, lambda read: F.linear(read, self.weight, self.bias))


class FilledAdapted(_Filled, AdaptedLinear):
    """A :class:`FilledLinear` with an adapter, whose matrices are cut like those of the layer."""

    @classmethod
    def take_over(cls, layer: AdaptedLinear, written: Tensor | None, read: Tensor | None) -> None:
        """Turn ``layer``, whose tensors are already cut, into this class in place.

        Args:
            layer: A layer with an adapter, or one of this class that is cut once more.
            written: Kept outputs, counted among those that the layer had until now; None where activations fit.
            read: Kept inputs, likewise.
        """
        layer.__class__ = cls
        assert isinstance(layer, cls)
        layer._note(len(layer.lora_b), layer.lora_a.shape[1], written, read)

    def match_sizes(self) -> None:
        """Leave the declared sizes, which are those of the activations."""

    def forward(self, input: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        return self._filled(input, super().forward)

    def merged(self) -> nn.Linear:
        layer = super().merged()
        places = {0: self._written, 1: self._read}
        FilledLinear.take_over(layer, {dim: kept for dim, kept in places.items() if kept is not None})
        layer.out_features, layer.in_features = self.out_features, self.in_features
        return layer


class SlimLinearMap(_Filled):
    """A user's own layer that only multiplies by a matrix, of whatever size this has; tensors keep their names.

    The layer's own code may rely on the sizes that it was made with.
    """

    known: LinearMap

    @classmethod
    def take_over(
        cls, layer: nn.Module, known: LinearMap, dense_shape: Sequence[int], cuts: Mapping[int, Tensor]
    ) -> None:
        """Turn ``layer``, whose tensors are already cut, into this class in place.

        Args:
            layer: A layer that does what ``known`` says, or one of this class that is cut once more.
            known: Where it holds its matrix.
            dense_shape: Shape of the matrix before the cut.
            cuts: Axis of the matrix -> kept entries, as of :meth:`FilledLinear.take_over`.
        """
        is_first = not isinstance(layer, cls)
        layer.__class__ = cls
        assert isinstance(layer, cls)
        if is_first:
            layer.known = known
            layer.out_features, layer.in_features = dense_shape[known.rows], dense_shape[known.columns]
        shape = layer.get_parameter(known.matrix).shape
        layer._note(shape[known.rows], shape[known.columns], cuts.get(known.rows), cuts.get(known.columns))

    def extra_repr(self) -> str:
        """The sizes that ``repr`` shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}"

    def forward(self, input: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        matrix: Tensor = getattr(self, self.known.matrix)
        bias = None if self.known.bias is None else getattr(self, self.known.bias)
        rows_first = matrix if self.known.rows == 0 else matrix.t()
        return self._filled(input, lambda read: F.linear(read, rows_first, bias))


def filled_channels(layout: ChannelLayout, model: nn.Module) -> dict[str, Tensor]:
    """Return the channels that ``model``, a slim one of ``layout``, kept of groups between activations of full width.

    Its tensors do not tell which these are, and anything may tell them apart that stands between the activations.
    """
    kept = dict[str, Tensor]()
    layers = dict(model.named_modules())
    for group in layout.groups.values():
        axis = axis_of(layout, group.name, group.producers[0])
        layer = layers.get(group.producers[0].rpartition(".")[0])  # None where the model goes without it
        if axis.filled and isinstance(layer, _Filled) and layer._written is not None:
            places = axis.of(torch.arange(group.channels))[:, 0]
            kept[group.name] = torch.isin(places, layer._written.cpu()).nonzero().flatten()
    return kept
