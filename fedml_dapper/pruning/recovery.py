"""Heterogeneous aggregation: refill what was pruned, then average (DapperFL Eq. 6-7; METHODS A.2, A.10).

Uploads are folded one at a time into two running sums and can be dropped at once, so memory does not grow with the
number of clients. With weights p_i = n_i / sum n, kept coordinates M_i and the previous global model W:

* ``global``  (Eq. 6-7): sum_i p_i (M_i w_i + (1 - M_i) W), computed as (sum_i n_i M_i w_i + (N - sum_i n_i M_i) W) / N
* ``zero``    (what the authors' public code does by accident): sum_i p_i M_i w_i
* ``holders``: the mean over the clients that kept the coordinate, W where nobody did

A tensor that an upload's plan omits counts as not kept at all.

Where every client keeps everything the three agree bit for bit and are FedAvg. With integer weights below 2**29 each
product is exact in float64; only the order of the sums matters, so callers fold in ascending client id.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import torch
from torch import Tensor

from fedml_dapper.errors import ProtocolError
from fedml_dapper.pruning.layout import ChannelLayout, TensorSpec
from fedml_dapper.pruning.plan import PruningPlan, Tensors
from fedml_dapper.pruning.slim import kept_indices

Recovery = Literal["global", "zero", "holders"]


class RecoveringMean:
    """Running weighted mean of slim models over the coordinates of the dense one.

    Integer buffers (BatchNorm's counters) are not averaged: the largest is taken, and the dtype stays.
    """

    def __init__(self, previous: Tensors, layout: ChannelLayout, recovery: Recovery = "global") -> None:
        self._previous = previous
        self._layout = layout
        self._recovery = recovery
        self._sums = {
            name: torch.zeros_like(tensor, dtype=torch.float64 if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in previous.items()
        }
        self._held = {
            name: torch.zeros(_held_shape(layout.tensors[name]), dtype=torch.float64, device=tensor.device)
            for name, tensor in previous.items()
        }
        self._total = 0.0

    def add(self, weights: Tensors, plan: PruningPlan, weight: float, unsliced: Collection[str] = ()) -> None:
        """Fold in one client's ``weights``, cut to ``plan`` except for the tensors named ``unsliced``.

        Raises :class:`ProtocolError` before anything is changed when names or shapes do not fit the plan.
        """
        self._check(weights, plan, unsliced)
        for name, sent in weights.items():
            spec, total = self._layout.tensors[name], self._sums[name]
            tensor = sent.to(total.device)
            if not tensor.is_floating_point():
                self._sums[name] = torch.maximum(total, tensor)
                continue
            cuts = {} if name in unsliced else kept_indices(spec, plan)
            _add_at(total, cuts, tensor.double() * weight)
            held = self._held[name]
            _add_at(held, cuts, torch.full([1] * held.dim(), weight, dtype=held.dtype, device=held.device))
        self._total += weight

    def result(self) -> dict[str, Tensor]:
        """The new global tensors, in the previous ones' dtypes. Raises :class:`ProtocolError` if nothing was added."""
        if self._total <= 0:
            raise ProtocolError("no client answered in this round, so there is nothing to aggregate")
        return {name: self._recovered(name).to(tensor.dtype) for name, tensor in self._previous.items()}

    def _recovered(self, name: str) -> Tensor:
        total = self._sums[name]
        if not total.is_floating_point():
            return total
        if self._recovery == "zero":
            return total / self._total
        previous, held = self._previous[name].double(), self._held[name]
        if self._recovery == "global":
            return (total + (self._total - held) * previous) / self._total
        return torch.where(held > 0, total / held, previous)

    def _check(self, weights: Tensors, plan: PruningPlan, unsliced: Collection[str]) -> None:
        plan.check(self._layout)
        odd = sorted(weights.keys() ^ (self._previous.keys() - plan.omitted))
        if odd:
            raise ProtocolError(f"upload and its plan differ in {len(odd)} tensors, first `{odd[0]}`")
        for name, tensor in weights.items():
            spec = self._layout.tensors[name]
            expected = spec.shape if name in unsliced else spec.shape_at(plan.widths)
            if tuple(tensor.shape) != expected:
                raise ProtocolError(f"upload's `{name}` has shape {tuple(tensor.shape)}, its plan says {expected}")


def _held_shape(spec: TensorSpec) -> list[int]:
    cut = {axis.dim for axis in spec.axes}
    return [size if dim in cut else 1 for dim, size in enumerate(spec.shape)]


def _add_at(total: Tensor, cuts: dict[int, Tensor], values: Tensor) -> None:
    """``total[kept] += values`` where ``cuts`` says per axis which entries are kept."""
    match list(cuts.items()):
        case []:
            total += values
        case [(dim, indices)]:
            shape = list(total.shape)
            shape[dim] = len(indices)
            total.index_add_(dim, indices.to(total.device), values.expand(shape))
        case [(0, rows), (1, columns)]:
            total[rows[:, None].to(total.device), columns.to(total.device)] += values
        case _:
            raise ProtocolError(f"cannot recover a tensor cut along axes {sorted(cuts)}")
