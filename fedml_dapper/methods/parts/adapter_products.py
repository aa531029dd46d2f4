"""Adapters as pairs of matrices A and B, their products B A, and the leading components of a product.

The factor alpha / r of a layer is that of the whole rank at every level, so products are averaged without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from fedml_dapper.methods.contract import Upload
from fedml_dapper.pruning import Axis, ChannelLayout, RecoveringMean, Tensors, TensorSpec
from fedml_dapper.pruning.layout import Entries


@dataclass(frozen=True)
class Adapter:
    """An adapter's rank components, by the name of their group, and its matrices, by theirs."""

    group: str
    a: str
    """A, of shape (r, in), or of a convolution's (r, in, height, width), whose last axes count as one."""
    b: str
    """B, of shape (out, r), or of a convolution's (out, r, 1, 1)."""


def adapters_of(layout: ChannelLayout) -> tuple[Adapter, ...]:
    """Return the adapters whose components are channels of ``layout``, in its order."""
    return tuple(
        Adapter(name, group.producers[0], group.partner)
        for name, group in layout.groups.items()
        if group.partner is not None
    )


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return B A in float64, shape (out, in)."""
    return b.detach().double().flatten(1) @ a.detach().double().flatten(1)


def squared_length(a: Tensor, b: Tensor) -> float:
    """Return the squared Frobenius norm of B A, from the r x r matrices B^T B and A A^T alone."""
    wide_a = a.detach().double().flatten(1)
    wide_b = b.detach().double().flatten(1)
    return max(0.0, float(((wide_b.t() @ wide_b) * (wide_a @ wide_a.t())).sum()))


def leading_components(whole: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return A (rank, in) and B (out, rank), whose product is the nearest to ``whole`` (out, in) of that rank.

    Components come in the order of their singular values, so that any first few of them are nearest too. Singular
    values go to B, and rows of A have length 1. The largest entry of a column of B is positive, by which the signs are
    settled. What ``rank`` has beyond the sides of ``whole`` is zero. It is computed on the CPU, whatever trains.
    """
    left, values, right = torch.linalg.svd(whole.detach().double().cpu(), full_matrices=False)
    largest = left.abs().argmax(dim=0, keepdim=True)
    signs = torch.where(left.gather(0, largest) < 0, -1.0, 1.0).flatten()
    found = min(rank, len(values))
    a = whole.new_zeros(rank, whole.shape[1], dtype=torch.float64, device="cpu")
    b = whole.new_zeros(whole.shape[0], rank, dtype=torch.float64, device="cpu")
    a[:found] = (signs[:, None] * right)[:found]
    b[:, :found] = (signs * values * left)[:, :found]
    return a, b


class ProductMean:
    """Running mean of adapters' products, from whose sum over partitions of the components A and B are found anew.

    A client holds of a partition's product the rows and columns that its base has, if it has components of that
    partition at all. Each entry is averaged over its holders; one without holders stays what the server's A and B make
    it. For every partition there is a sum in float64 of the size of each layer's matrix.

    Args:
        before: The server's A and B, by name.
        layout: Layout of the network.
        bounds: For each adapter where its partitions end, ascending; the last is its rank.
    """

    def __init__(self, before: Tensors, layout: ChannelLayout, bounds: Mapping[Adapter, Sequence[int]]) -> None:
        self._before = before
        self._bounds = bounds
        previous = dict[str, Tensor]()
        specs = dict[str, TensorSpec]()
        for adapter in bounds:
            for name, part in self._parts(before, adapter).items():
                previous[name] = part
                specs[name] = _spec_of_product(layout, adapter, part)
        self._mean = RecoveringMean(previous, replace(layout, tensors=specs), "holders")

    def add(self, upload: Upload, weight: float) -> None:
        """Add the products of an upload that has been checked, by its ``weight``."""
        products = {
            name: part for adapter in self._bounds for name, part in self._parts(upload.weights, adapter).items()
        }
        self._mean.take(products, upload.plan, weight)

    def wholes(self) -> dict[Adapter, Tensor]:
        """Return the mean of each adapter's products, float64 of shape (out, in)."""
        means = self._mean.result()
        return {
            adapter: torch.stack([means[_name(adapter, place)] for place in range(len(bounds))]).sum(dim=0)
            for adapter, bounds in self._bounds.items()
        }

    def result(self) -> dict[str, Tensor]:
        """Return the new A and B, by name; those before where the product is zero, as it is until B has moved."""
        found = dict(self._before)
        for adapter, whole in self.wholes().items():
            if bool(whole.any()):
                rank = self._bounds[adapter][-1]
                for name, factor in zip((adapter.a, adapter.b), leading_components(whole, rank), strict=True):
                    found[name] = factor.view(self._before[name].shape).to(self._before[name])
        return found

    def _parts(self, weights: Tensors, adapter: Adapter) -> dict[str, Tensor]:
        """Products of the partitions of which ``weights`` have components, by their names in the mean."""
        a = weights[adapter.a]
        b = weights[adapter.b]
        starts = (0, *self._bounds[adapter][:-1])
        return {
            _name(adapter, place): product(a[start:end], b[:, start:end])
            for place, (start, end) in enumerate(zip(starts, self._bounds[adapter], strict=True))
            if start < len(a)
        }


def _name(adapter: Adapter, partition: int) -> str:
    return f"{adapter.group}, partition {partition}"


def _spec_of_product(layout: ChannelLayout, adapter: Adapter, whole: Tensor) -> TensorSpec:
    """How a product may be cut: its rows as those of B, its columns as those of A."""
    rows = (axis for axis in layout.tensors[adapter.b].axes if axis.dim == 0)
    a = layout.tensors[adapter.a]
    positions = prod(a.shape[2:])
    columns = (_spread(axis, positions) for axis in a.axes if axis.dim == 1)
    return TensorSpec(tuple(whole.shape), whole.dtype, True, 0, (*rows, *columns))


def _spread(axis: Axis, positions: int) -> Axis:
    """Return ``axis`` where each of its entries has become that many in a row."""
    if axis.entries is None:
        return replace(axis, repeat=axis.repeat * positions)
    index = axis.entries.index[..., None] * positions + torch.arange(positions)
    return replace(axis, repeat=axis.repeat * positions, entries=Entries(index.flatten(1)))
