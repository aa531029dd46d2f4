"""Means of tensors that have one shape on all clients; means of slim models are ``pruning.RecoveringMean``."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedml_dapper.errors import ProtocolError
from fedml_dapper.methods.contract import ServerState, Upload
from fedml_dapper.pruning import Tensors


def check_like(tensors: Tensors, expected: Tensors) -> None:
    """Check that names, shapes and dtypes of ``tensors`` are those of ``expected``; raises :class:`ProtocolError`."""
    odd = sorted(tensors.keys() ^ expected.keys())
    if odd:
        raise ProtocolError(f"tensors to average differ from the expected ones in {len(odd)}, first `{odd[0]}`")
    for name, tensor in tensors.items():
        found, wanted = ((tuple(t.shape), t.dtype) for t in (tensor, expected[name]))
        if found != wanted:
            raise ProtocolError(f"`{name}` has shape and type {found}, expected {wanted}")


class WeightedMean:
    """Running weighted mean of named tensors, summed in float64; of integer tensors the largest is taken.

    Names, shapes and dtypes are those of ``previous``, which is also the result where nothing was added. As with every
    floating sum the order matters: callers add in ascending client id.
    """

    def __init__(self, previous: Tensors) -> None:
        self._previous = previous
        self._sums = {
            name: torch.zeros_like(tensor, dtype=torch.float64 if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in previous.items()
        }
        self._total = 0.0

    def check(self, tensors: Tensors) -> None:
        """Check that names, shapes and dtypes are those of ``previous``; raises :class:`ProtocolError`."""
        check_like(tensors, self._previous)

    def add(self, tensors: Tensors, weight: float) -> None:
        """Fold in one client's ``tensors``; raises :class:`ProtocolError`, with nothing changed, if they do not fit."""
        self.check(tensors)
        for name, sent in tensors.items():
            total = self._sums[name]
            tensor = sent.to(total.device)
            if tensor.is_floating_point():
                total += tensor.double() * weight
            else:
                self._sums[name] = tensor if self._total == 0 else torch.maximum(total, tensor)
        self._total += weight

    def result(self) -> Tensors:
        """The mean in the dtypes of ``previous``; ``previous`` itself if nothing was added."""
        if self._total == 0:
            return self._previous
        return {
            name: (total / self._total).to(self._previous[name].dtype) if total.is_floating_point() else total
            for name, total in self._sums.items()
        }


class UniformMean:
    """Aggregation of full models, and of the extras sent with them, in which every client counts alike.

    Extras are named and shaped like ``extras``. When the round closes, ``step`` writes the new global model, given the
    server, the mean model, the mean of the extras, and the number of uploads.
    """

    def __init__(
        self, server: ServerState, extras: Tensors, step: Callable[[ServerState, Tensors, Tensors, int], None]
    ) -> None:
        self._server = server
        self._models = WeightedMean(server.weights)
        self._extras = WeightedMean(extras)
        self._step = step
        self._received = 0

    def add(self, upload: Upload) -> None:
        self._extras.check(upload.extras)
        self._models.add(upload.weights, 1)
        self._extras.add(upload.extras, 1)
        self._received += 1

    def close(self) -> None:
        self._step(self._server, self._models.result(), self._extras.result(), self._received)
