"""Is an upload what its client can have to say in the open round? Asked before a single value of it is used.

That a message is whole, of this experiment and well-formed, its numbers finite and its plan within the model, is the
codec's to say (``wire``), that it is awaited, the server's. Here it is compared with what the server knows of the
client and of the problem.
"""

from __future__ import annotations

from torch import nn

from fedml_dapper.config import DefenceArgs
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.methods import ServerState, Upload
from fedml_dapper.pruning import Tensors, check_fits, relative_change, slim_tensors

MAX_COUNT = 2**40
"""No run sees as many batches, so no BatchNorm has counted as many."""


class UploadCheck:
    """Checks the uploads of one experiment."""

    def __init__(self, experiment: Experiment) -> None:
        self._method = experiment.method
        self._layout = experiment.method.problem.layout
        self._metric = experiment.method.problem.task.headline
        self._defence: DefenceArgs = experiment.settings.dapper_args.defence
        self._variances = [
            f"{name}.running_var"
            for name, layer in experiment.method.problem.backbone.named_modules()
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
        ]

    def check_form(self, server: ServerState, upload: Upload) -> None:
        """Raises :class:`ProtocolError` unless ``upload`` is in form what its client has to send in this round.

        Compared are the plan with what the client's level or the method prescribes, names, shapes and dtypes with that
        plan, extras with what the method expects, the sample count with the client's own, and the ranges of counters
        and variances.
        """
        self._method.check_plan(server, upload)
        check_fits(upload.weights, upload.plan, upload.unsliced, self._layout, self._layout.tensors.keys())
        self._method.check_extras(server, upload)
        expected = self._method.trained_samples(server.profiles[upload.client_id])
        if upload.num_samples != expected:
            raise ProtocolError(f"upload says {upload.num_samples} samples, its client trains on {expected}")
        self._check_shares(upload)
        for name, tensor in upload.weights.items():
            if not tensor.is_floating_point() and not bool(((tensor >= 0) & (tensor < MAX_COUNT)).all()):
                raise ProtocolError(f"upload's `{name}` counts outside 0..{MAX_COUNT - 1}")
        for name in self._variances:
            if name in upload.weights and bool((upload.weights[name] < 0).any()):
                raise ProtocolError(f"upload's `{name}` holds negative variances")

    def _check_shares(self, upload: Upload) -> None:
        """Raises :class:`ProtocolError` where the headline is in percent and the upload's are not within 0..100."""
        said = (upload.metrics.accuracy_before, upload.metrics.accuracy_after)
        if not all(value is None or self._metric.can_be(value) for value in said):
            raise ProtocolError(f"upload's {self._metric.title} is outside 0..100: {said}")

    def check_change(self, server: ServerState, upload: Upload) -> None:
        """Raises :class:`ProtocolError` where the upload moved further than ``defence.max_change`` lets it."""
        limit = self._defence.max_change
        if limit is None:
            return
        change = relative_change(upload.weights, self._before(server, upload))
        if not change <= limit:  # so that NaN is refused too
            raise ProtocolError(
                f"upload differs from what was sent by {change:.3g} of its norm; dapper_args.defence.max_change allows"
                f" {limit:g}"
            )

    def _before(self, server: ServerState, upload: Upload) -> Tensors:
        """What the client was sent, cut as its upload is; of tensors that were not sent, the global model's."""
        sent = self._method.downlink(server, upload.client_id)
        same_cut = sent.plan.widths == upload.plan.widths
        cut = sent.weights if same_cut else slim_tensors(sent.weights, self._layout, upload.plan, upload.unsliced)
        missing = {name: server.weights[name] for name in upload.weights if name not in cut}
        return {**cut, **slim_tensors(missing, self._layout, upload.plan, upload.unsliced)}
