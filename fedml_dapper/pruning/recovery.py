"""Heterogeneous aggregation: refill what was pruned, then average (DapperFL Eq. 6-7).

Uploads are folded into running sums (``running_sum``), one by one or those that wait together in one pass. Then they
can be dropped, so memory does not grow with the number of clients. With weights p_i = n_i / sum n, kept coordinates M_i
and the previous global model W:

* ``global``  (Eq. 6-7): sum_i p_i (M_i w_i + (1 - M_i) W), computed as (sum_i n_i M_i w_i + (N - sum_i n_i M_i) W) / N
* ``zero``    (what the authors' public code does by accident): sum_i p_i M_i w_i
* ``holders``: the mean over the clients that kept the coordinate, W where nobody did

A tensor that an upload's plan omits counts as not kept at all.

Where every client keeps everything the three agree bit for bit and are FedAvg. With integer weights below 2**29 each
product is exact in float64; only the order of the sums matters, so callers fold in ascending client id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedml_dapper.errors import ProtocolError
from fedml_dapper.noise import Noise
from fedml_dapper.pruning.layout import ChannelLayout
from fedml_dapper.pruning.plan import PruningPlan, Tensors
from fedml_dapper.pruning.running_sum import Recovery, RunningSum, Sent, shapes_of_sums
from fedml_dapper.pruning.side_by_side import Piece, do_side_by_side
from fedml_dapper.pruning.slim import KeptIndices

_WORTH_THREADS = 2**20
"""Entries of a model on the CPU for which starting threads is worth it."""


@dataclass(frozen=True, eq=False)
class PartialSum:
    """What some of a round's clients come to, of which a mean with the others' can be made."""

    total: float = 0.0
    """Weight of these clients."""
    sums: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Weighted sum and weight that held it, of each tensor of floats (see :class:`RunningSum`)."""
    largest: Tensors = field(default_factory=dict)
    """Of the others."""


class RecoveringMean:
    """Running weighted mean of slim models over the coordinates of the dense one.

    Integer buffers (BatchNorm's counters) are not averaged: the largest is taken, and the dtype stays.
    """

    def __init__(self, previous: Tensors, layout: ChannelLayout, recovery: Recovery = "global") -> None:
        self._previous = previous
        self._layout = layout
        self._recovery: Recovery = recovery
        self._sums = {
            name: RunningSum(layout.tensors[name], tensor.device)
            for name, tensor in previous.items()
            if tensor.is_floating_point()
        }
        self._waiting: dict[str, list[Sent]] = {name: [] for name in self._sums}
        self._largest = {name: torch.zeros_like(tensor) for name, tensor in previous.items() if name not in self._sums}
        self._total = 0.0
        self._holds = False

    def hold(self) -> None:
        """Let what is added from now on wait for :meth:`fold`, so that several clients are folded in one pass.

        It is checked at once, and folded before the mean is asked for what it comes to. A result is the same bit for
        bit, whatever waited.
        """
        self._holds = True

    def add(self, weights: Tensors, plan: PruningPlan, weight: float, unsliced: Collection[str] = ()) -> None:
        """Fold in one client's ``weights``, cut to ``plan`` except for the tensors named ``unsliced``.

        Raises :class:`ProtocolError` before anything is changed when names or shapes do not fit the plan.
        """
        check_fits(weights, plan, unsliced, self._layout, self._previous.keys())
        self.take(weights, plan, weight, unsliced)

    def take(self, weights: Tensors, plan: PruningPlan, weight: float, unsliced: Collection[str] = ()) -> None:
        """As :meth:`add`, of what is known to fit but for the dtype of its floats."""
        kept = KeptIndices(plan)
        for name, sent in weights.items():
            if name in self._sums:
                cuts = {} if name in unsliced else kept.of(self._layout.tensors[name])
                self._waiting[name].append(Sent(sent, cuts, weight))
            else:
                self._largest[name] = torch.maximum(self._largest[name], sent.to(self._largest[name].device))
        self._total += weight
        if not self._holds:
            self.fold()

    def fold(self) -> None:
        """What waits goes into the sums."""
        waiting = self._waiting
        self._waiting = {name: [] for name in self._sums}
        self._do(piece for name, sent in waiting.items() if sent for piece in self._sums[name].adding(sent))

    def _do(self, pieces: Iterator[Piece]) -> None:
        if sum(tensor.numel() for tensor in self._previous.values() if tensor.device.type == "cpu") < _WORTH_THREADS:
            for piece in pieces:
                piece()
        else:
            do_side_by_side(pieces)

    def partial(self) -> PartialSum:
        """What was added so far, for :meth:`merge`; tensors are shared."""
        self.fold()
        return PartialSum(self._total, {name: each.so_far for name, each in self._sums.items()}, self._largest)

    def merge(self, partial: PartialSum) -> None:
        """Add the clients that another mean of the same tensors has summed. Differs from adding them here by the order
        of float64 sums alone. Raises :class:`ProtocolError`, with nothing changed, where it does not fit."""
        check_partial(partial, self._layout, self._previous.keys())
        self.fold()
        for name, (sums, held) in partial.sums.items():
            self._sums[name].merge(sums, held)
        for name, tensor in partial.largest.items():
            self._largest[name] = torch.maximum(self._largest[name], tensor.to(self._largest[name].device))
        self._total += partial.total

    def disturb(self, noise: Noise, std: float) -> None:
        """Add normal numbers of standard deviation ``std`` to every weighted sum, where somebody holds it."""
        self.fold()
        for each in self._sums.values():
            each.disturb(noise, std)

    def result(self) -> dict[str, Tensor]:
        """The new global tensors, in the previous ones' dtypes; the sums are used up, so there is one result.

        Raises :class:`ProtocolError` if nothing was added.
        """
        if self._total <= 0:
            raise ProtocolError("no client answered in this round, so there is nothing to aggregate")
        means: dict[str, Tensor] = {}
        self._do(self._averaging(means))
        return {name: self._largest[name] if name in self._largest else means[name] for name in self._previous}

    def _averaging(self, means: dict[str, Tensor]) -> Iterator[Piece]:
        """The pieces of work that fold what waits and make the ``means`` of it, in one pass over each tensor."""
        # smallest first and popped: what the sums before gave back is more than the next mean takes
        for name in sorted(self._sums, key=lambda name: self._previous[name].numel()):
            sums = self._sums.pop(name)
            waiting = self._waiting.pop(name)
            means[name], pieces = sums.averaging(waiting, self._previous[name], self._total, self._recovery)
            yield from pieces


def check_fits(
    weights: Tensors, plan: PruningPlan, unsliced: Collection[str], layout: ChannelLayout, names: Collection[str]
) -> None:
    """Raises :class:`ProtocolError` unless ``weights`` are those of ``names`` that ``plan`` does not omit, in its
    shapes (those ``unsliced`` in the model's) and in the layout's dtypes."""
    plan.check(layout)
    odd = sorted(weights.keys() ^ (set(names) - plan.omitted))
    if odd:
        raise ProtocolError(f"upload and its plan differ in {len(odd)} tensors, first `{odd[0]}`")
    widths = plan.widths
    for name, tensor in weights.items():
        spec = layout.tensors[name]
        expected = spec.shape if name in unsliced else spec.shape_at(widths)
        if tuple(tensor.shape) != expected:
            raise ProtocolError(f"upload's `{name}` has shape {tuple(tensor.shape)}, its plan says {expected}")
        if tensor.dtype != spec.dtype:
            raise ProtocolError(f"upload's `{name}` is {tensor.dtype}, the model's {spec.dtype}")


def check_partial(partial: PartialSum, layout: ChannelLayout, names: Collection[str]) -> None:
    """Raises :class:`ProtocolError` unless ``partial`` is of the tensors of ``names``, in the shapes and dtypes of
    their sums, and nothing was held by more weight than there is."""
    floats = {name for name in names if layout.tensors[name].dtype.is_floating_point}
    if partial.sums.keys() != floats or partial.largest.keys() != set(names) - floats:
        raise ProtocolError("a partial sum is of other tensors than the model's")
    for name, parts in partial.sums.items():
        found = [(tuple(part.shape), part.dtype) for part in parts]
        if found != [(shape, torch.float64) for shape in shapes_of_sums(layout.tensors[name])]:
            raise ProtocolError(f"a partial sum's `{name}` is {found}, which the model's is not")
        if bool(((parts[1] < 0) | (parts[1] > partial.total)).any()):
            raise ProtocolError(f"a partial sum's `{name}` was held by more or less than the weight of its clients")
    for name, tensor in partial.largest.items():
        if (tuple(tensor.shape), tensor.dtype) != (layout.tensors[name].shape, layout.tensors[name].dtype):
            raise ProtocolError(f"a partial sum's `{name}` has another shape or type than the model's")
