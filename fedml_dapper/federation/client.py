"""The clients' side of a round, for however many clients this process serves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from math import nan

from fedml_dapper.datasets import Batch, ClientData
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.announcement import Announcement, Measurement
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.testing import Figures, evaluate
from fedml_dapper.federation.trained import TrainedFigures
from fedml_dapper.fleet import find_device
from fedml_dapper.freed_memory import freed_memory_kept
from fedml_dapper.methods import (
    Augment,
    ClientContext,
    ClientProfile,
    Downlink,
    Memory,
    TrainingMetrics,
    Upload,
    as_received,
)
from fedml_dapper.models import bare, blamed
from fedml_dapper.pruning import IDLE, clipped, disturbed, slim_tensors
from fedml_dapper.seeding import Stream, seeded_layers, torch_generator

ClientStepListener = Callable[[int, int, int], None]
"""Called after each optimizer step with (client id, steps done, steps in all)."""


class ClientSide:
    """Runs local updates and keeps each client's memory between rounds, by client id.

    In simulation ``memories`` is the server's own store, so that it can evaluate the clients' models.
    """

    def __init__(self, experiment: Experiment, memories: dict[int, Memory] | None = None) -> None:
        self._experiment = experiment
        self.memories: dict[int, Memory] = {} if memories is None else memories
        self.on_step: ClientStepListener = lambda client_id, done, total: None

    def update(self, downlink: Downlink, data: ClientData) -> Upload:
        """One client's local round on ``data``."""
        client_id = downlink.client_id
        context = ClientContext(
            profile=self._profile(downlink),
            data=data,
            memory=self.memories.setdefault(client_id, Memory()),
            device=self._experiment.device,
            precision=self._experiment.settings.device_args.precision,
            augment=self._augment(client_id),
            on_step=lambda done, total: self.on_step(client_id, done, total),
        )
        method = self._experiment.method
        if not self._experiment.settings.dapper_args.evaluation.personal:
            return as_received(self._local_update(context, downlink), method.problem.layout)
        before = self._own_figures(context, downlink).headline
        upload = self._local_update(context, downlink)
        after = self._own_figures(context, self._as_downlink(upload))
        if self._experiment.settings.dapper_args.evaluation.personal == "trained":
            TrainedFigures(after, self._validation_figures(context, self._as_downlink(upload))).keep(context.memory)
        upload = replace(upload, metrics=replace(upload.metrics, accuracy_before=before, accuracy_after=after.headline))
        return as_received(upload, method.problem.layout)

    def announcement(self, client_id: int) -> Announcement:
        """What the silo of ``client_id`` tells the server of its own data when it joins."""
        data = self._experiment.data_of(client_id)
        own = self._experiment.settings.silo_args
        return Announcement(
            domain=data.domain,
            num_train=data.num_samples,
            num_test=self._experiment.own_tests(client_id).test.num_samples,
            level=own.level,
            profile=None if own.device is None else find_device(own.device, "silo_args.device"),
        )

    def measure(self, downlink: Downlink, data: ClientData) -> Measurement:
        """How the model that the client would use, given ``downlink``, does on its own test samples."""
        client_id = downlink.client_id
        context = ClientContext(
            profile=self._profile(downlink),
            data=data,
            memory=self.memories.setdefault(client_id, Memory()),
            device=self._experiment.device,
        )
        figures = self._own_figures(context, downlink)
        count = self._experiment.own_tests(client_id).test.num_samples
        return Measurement(num_samples=count, headline=figures.headline, loss=figures.loss)

    def _profile(self, downlink: Downlink) -> ClientProfile:
        """The client as of this round, in which its level may be another than in the first."""
        profile = self._experiment.profiles[downlink.client_id]
        ratios = self._experiment.settings.dapper_args.levels.ratios
        if downlink.level is None or downlink.level == profile.level:
            return profile
        if not 1 <= downlink.level <= len(ratios):
            raise ProtocolError(f"downlink asks for level {downlink.level}; there are {len(ratios)}")
        return replace(profile, level=downlink.level, ratio=ratios[downlink.level - 1])

    def _local_update(self, context: ClientContext, downlink: Downlink) -> Upload:
        """What draws from torch's global generator, such as dropout or a user's loader, follows from the seed too."""
        seed = self._experiment.settings.common_args.random_seed
        layers = seeded_layers(seed, Stream.TRAINING, downlink.client_id, downlink.round)
        with freed_memory_kept(), layers, self._blamed(downlink):
            return self._made_private(self._experiment.method.local_update(context, downlink), downlink)

    def _blamed(self, downlink: Downlink) -> AbstractContextManager[None]:
        """What a user's network raises in training is said in one line."""
        problem = self._experiment.method.problem
        network = problem.backbone
        where = f"client {downlink.client_id}, round {downlink.round}: the network {network.label} cannot be trained"
        hints = (note for note in problem.layout.notes if IDLE in note)
        return blamed(where, *hints, backward=bare(network) is not network)

    def _made_private(self, upload: Upload, downlink: Downlink) -> Upload:
        """The upload as it may leave a client that does not trust the server: its change clipped and with noise, and
        without what training measured. As it is, where the client need not see to that."""
        problem = self._experiment.method.problem
        if problem.privacy is None or problem.privacy.where != "client":
            return upload
        noise = problem.privacy.noise(problem.seed, upload.round, upload.client_id)
        weights = clipped(upload.weights, downlink.weights, problem.privacy.clip)
        weights = disturbed(weights, problem.privacy.std, noise)
        return replace(
            upload,
            weights={name: tensor.to(problem.layout.tensors[name].dtype) for name, tensor in weights.items()},
            metrics=TrainingMetrics(loss=nan, steps=upload.metrics.steps, seconds=0.0),
        )

    def _augment(self, client_id: int) -> Augment:
        """What the task does with the client's training batches, from a stream of (client, round, epoch)."""
        problem = self._experiment.method.problem

        def augment(batches: Iterable[Batch], round_: int, epoch: int) -> Iterator[Batch]:
            generator = torch_generator(problem.seed, Stream.AUGMENTATION, client_id, round_, epoch)
            for inputs, targets in batches:
                yield Batch(*problem.task.augment(inputs, targets, generator))

        return augment

    def _own_figures(self, context: ClientContext, downlink: Downlink) -> Figures:
        """The client's own model, given ``downlink``, on its own test samples."""
        method = self._experiment.method
        test = self._experiment.own_tests(context.profile.client_id).test
        return evaluate(method.personal_model(context, downlink), method.problem.task, test, context.device)

    def _validation_figures(self, context: ClientContext, downlink: Downlink) -> Figures | None:
        """The same on its validation samples, where it has some."""
        method = self._experiment.method
        validation = self._experiment.own_tests(context.profile.client_id).validation
        if validation is None:
            return None
        return evaluate(method.personal_model(context, downlink), method.problem.task, validation, context.device)

    def _as_downlink(self, upload: Upload) -> Downlink:
        """What was trained as if it had been sent: the few tensors that are uploaded whole are cut like the others."""
        layout = self._experiment.method.problem.layout
        whole = {name: upload.weights[name] for name in upload.unsliced}
        weights = {**upload.weights, **slim_tensors(whole, layout, upload.plan)}
        return Downlink(upload.round, upload.client_id, weights, upload.plan)
