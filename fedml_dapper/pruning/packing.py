"""Packing of slim models into vectors of a secure sum, and of its result back into sums of dense tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedml_dapper.pruning.fixed_point_mean import Numbers
from fedml_dapper.pruning.layout import ChannelLayout, TensorSpec
from fedml_dapper.pruning.plan import PruningPlan
from fedml_dapper.pruning.recovery import PartialSum
from fedml_dapper.pruning.running_sum import shapes_of_sums
from fedml_dapper.pruning.slim import KeptIndices
from fedml_dapper.secure_sum import cells_of

if TYPE_CHECKING:
    from fedml_dapper.secure_sum import Opened

Bits = NDArray[np.uint64]
CellNumbers = NDArray[np.unsignedinteger[Any]]


class Packing:
    """Order in which the coordinates of all floating-point tensors lie in a secure sum: by cells of equal holders.

    Holders follow from the ``plans`` of a round, given by client. Integer tensors are left out. All entries of a tensor
    along axes that nobody cuts have the same holders, so holders are found per combination of cut channels, of which
    there are few, and not per coordinate.
    """

    def __init__(self, layout: ChannelLayout, plans: Mapping[int, PruningPlan]) -> None:
        self._layout = layout
        self._plans = plans
        self._kept = {client: KeptIndices(plan) for client, plan in plans.items()}
        clients = sorted(plans)
        self._names = [name for name in layout.travelling if layout.tensors[name].dtype.is_floating_point]
        holders = {name: self._holders(name, layout.tensors[name], clients) for name in self._names}
        each = [prod(layout.tensors[name].shape) // prod(bits.shape[1:]) for name, bits in holders.items()]
        sizes = np.repeat(each, [prod(bits.shape[1:]) for bits in holders.values()])
        sets = np.concatenate([bits.reshape(len(bits), -1) for bits in holders.values()], axis=1)
        self.cells, numbers = cells_of(clients, sets, sizes)
        number_type = np.uint16 if len(self.cells.sizes) < 2**16 else np.uint32  # numpy sorts uint16 by radix: faster
        ends = np.cumsum([prod(bits.shape[1:]) for bits in holders.values()])
        self._numbers = {
            name: part.reshape(holders[name].shape[1:])
            for name, part in zip(self._names, np.split(numbers.astype(number_type), ends[:-1]), strict=True)
        }
        """Number of the cell of each combination of cut channels, by tensor; axes that nobody cuts have length 1."""

    def pack(self, client: int, numbers: Numbers) -> NDArray[np.int32]:
        """Flatten a client's tensors, cut to its plan, into one vector in the order of cells."""
        held = [name for name in self._names if name not in self._plans[client].omitted]
        order = _by_cell([self._cells_kept(name, client) for name in held])
        values: NDArray[np.int32] = np.concatenate([numbers[name].ravel() for name in held])
        return values if order is None else values[order]

    def unpack(self, opened: Opened) -> PartialSum:
        """Return the opened totals as sums of dense tensors, with the number of clients that hold each channel.

        Channels in cells that were not opened have 0 holders.
        """
        order = _by_cell([self._cells_whole(name) for name in self._names])
        dense = opened.totals
        if order is not None:
            dense = np.empty_like(opened.totals)
            dense[order] = opened.totals
        holders = np.where(opened.cells, self.cells.holders(opened.clients), 0)
        sums = {}
        at = 0
        for name in self._names:
            shape, channels = shapes_of_sums(self._layout.tensors[name])
            total = torch.from_numpy(dense[at : at + prod(shape)].astype(np.float64)).view(shape)
            held = np.broadcast_to(holders[self._numbers[name]], channels)
            sums[name] = (total, torch.from_numpy(held.astype(np.float64)))
            at += prod(shape)
        return PartialSum(float(len(opened.clients)), sums)

    def _holders(self, name: str, spec: TensorSpec, clients: Sequence[int]) -> Bits:
        """Bit sets of the clients that hold each combination of channels, of shape (words, ...)."""
        shape = spec.shape or (1,)
        words = max(1, -(-len(clients) // 64))  # one bit per client
        cuts = [self._kept[client].of(spec) for client in clients]
        bits = np.zeros((words, *[1] * len(shape)), dtype=np.uint64)
        for number, client in enumerate(clients):
            if name not in self._plans[client].omitted:
                bits[number // 64] |= _bit(number)
        for dim in sorted({dim for cut in cuts for dim in cut}):
            along = np.zeros((words, shape[dim]), dtype=np.uint64)
            for number, cut in enumerate(cuts):
                along[number // 64, cut[dim].numpy() if dim in cut else slice(None)] |= _bit(number)
            bits = bits & along.reshape(words, *(size if at == dim else 1 for at, size in enumerate(shape)))
        return bits

    def _cells_whole(self, name: str) -> CellNumbers:
        return np.broadcast_to(self._numbers[name], self._layout.tensors[name].shape or (1,)).ravel()

    def _cells_kept(self, name: str, client: int) -> CellNumbers:
        spec = self._layout.tensors[name]
        numbers = self._numbers[name]
        cuts = self._kept[client].of(spec)
        shape = [len(cuts[dim]) if dim in cuts else size for dim, size in enumerate(spec.shape or (1,))]
        for dim, entries in cuts.items():
            numbers = numbers.take(entries.numpy(), axis=dim)
        return np.broadcast_to(numbers, shape).ravel()


def _bit(number: int) -> np.uint64:
    return np.uint64(1) << np.uint64(number % 64)


def _by_cell(numbers: Sequence[CellNumbers]) -> NDArray[np.intp] | None:
    """The order in which coordinates of these cells lie in a vector; None where they are in order already."""
    joined: CellNumbers = np.concatenate(numbers)
    return None if (joined[:-1] <= joined[1:]).all() else np.argsort(joined, kind="stable")
