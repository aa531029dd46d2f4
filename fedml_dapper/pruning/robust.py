"""Robust aggregation of slim models: per coordinate, an order statistic over the clients that hold it.

In the recovery rules of ``recovery`` the mean over a coordinate's holders is replaced by their trimmed mean or median,
s. With H the weight of the holders, T that of all clients and W the previous global model:

* ``global``: (H s + (T - H) W) / T
* ``zero``: H s / T
* ``holders``: s, or W where nobody holds the coordinate

Holders count alike in s: with weights, a client that claims many samples would pass for many clients. A coordinate with
fewer than ``min_holders`` holders counts as held by nobody.

An order statistic needs all values at once. So uploads are kept until the round closes, which takes as much memory as
all of them together. Tensors are then treated one after another, with a copy per client of the largest one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import ceil, prod

import torch
from torch import Tensor

from fedml_dapper.errors import ProtocolError
from fedml_dapper.pruning.layout import ChannelLayout
from fedml_dapper.pruning.plan import PruningPlan, Tensors
from fedml_dapper.pruning.recovery import check_fits
from fedml_dapper.pruning.running_sum import Recovery
from fedml_dapper.pruning.slim import KeptIndices
from fedml_dapper.pruning.waiting_uploads import WaitingUpload, mask, spread

_BLOCK_ENTRIES = 2**22
"""Values sorted at a time; sorting takes about four times their memory."""
_NOT_HELD = torch.iinfo(torch.int64).max
"""Stands for integers that a client did not keep: behind all others when they are sorted."""


class RobustMean:
    """Per coordinate, a trimmed mean or the median of what its holders sent.

    The mean leaves out the ``trimmed_share``, rounded up, of smallest and of largest values; at least one value is
    left. Without a ``trimmed_share`` all but the middle one or two are left out: the median. Of integer buffers
    (BatchNorm's counters) the upper median is taken.
    """

    def __init__(
        self,
        previous: Tensors,
        layout: ChannelLayout,
        recovery: Recovery,
        trimmed_share: float | None,
        min_holders: int,
    ) -> None:
        self._previous = previous
        self._layout = layout
        self._recovery = recovery
        self._share = trimmed_share
        self._min_holders = min_holders
        self._uploads: list[WaitingUpload] = []

    def add(self, weights: Tensors, plan: PruningPlan, weight: float, unsliced: Collection[str] = ()) -> None:
        """Add one client's ``weights``, cut to ``plan`` except for the tensors named ``unsliced``.

        Raises:
            ProtocolError: Names or shapes do not fit the plan; nothing has changed.
        """
        check_fits(weights, plan, unsliced, self._layout, self._previous.keys())
        self._uploads.append(WaitingUpload(weights, KeptIndices(plan), unsliced, weight))

    def result(self) -> dict[str, Tensor]:
        """Return the new global tensors, in the dtypes of the previous ones.

        Raises:
            ProtocolError: Nothing was added.
        """
        if not self._uploads:
            raise ProtocolError("no client answered in this round, so there is nothing to aggregate")
        return {name: self._aggregated(name, previous) for name, previous in self._previous.items()}

    def _aggregated(self, name: str, previous: Tensor) -> Tensor:
        holders = [upload for upload in self._uploads if name in upload.weights]
        if not previous.is_floating_point():
            return self._upper_median(name, holders, previous)
        if not holders or not previous.numel():
            return self._recovered(previous, torch.zeros_like(previous), torch.zeros((), dtype=torch.float64))
        cuts = [upload.cuts(name, self._layout) for upload in holders]
        values = torch.stack(
            [spread(upload.weights[name], cut, previous, torch.nan) for upload, cut in zip(holders, cuts, strict=True)]
        )
        masks = [mask(cut, previous) for cut in cuts]
        full = [max(sizes) for sizes in zip(*(mask.shape for mask in masks), strict=True)]
        held = torch.stack([mask.expand(full) for mask in masks])
        weights = torch.tensor([upload.weight for upload in holders], dtype=torch.float64, device=previous.device)
        count = held.sum(dim=0)
        enough = count >= self._min_holders
        weight = (held * weights.view(-1, *[1] * previous.dim())).sum(dim=0) * enough
        statistic = torch.where(enough, self._middle(values, count), 0)
        return self._recovered(previous, statistic, weight)

    def _upper_median(self, name: str, holders: Sequence[WaitingUpload], previous: Tensor) -> Tensor:
        """Return the upper median of what holders sent of an integer tensor; ``previous`` where they are too few."""
        if not holders:
            return previous
        like = previous.to(torch.int64)
        sent = (spread(each.weights[name], each.cuts(name, self._layout), like, _NOT_HELD) for each in holders)
        values = torch.stack(list(sent)).sort(dim=0).values
        count = (values != _NOT_HELD).sum(dim=0)
        middle = values.gather(0, (count // 2).clamp(max=len(values) - 1)[None])[0]
        return torch.where(count >= self._min_holders, middle.to(previous.dtype), previous)

    def _middle(self, values: Tensor, count: Tensor) -> Tensor:
        """Return the trimmed mean of ``values`` in float64; these have shape (clients, ...) and are NaN where not held.

        ``count`` is the number of holders and broadcasts to one client's shape.
        """
        if values.dim() == 1:
            return self._middle(values[:, None], count.view(1))[0]
        trimmed = self._trimmed(count)
        position = torch.arange(len(values), device=values.device).view(-1, *[1] * count.dim())
        counted = (position >= trimmed) & (position < count - trimmed)
        rows = max(1, _BLOCK_ENTRIES // max(1, prod(values.shape) // values.shape[1]))
        blocks = []
        for start in range(0, values.shape[1], rows):
            block = values[:, start : start + rows].sort(dim=0).values  # NaN comes last
            which = counted[:, start : start + rows] if counted.shape[1] > 1 else counted
            blocks.append(torch.where(which, block, 0).sum(dim=0, dtype=torch.float64) / which.sum(dim=0))
        return torch.cat(blocks)

    def _trimmed(self, count: Tensor) -> Tensor:
        """Number of values trimmed at either end, for each number of holders in ``count``."""
        most = (len(self._uploads) - 1) // 2
        # rounded before ceil: in binary, 0.07 * 100 is just above 7
        shares = [
            most if self._share is None else ceil(round(self._share * holders, 9))
            for holders in range(len(self._uploads) + 1)
        ]
        wanted = torch.tensor(shares, device=count.device)[count]
        return torch.minimum(wanted, ((count - 1) // 2).clamp(min=0))

    def _recovered(self, previous: Tensor, statistic: Tensor, weight: Tensor) -> Tensor:
        total = sum(upload.weight for upload in self._uploads)
        before = previous.double()
        weight = weight.to(previous.device)
        match self._recovery:
            case "zero":
                recovered = statistic * weight / total
            case "global":
                recovered = torch.where(
                    weight == total, statistic, (statistic * weight + (total - weight) * before) / total
                )
            case "holders":
                recovered = torch.where(weight > 0, statistic, before)
        return recovered.to(previous.dtype)
