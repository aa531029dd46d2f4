"""Aggregation of heterogeneous models: what was pruned is filled in, then uploads are averaged (DapperFL Eq. 6-7).

Uploads are folded into running sums (``running_sum``), one by one or several in one pass, and can be dropped
afterwards, so memory does not grow with the number of clients. With weights p_i = n_i / sum n, kept coordinates M_i and
the previous global model W:

* ``global``  (Eq. 6-7): sum_i p_i (M_i w_i + (1 - M_i) W), computed as (sum_i n_i M_i w_i + (N - sum_i n_i M_i) W) / N
* ``zero``    (what the authors' public code does by accident): sum_i p_i M_i w_i
* ``holders``: the mean over the clients that kept the coordinate, W where nobody did

A tensor that an upload's plan omits counts as not kept at all.

Where every client keeps everything the three agree bit for bit and are FedAvg. With integer weights below 2**29 each
product is exact in float64; only the order of the sums matters, so callers fold in ascending client id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedml_dapper.errors import ProtocolError
from fedml_dapper.pruning.layout import ChannelLayout
from fedml_dapper.pruning.plan import PruningPlan, Tensors
from fedml_dapper.pruning.running_sum import Recovery, RunningSum, Sent, add_to_each, shapes_of_sums
from fedml_dapper.pruning.side_by_side import Piece, do_side_by_side
from fedml_dapper.pruning.slim import KeptIndices, common_device
from fedml_dapper.pruning.waiting_uploads import spread
from fedml_dapper.randomness.chacha20 import Noise

_LARGE = 2**20
"""Entries on the CPU from which on a model is large: threads pay, and memory costs more than calls."""
_NOBODY = torch.iinfo(torch.int64).min
"""Maximum over nobody."""


@dataclass(frozen=True, eq=False)
class PartialSum:
    """Sums over some of a round's clients, from which a mean with the other clients' can be made."""

    total: float = 0.0
    """Total weight of these clients."""
    sums: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Weighted sum, and weight that held it, of each floating-point tensor (see :class:`RunningSum`)."""
    largest: Tensors = field(default_factory=dict)
    """Elementwise maxima of the integer tensors, as int64; the least number where nobody held an entry."""


class RecoveringMean:
    """Running weighted mean of slim models over the coordinates of the dense one.

    Integer buffers (BatchNorm's counters) and those of true and false are not averaged: the largest that a client sent
    is taken, and the previous one where nobody sent any. The dtype stays.
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
        self._waiting: list[dict[str, Sent]] = []
        """Tensors of each upload that waits, by name."""
        self._largest = {
            name: torch.full_like(tensor, _NOBODY, dtype=torch.int64)
            for name, tensor in previous.items()
            if name not in self._sums
        }
        self._total = 0.0
        self._holds = False
        on_cpu = sum(tensor.numel() for tensor in previous.values() if tensor.device.type == "cpu")
        self._is_large = on_cpu >= _LARGE

    def hold(self) -> None:
        """Keep uploads that are added from now on until :meth:`fold`, so that several are folded in one pass.

        Uploads are still checked at once, and folded before any result is read. The result is the same bit for bit.
        """
        self._holds = True

    def add(self, weights: Tensors, plan: PruningPlan, weight: float, unsliced: Collection[str] = ()) -> None:
        """Add one client's ``weights``, cut to ``plan`` except for the tensors named ``unsliced``.

        Raises:
            ProtocolError: Names or shapes do not fit the plan; nothing has changed.
        """
        check_fits(weights, plan, unsliced, self._layout, self._previous.keys())
        self.take(weights, plan, weight, unsliced)

    def take(self, weights: Tensors, plan: PruningPlan, weight: float, unsliced: Collection[str] = ()) -> None:
        """Add an upload without checking it; unlike for :meth:`add`, floating-point tensors may have any dtype."""
        kept = KeptIndices(plan, common_device(self._previous.values()))
        waiting = dict[str, Sent]()
        counts = dict[str, Tensor]()
        for name, sent in weights.items():
            cuts = {} if name in unsliced else kept.of(self._layout.tensors[name])
            if name in self._sums:
                waiting[name] = Sent(sent, cuts, weight)
            else:
                counts[name] = spread(sent, cuts, self._largest[name], _NOBODY)
        self._waiting.append(waiting)
        self._take_largest(counts)
        self._total += weight
        if not self._holds:
            self.fold()

    def fold(self) -> None:
        """Add all uploads that wait to the sums."""
        waiting = self._waiting
        self._waiting = []
        if not self._is_large:
            for sent in waiting:
                add_to_each([(self._sums[name], each) for name, each in sent.items()])
            return
        by_name = {name: _taken(name, waiting) for name in self._sums}
        self._do(piece for name, sent in by_name.items() if sent for piece in self._sums[name].adding(sent))

    def _take_largest(self, counts: Tensors) -> None:
        if counts:
            largest = torch._foreach_maximum([self._largest[name] for name in counts], list(counts.values()))
            self._largest.update(zip(counts, largest, strict=True))

    def _do(self, pieces: Iterator[Piece]) -> None:
        if self._is_large:
            do_side_by_side(pieces)
        else:
            for piece in pieces:
                piece()

    def partial(self) -> PartialSum:
        """Return the sums of what was added so far, for :meth:`merge`; tensors are shared, not copied."""
        self.fold()
        return PartialSum(self._total, {name: each.so_far for name, each in self._sums.items()}, self._largest)

    def merge(self, partial: PartialSum) -> None:
        """Add the clients that another mean of the same tensors has summed.

        The result differs from adding them here only by the order of float64 sums.

        Raises:
            ProtocolError: ``partial`` does not fit; nothing has changed.
        """
        check_partial(partial, self._layout, self._previous.keys())
        self.fold()
        for name, (sums, held) in partial.sums.items():
            self._sums[name].merge(sums, held)
        self._take_largest({name: tensor.to(self._largest[name].device) for name, tensor in partial.largest.items()})
        self._total += partial.total

    def disturb(self, noise: Noise, std: float) -> None:
        """Add normal noise of standard deviation ``std`` to every weighted sum, at coordinates that somebody holds."""
        self.fold()
        for each in self._sums.values():
            each.disturb(noise, std)

    def result(self) -> dict[str, Tensor]:
        """Return the new global tensors, in the dtypes of the previous ones.

        The sums are used up, so there is one result only.

        Raises:
            ProtocolError: Nothing was added.
        """
        if self._total <= 0:
            raise ProtocolError("no client answered in this round, so there is nothing to aggregate")
        if not self._is_large:
            self.fold()  # in few calls, where a pass by tensors would take one for each
        means: dict[str, Tensor] = {}
        self._do(self._averaging(means))
        return {
            name: _known(self._largest[name], previous) if name in self._largest else means[name]
            for name, previous in self._previous.items()
        }

    def _averaging(self, means: dict[str, Tensor]) -> Iterator[Piece]:
        """Yield the pieces of work that fold what waits and fill ``means``, in one pass over each tensor."""
        # smallest first and popped: the freed sums of the tensors before are more than the next mean allocates
        for name in sorted(self._sums, key=lambda name: self._previous[name].numel()):
            sums = self._sums.pop(name)
            waiting = _taken(name, self._waiting)
            means[name], pieces = sums.averaging(waiting, self._previous[name], self._total, self._recovery)
            yield from pieces


def _known(largest: Tensor, previous: Tensor) -> Tensor:
    """Return maxima over clients, in the dtype of ``previous``, which stays where nobody held an entry."""
    return torch.where(largest == _NOBODY, previous, largest.to(previous.dtype))


def _taken(name: str, waiting: Sequence[dict[str, Sent]]) -> list[Sent]:
    """Return what waits of the tensor ``name``, in the order of the uploads; it waits no longer."""
    return [sent.pop(name) for sent in waiting if name in sent]


def check_fits(
    weights: Tensors, plan: PruningPlan, unsliced: Collection[str], layout: ChannelLayout, names: Collection[str]
) -> None:
    """Check that an upload holds the tensors of ``names`` that its ``plan`` keeps, in the right shapes and dtypes.

    Tensors named ``unsliced`` have the shapes of the dense model.

    Raises:
        ProtocolError: Tensors are missing or unknown, or one has another shape or dtype.
    """
    plan.check(layout)
    differing = sorted(weights.keys() ^ (set(names) - plan.omitted))
    if differing:
        raise ProtocolError(f"upload and its plan differ in {len(differing)} tensors, first `{differing[0]}`")
    widths = plan.widths
    for name, tensor in weights.items():
        spec = layout.tensors[name]
        expected = spec.shape if name in unsliced else spec.shape_at(widths)
        if tuple(tensor.shape) != expected:
            raise ProtocolError(f"upload's `{name}` has shape {tuple(tensor.shape)}, its plan says {expected}")
        if tensor.dtype != spec.dtype:
            raise ProtocolError(f"upload's `{name}` is {tensor.dtype}, the model's {spec.dtype}")


def check_partial(partial: PartialSum, layout: ChannelLayout, names: Collection[str]) -> None:
    """Check that ``partial`` sums the tensors of ``names``, in the right shapes and dtypes and with possible weights.

    Raises:
        ProtocolError: Tensors, shapes or dtypes differ, or an entry was held by more weight than there is.
    """
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
        if (tuple(tensor.shape), tensor.dtype) != (layout.tensors[name].shape, torch.int64):
            raise ProtocolError(f"a partial sum's `{name}` has another shape or type than the model's")
