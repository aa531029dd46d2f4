"""Mean of the uploads that agree with most of the others where they overlap (``agreement``).

Order statistics per coordinate need a majority of honest holders for every coordinate, which slim models do not give:
two strong clients may be the only holders of a coordinate. So uploads are judged as wholes here, by the coordinates
that they share with others, and an upload that is rejected loses what it alone holds, too. This is FLAME (Nguyen et
al., USENIX Security 2022) for slim models, in which pairs overlap in part. Deviations: a fixed bound for cosines takes
the place of clustering, and no noise is added.

* agreement: the mean of an upload's cosines with the others, without the quarter of smallest and of largest. The
  typical agreement is the median of these, or 0 where that is negative. While the lowest agreement is below
  ``least_agreement`` times the typical one, its upload is left out as if it had not come, and agreements are computed
  anew without it. Fewer than half of the uploads are left out. The bound is a little below 0: where training is short,
  honest clients may have nothing in common.
* length: the median of an upload's ratios of lengths to the others that stay. Beyond ``most_length`` its update is
  scaled down to that. Statistics (BatchNorm's) are measured and not learnt: they have no direction of descent, and are
  scaled by lengths of their own.

While no more than a quarter of the others are hostile, the trimmed agreement lies within what honest pairs give.
Uploads that are not finite are left out at once. Where nothing is left out or scaled, the result is that of
:class:`RecoveringMean` bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

from torch import Tensor

from fedml_dapper.errors import ProtocolError
from fedml_dapper.pruning.agreement import Overlaps, overlaps
from fedml_dapper.pruning.clipping import towards
from fedml_dapper.pruning.layout import ChannelLayout
from fedml_dapper.pruning.plan import PruningPlan, Tensors
from fedml_dapper.pruning.recovery import RecoveringMean, check_fits
from fedml_dapper.pruning.running_sum import Recovery
from fedml_dapper.pruning.slim import KeptIndices, slim_tensors
from fedml_dapper.pruning.waiting_uploads import WaitingUpload


@dataclass(frozen=True)
class Verdict:
    """Judgement of one upload of a round."""

    agreement: float | None
    """Mean of its cosines with the others, without the quarter of smallest and of largest; None without others, and
    of an upload that is not finite."""
    length: float | None
    """Median of how many times as far as the others it moved; None where no other moved."""
    counted: float
    """Share of its learnt tensors' update that counts; 0 where it was left out."""
    counted_statistics: float
    """Share of its statistics' update that counts; 0 where it was left out."""


class ScreenedMean:
    """A :class:`RecoveringMean` over uploads that agree with the others, scaled down where they moved much further.

    Uploads are kept until the round closes, which takes as much memory as all of them together, and a copy per client
    of the largest tensor besides.
    """

    def __init__(
        self, previous: Tensors, layout: ChannelLayout, recovery: Recovery, least_agreement: float, most_length: float
    ) -> None:
        self._previous = previous
        self._layout = layout
        self._recovery: Recovery = recovery
        self._least = least_agreement
        self._most = most_length
        self._uploads: list[tuple[WaitingUpload, PruningPlan]] = []
        self.verdicts: Sequence[Verdict] = ()
        """One verdict per upload, in the order in which they were added; empty until :meth:`result` was called."""

    def add(self, weights: Tensors, plan: PruningPlan, weight: float, unsliced: Collection[str] = ()) -> None:
        """Add one client's ``weights``, cut to ``plan`` except for the tensors named ``unsliced``.

        Raises:
            ProtocolError: Names or shapes do not fit the plan; nothing has changed.
        """
        check_fits(weights, plan, unsliced, self._layout, self._previous.keys())
        self._uploads.append((WaitingUpload(weights, KeptIndices(plan), unsliced, weight), plan))

    def result(self) -> dict[str, Tensor]:
        """Return the new global tensors, in the dtypes of the previous ones, which they are where no upload counts.

        Raises:
            ProtocolError: Nothing was added.
        """
        if not self._uploads:
            raise ProtocolError("no client answered in this round, so there is nothing to aggregate")
        self.verdicts = self._judge()
        if not any(verdict.counted for verdict in self.verdicts):
            return dict(self._previous)
        mean = RecoveringMean(self._previous, self._layout, self._recovery)
        for (upload, plan), verdict in zip(self._uploads, self.verdicts, strict=True):
            if verdict.counted > 0:
                mean.add(self._shortened(upload, plan, verdict), plan, upload.weight, upload.unsliced)
        return mean.result()

    def _judge(self) -> list[Verdict]:
        learnt = [name for name in self._previous if self._layout.tensors[name].trainable]
        measured = [name for name in self._previous if self._layout.is_statistic(name)]
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

    def _shortened(self, upload: WaitingUpload, plan: PruningPlan, verdict: Verdict) -> Tensors:
        if verdict.counted == verdict.counted_statistics == 1:
            return upload.weights
        named = {name: self._previous[name] for name in upload.weights}
        before = slim_tensors(named, self._layout, plan, upload.unsliced)
        return {
            name: towards(
                tensor, before[name], verdict.counted_statistics if self._layout.is_statistic(name) else verdict.counted
            )
            for name, tensor in upload.weights.items()
        }


def _screened(cosines: Tensor, rows: Sequence[int], least: float) -> tuple[list[int], dict[int, float | None]]:
    """Return which of ``rows`` stay, and the last agreement computed for each row."""
    stay = list(rows)
    agreements = dict[int, float | None]()
    for spare in range((len(rows) - 1) // 2, -1, -1):
        now = {row: _midmean(cosines[row, _others(row, stay)]) for row in stay}
        agreements.update(now)
        known = {row: agreement for row, agreement in now.items() if agreement is not None}
        outlier = min(known, key=known.__getitem__, default=None)
        if spare == 0 or outlier is None or known[outlier] >= least * max(0.0, median(known.values())):
            break
        stay.remove(outlier)
    return stay, agreements


def _lengths(changes: Overlaps, stay: Sequence[int]) -> list[float | None]:
    """How many times as far as those who stay each client moved: the median over its pairs with them."""
    ratios = changes.ratios()
    return [_upper_median(ratios[row, _others(row, stay)]) for row in range(len(ratios))]


def _others(row: int, rows: Sequence[int]) -> list[int]:
    return [other for other in rows if other != row]


def _midmean(values: Tensor) -> float | None:
    """The mean without the quarter, rounded down, at either end; None where there are no values."""
    cut = len(values) // 4
    return float(values.sort().values[cut : len(values) - cut].mean()) if len(values) else None


def _upper_median(values: Tensor) -> float | None:
    """The median of the values that are not NaN, the larger of the middle two; None where there are none."""
    known = values[~values.isnan()].sort().values
    return float(known[len(known) // 2]) if len(known) else None
