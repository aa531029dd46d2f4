"""How large uploads are, and which are out of all proportion.

A finite upload can be of a size that ruins whatever it is averaged into. No bound of that is right for every network
and learning rate. But an upload moves about as far as those of the round before: of all methods here, in three rounds
on the embedded digits, none moved three times as far as their median. So where clients are other people's, one that
moves very much further is refused. What is small in itself passes, however small the others are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import hypot
from statistics import median_low

import torch
from torch import Tensor

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.records import ClientRecord
from fedml_dapper.methods import Upload
from fedml_dapper.pruning import Tensors, relative_change

HARMLESS_CHANGE = 1.0
"""A relative change by which no model is ruined: it has moved as far as it is long."""
HARMLESS_EXTRAS = 1e3
"""The same for the l2 norm of what a method's clients send besides weights."""


@dataclass(frozen=True)
class Magnitude:
    """Of one upload, or what is usual among several; None where nothing is known."""

    change: float | None = None
    """||w - W|| / ||W|| over all weights, W being what the client was sent."""
    extras: float | None = None
    """l2 norm over all extras; None without any."""

    def check(self, usual: Magnitude, times: float) -> None:
        """Raises :class:`ProtocolError` where this is more than ``times`` what is known to be usual, and not small."""
        for what, own, others, harmless in (
            ("the upload moved by", self.change, usual.change, HARMLESS_CHANGE),
            ("what comes with the weights has norm", self.extras, usual.extras, HARMLESS_EXTRAS),
        ):
            if own is not None and others is not None and own > max(harmless, times * others):
                raise ProtocolError(
                    f"{what} {own:.3g}, where {others:.3g} is usual (dapper_args.defence.max_times_median: {times:g})"
                )

    def without(self, known: Magnitude) -> Magnitude:
        """What is in this and not in ``known``."""
        return Magnitude(
            self.change if known.change is None else None,
            self.extras if known.extras is None else None,
        )


def magnitude_of(upload: Upload, before: Tensors) -> Magnitude:
    """Of ``upload``, whose client was sent ``before``, cut alike."""
    extras = _norm(upload.extras.values()) if upload.extras else None
    return Magnitude(relative_change(upload.weights, before), extras)


def recorded_magnitude(record: ClientRecord) -> Magnitude:
    """As the ledger has it."""
    return Magnitude(record.change, record.extras_norm)


def usual_magnitude(records: Collection[ClientRecord]) -> Magnitude:
    """The lower median over a round's clients: of two, the smaller."""
    changes = [record.change for record in records if record.change is not None]
    extras = [record.extras_norm for record in records if record.extras_norm is not None]
    return Magnitude(median_low(changes) if changes else None, median_low(extras) if extras else None)


def is_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether there is no infinity and no NaN among them."""
    return all(_is_finite(tensor) for tensor in tensors if tensor.is_floating_point())


def _is_finite(tensor: Tensor) -> bool:
    """A sum that is finite, which takes a fraction of the time, tells it; one that overflows does not."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _norm(tensors: Iterable[Tensor]) -> float:
    return hypot(*(float(tensor.double().norm()) for tensor in tensors if tensor.is_floating_point()))
