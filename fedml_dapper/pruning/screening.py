"""The mean of uploads that agree with most of the others, where they overlap (``agreement``).

Order statistics per coordinate need a majority of honest holders for every coordinate, which slim models do not give:
what two strong clients alone hold is theirs. So uploads are judged as wholes here, by the coordinates that they share
with others, and what such a client alone holds falls with it. It is FLAME (Nguyen et al., USENIX Security 2022) brought
to slim models, in which pairs overlap in part. Deviations: a fixed bound for cosines takes the place of clustering, and
no noise is added.

* agreement: the mean of an upload's cosines with the others, without the quarter of smallest and of largest. What is
  typical is the median agreement, or 0 where that is negative. While the lowest is below ``least_agreement`` times what
  is typical, its upload is left out, as if it had not come, and the others are asked again without it. Fewer than half
  are left out. The bound is a little below 0: where training is short, honest clients may have nothing in common.
* length: the median of how many times as far as the others that stay an upload moved. Beyond ``most_length`` its change
  is shortened to that. Statistics (BatchNorm's) are measured and not learnt: they have no direction of descent, and are
  shortened by lengths of their own.

While no more than a quarter of the others are hostile, agreement lies among what honest pairs give. What is not finite
is left out unasked. Where nothing is left out or shortened, the result is :class:`RecoveringMean`'s bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

from torch import Tensor

from fedml_dapper.errors import ProtocolError
from fedml_dapper.pruning.agreement import Overlaps, overlaps
from fedml_dapper.pruning.clipping import towards
from fedml_dapper.pruning.held import HeldUpload
from fedml_dapper.pruning.layout import ChannelLayout
from fedml_dapper.pruning.plan import PruningPlan, Tensors
from fedml_dapper.pruning.recovery import RecoveringMean, check_fits
from fedml_dapper.pruning.running_sum import Recovery
from fedml_dapper.pruning.slim import KeptIndices, slim_tensors


@dataclass(frozen=True)
class Verdict:
    """On one upload of a round."""

    agreement: float | None
    """Mean of its cosines with the others, without the quarter of smallest and of largest; None where there are no
    others."""
    length: float | None
    """Median of how many times as far as the others it moved; None where there are none that moved."""
    counted: float
    """The share of what it learnt that counts: 0 where it was left out."""
    counted_statistics: float
    """The same of what it measured."""


class ScreenedMean:
    """A :class:`RecoveringMean` over uploads that agree with the others, none of which moved much further than they.

    Uploads are held until the round closes, as much memory as all of them together, besides a copy per client of the
    largest tensor.
    """

    def __init__(
        self, previous: Tensors, layout: ChannelLayout, recovery: Recovery, least_agreement: float, most_length: float
    ) -> None:
        self._previous = previous
        self._layout = layout
        self._recovery: Recovery = recovery
        self._least = least_agreement
        self._most = most_length
        self._uploads: list[tuple[HeldUpload, PruningPlan]] = []
        self.verdicts: Sequence[Verdict] = ()
        """On the uploads in the order in which they were added, once there is a result."""

    def add(self, weights: Tensors, plan: PruningPlan, weight: float, unsliced: Collection[str] = ()) -> None:
        """Take in one client's ``weights``, cut to ``plan`` except for the tensors named ``unsliced``.

        Raises :class:`ProtocolError`, with nothing changed, when names or shapes do not fit the plan.
        """
        check_fits(weights, plan, unsliced, self._layout, self._previous.keys())
        self._uploads.append((HeldUpload(weights, KeptIndices(plan), unsliced, weight), plan))

    def result(self) -> dict[str, Tensor]:
        """The new global tensors, in the previous ones' dtypes; raises :class:`ProtocolError` if nothing was added."""
        if not self._uploads:
            raise ProtocolError("no client answered in this round, so there is nothing to aggregate")
        self.verdicts = self._judge()
        mean = RecoveringMean(self._previous, self._layout, self._recovery)
        for (upload, plan), verdict in zip(self._uploads, self.verdicts, strict=True):
            if verdict.counted > 0:
                mean.add(self._shortened(upload, plan, verdict), plan, upload.weight, upload.unsliced)
        return mean.result()

    def _judge(self) -> list[Verdict]:
        learnt = [name for name in self._previous if self._layout.tensors[name].trainable]
        measured = [name for name in self._previous if self._is_statistic(name)]
        uploads = [upload for upload, _ in self._uploads]
        changes = overlaps(uploads, self._previous, self._layout, learnt)
        statistics = overlaps(uploads, self._previous, self._layout, measured)
        finite = (changes.squares.diagonal() + statistics.squares.diagonal()).isfinite()
        stay, agreements = _screened(changes.cosines(), finite.nonzero().flatten().tolist(), self._least)
        lengths = _lengths(changes, stay)
        of_statistics = _lengths(statistics, stay)
        return [
            Verdict(
                agreement=agreements.get(row),
                length=lengths[row],
                counted=self._share(lengths[row]) if row in stay else 0,
                counted_statistics=self._share(of_statistics[row]) if row in stay else 0,
            )
            for row in range(len(uploads))
        ]

    def _share(self, length: float | None) -> float:
        return 1 if length is None or length <= self._most else self._most / length

    def _is_statistic(self, name: str) -> bool:
        spec = self._layout.tensors[name]
        return spec.dtype.is_floating_point and not spec.trainable

    def _shortened(self, upload: HeldUpload, plan: PruningPlan, verdict: Verdict) -> Tensors:
        if verdict.counted == verdict.counted_statistics == 1:
            return upload.weights
        named = {name: self._previous[name] for name in upload.weights}
        before = slim_tensors(named, self._layout, plan, upload.unsliced)
        return {
            name: towards(
                tensor, before[name], verdict.counted_statistics if self._is_statistic(name) else verdict.counted
            )
            for name, tensor in upload.weights.items()
        }


def _screened(cosines: Tensor, rows: Sequence[int], least: float) -> tuple[list[int], dict[int, float | None]]:
    """Who of ``rows`` stays, and the agreement of each among those that were left when it was judged last."""
    stay = list(rows)
    agreements = dict[int, float | None]()
    for spare in range((len(rows) - 1) // 2, -1, -1):
        now = {row: _midmean(cosines[row, _others(row, stay)]) for row in stay}
        agreements.update(now)
        known = {row: agreement for row, agreement in now.items() if agreement is not None}
        odd = min(known, key=known.__getitem__, default=None)
        if spare == 0 or odd is None or known[odd] >= least * max(0.0, median(known.values())):
            break
        stay.remove(odd)
    return stay, agreements


def _lengths(changes: Overlaps, stay: Sequence[int]) -> list[float | None]:
    """How many times as far as those who stay each one moved: the median over its pairs with them."""
    ratios = changes.ratios()
    return [_upper_median(ratios[row, _others(row, stay)]) for row in range(len(ratios))]


def _others(row: int, rows: Sequence[int]) -> list[int]:
    return [other for other in rows if other != row]


def _midmean(values: Tensor) -> float | None:
    """The mean without the quarter, rounded down, at either end; None where there are no values."""
    cut = len(values) // 4
    return float(values.sort().values[cut : len(values) - cut].mean()) if len(values) else None


def _upper_median(values: Tensor) -> float | None:
    """Of those that are no NaN: of an even number the larger one in the middle; None where there are none."""
    known = values[~values.isnan()].sort().values
    return float(known[len(known) // 2]) if len(known) else None
