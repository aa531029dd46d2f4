"""Check of uploads against what the server knows of the client and the problem, before any of their values is used.

Other checks come first: the codec (``wire``) checks that a message is whole, of this experiment and well-formed, its
numbers finite and its plan within the model; the server checks that it is awaited.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from fedml_dapper.config import DefenceArgs
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.round.findings import Finding, raise_first
from fedml_dapper.federation.round.update_norm import UpdateNorms, norms_of_update
from fedml_dapper.methods import ClientProfile, ServerState, Upload
from fedml_dapper.models.norms import BatchNorm, InstanceNorm
from fedml_dapper.pruning import Tensors, check_fits, slim_tensors

MAX_PASSES = 16
"""How often a norm's counter, or the count of optimizer steps, may grow for one batch. FDSE's norms count four times,
Ditto's clients make two steps; others count once."""


class UploadCheck:
    """Checks the uploads of one experiment."""

    def __init__(self, experiment: Experiment) -> None:
        self._method = experiment.method
        self._layout = experiment.method.problem.layout
        self._metric = experiment.method.problem.task.headline
        self._defence: DefenceArgs = experiment.settings.dapper_args.defence
        is_simulation = experiment.settings.common_args.is_simulation
        # Under privacy the clip bounds uploads, and whether one counts may not depend on other clients' uploads.
        is_bounded = experiment.settings.dapper_args.privacy is not None
        self.times_median = None if is_simulation or is_bounded else self._defence.max_times_median
        """``defence.max_times_median`` where clients are other people's and nothing else bounds uploads; else None."""
        state = experiment.method.problem.backbone.state_dict()
        whole = {name: tensor for name, tensor in state.items() if not tensor.is_floating_point() and tensor.numel()}
        self._counters: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
        """Names of tensors that count, by the least and the most that they hold at first."""
        for name, tensor in whole.items():
            self._counters[int(tensor.min()), int(tensor.max())].append(name)
        self._known: tuple[ClientProfile, ...] = ()
        self._most_a_round = 0
        """Most batches that a client of ``_known`` can count in a round."""
        self._variances = [
            f"{name}.running_var"
            for name, layer in experiment.method.problem.backbone.named_modules()
            if isinstance(layer, BatchNorm | InstanceNorm)
        ]

    def check_form(self, server: ServerState, upload: Upload) -> None:
        """Check that ``upload`` has the form that its client has to send in this round: :meth:`check_parts`, and
        counters and variances within their ranges.

        Raises:
            ProtocolError: The upload has another form.
        """
        self.check_parts(server, upload)
        raise_first(self.values_outside(server, upload))

    def check_parts(self, server: ServerState, upload: Upload) -> None:
        """Check all of ``upload`` but the values of its tensors.

        The plan is compared with what the client's level or the method prescribes; names, shapes and dtypes with that
        plan; extras with what the method expects; the sample count with the client's own.

        Raises:
            ProtocolError: The upload has another form.
        """
        self._method.check_plan(server, upload)
        check_fits(upload.weights, upload.plan, upload.unsliced, self._layout, self._layout.travelling)
        self._method.check_extras(server, upload)
        expected = self._method.trained_samples(server.profiles[upload.client_id])
        if upload.num_samples != expected:
            raise ProtocolError(f"upload says {upload.num_samples} samples, its client trains on {expected}")
        self._check_shares(upload)
        self.check_steps(server, upload)

    def values_outside(self, server: ServerState, upload: Upload) -> list[Finding]:
        """Return which counters and variances are outside their ranges, without waiting for a GPU."""
        counted = self._most_counted(server)
        findings = []
        for (lowest, highest), names in self._counters.items():
            most = highest + counted
            if names_sent := [name for name in names if name in upload.weights]:
                values, sizes = _in_a_row(upload.weights, names_sent)
                outside = (values < lowest) | (values > most)
                findings.append(Finding(outside, sizes, f"counts outside {lowest}..{most}"))
        if names_sent := [name for name in self._variances if name in upload.weights]:
            values, sizes = _in_a_row(upload.weights, names_sent)
            findings.append(Finding(values < 0, sizes, "holds negative variances"))
        return findings

    def check_steps(self, server: ServerState, upload: Upload) -> None:
        """Raise :class:`ProtocolError` where the upload's client cannot have made as many steps as it reports."""
        most = self._most_batches(server.profiles[upload.client_id])
        if upload.metrics.steps > most:
            raise ProtocolError(f"upload says {upload.metrics.steps} steps, its client makes {most} at most")

    def _most_counted(self, server: ServerState) -> int:
        """Return the most batches that any client can have counted in all rounds so far, generously.

        A bound on every upload is one on their mean, and so on all uploads that start from it.
        """
        if server.profiles is not self._known:  # there may be a hundred thousand of them
            self._known = server.profiles
            self._most_a_round = max(self._most_batches(profile) for profile in server.profiles)
        return (server.round + 1) * self._most_a_round

    def _most_batches(self, profile: ClientProfile) -> int:
        """Return the most batches that a client can count in a round.

        Batches may be as small as one sample: loaders are the user's, and a batch may come in micro-batches.
        """
        return MAX_PASSES * self._method.epochs(profile) * profile.num_samples

    def _check_shares(self, upload: Upload) -> None:
        """Raise :class:`ProtocolError` where the headline is in percent and the upload's are not within 0..100."""
        reported = (upload.metrics.accuracy_before, upload.metrics.accuracy_after)
        if not all(value is None or self._metric.can_be(value) for value in reported):
            raise ProtocolError(f"upload's {self._metric.title} is outside 0..100: {reported}")

    def check_change(self, server: ServerState, upload: Upload, usual: UpdateNorms) -> UpdateNorms:
        """Measure the upload's size where the defence limits it; else return an unknown size.

        Raises:
            ProtocolError: The upload exceeds ``defence.max_change``, or is out of proportion to the ``usual`` size.
        """
        limit = self._defence.max_change
        times = self.times_median
        if limit is None and times is None:
            return UpdateNorms()
        magnitude = norms_of_update(upload, self._before(server, upload))
        if limit is not None and not (magnitude.change is not None and magnitude.change <= limit):  # NaN is refused too
            raise ProtocolError(
                f"upload differs from what was sent by {magnitude.change:.3g} of its norm;"
                f" dapper_args.defence.max_change allows {limit:g}"
            )
        if times is not None:
            magnitude.check(usual, times)
        return magnitude

    def _before(self, server: ServerState, upload: Upload) -> Tensors:
        """Return what the client was sent, cut as its upload is; tensors that were not sent are the global model's."""
        sent = self._method.downlink(server, upload.client_id)
        same_cut = sent.plan.widths == upload.plan.widths
        cut = sent.weights if same_cut else slim_tensors(sent.weights, self._layout, upload.plan, upload.unsliced)
        missing = {name: server.weights[name] for name in upload.weights if name not in cut}
        return {**cut, **slim_tensors(missing, self._layout, upload.plan, upload.unsliced)}


def _in_a_row(tensors: Tensors, names: Sequence[str]) -> tuple[Tensor, dict[str, int]]:
    """Return the entries of the tensors of those ``names`` in a row, and how many each has."""
    flat = [tensors[name].flatten() for name in names]
    return torch.cat(flat), {name: len(each) for name, each in zip(names, flat, strict=True)}
