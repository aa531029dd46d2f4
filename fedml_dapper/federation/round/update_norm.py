"""Size of uploads, compared with that of the round before to refuse those that are out of all proportion.

A finite upload can be so large that it ruins every mean it enters. No bound of its size is right for every network and
learning rate, but an upload moves about as far as those of the round before: of all methods here, in three rounds on
the embedded digits, none moved three times as far as their median. So where clients are other people's, an upload that
moves very much further is refused. One that is small in itself passes, however small the others are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import hypot, isfinite
from statistics import median_low

import torch
from torch import Tensor

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.round.fetched import fetched
from fedml_dapper.federation.run_folder.records import ClientRecord
from fedml_dapper.methods import Upload
from fedml_dapper.pruning import Tensors, relative_change

HARMLESS_CHANGE = 1.0
"""Relative change up to which every upload passes: the model has moved by its own norm."""
HARMLESS_EXTRAS = 1e3
"""l2 norm up to which every upload's extras pass."""


@dataclass(frozen=True)
class UpdateNorms:
    """Size of one upload, or the usual size of several; None stands for unknown."""

    change: float | None = None
    """||w - W|| / ||W|| over all weights w, W being the weights that the client was sent."""
    extras: float | None = None
    """l2 norm over all extras; None without any."""

    def check(self, usual: UpdateNorms, times: float) -> None:
        """Check that an upload of this size is plausible.

        Raises:
            ProtocolError: It is more than ``times`` the ``usual`` size, as far as that is known, and not harmless.
        """
        for what, own, others, harmless in (
            ("the upload moved by", self.change, usual.change, HARMLESS_CHANGE),
            ("what comes with the weights has norm", self.extras, usual.extras, HARMLESS_EXTRAS),
        ):
            if own is not None and others is not None and own > max(harmless, times * others):
                raise ProtocolError(
                    f"{what} {own:.3g}, where {others:.3g} is usual (dapper_args.defence.max_times_median: {times:g})"
                )

    def without(self, known: UpdateNorms) -> UpdateNorms:
        """Return the figures of this magnitude that ``known`` lacks."""
        return UpdateNorms(
            self.change if known.change is None else None,
            self.extras if known.extras is None else None,
        )


def norms_of_update(upload: Upload, before: Tensors) -> UpdateNorms:
    """Measure ``upload``, whose client was sent the weights ``before``, with the same channels."""
    extras = _norm(upload.extras.values()) if upload.extras else None
    return UpdateNorms(relative_change(upload.weights, before), extras)


def recorded_norms(record: ClientRecord) -> UpdateNorms:
    """Return the size of an upload from the ledger's record of it."""
    return UpdateNorms(record.change, record.extras_norm)


def usual_norms(records: Collection[ClientRecord]) -> UpdateNorms:
    """Return the usual size of a round's uploads: the lower median over its clients, of two the smaller."""
    changes = [record.change for record in records if record.change is not None]
    extras = [record.extras_norm for record in records if record.extras_norm is not None]
    return UpdateNorms(median_low(changes) if changes else None, median_low(extras) if extras else None)


def is_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether no tensor holds infinity or NaN."""
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    # A finite sum proves it in a fraction of the time; a sum that overflows proves nothing.
    sums = fetched([tensor.sum() for tensor in floating])
    others = [tensor for tensor, total in zip(floating, sums, strict=True) if not isfinite(total)]
    return all(fetched([torch.isfinite(tensor).all() for tensor in others]))


def _norm(tensors: Iterable[Tensor]) -> float:
    return hypot(*(float(tensor.double().norm()) for tensor in tensors if tensor.is_floating_point()))
