"""Client's side of a round: local updates and measurements, of as many clients as the process serves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import nan

from fedml_dapper.capture import EAGER, Capture, Captures, CudaGraphs
from fedml_dapper.datasets import Batch, ClientData, TestData
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.method_errors import method_blamed
from fedml_dapper.federation.scoring.testing import Figures, evaluate
from fedml_dapper.federation.scoring.trained_figures import TrainedFigures
from fedml_dapper.federation.task_errors import task_blamed
from fedml_dapper.federation.wire.announcement import Announcement, Measurement
from fedml_dapper.fleet import find_device
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
from fedml_dapper.models import Backbone, bare, blamed
from fedml_dapper.process.freed_memory import freed_memory_kept
from fedml_dapper.process.profiling import is_profiling
from fedml_dapper.pruning import IDLE, clipped, disturbed, slim_tensors
from fedml_dapper.randomness.seeding import Stream, seeded_layers, torch_generator

ClientStepListener = Callable[[int, int, int], None]
"""Called after each optimizer step with (client id, steps done, steps in all)."""


class ClientSide:
    """Runs local updates and keeps each client's memory between rounds, by client id.

    In simulation ``memories`` is the server's own store, so that it can evaluate the clients' models.
    """

    def __init__(self, experiment: Experiment, memories: dict[int, Memory] | None = None) -> None:
        self._experiment = experiment
        self.memories: dict[int, Memory] = {} if memories is None else memories
        self.capture = _capture_of(experiment)
        """The way in which clients take their training steps."""
        self.on_step: ClientStepListener = lambda client_id, done, total: None

    def update(self, downlink: Downlink, data: ClientData) -> Upload:
        """Train one client on ``data``, starting from ``downlink``."""
        client_id = downlink.client_id
        context = replace(
            self._context(downlink, data),
            precision=self._experiment.settings.device_args.precision,
            augment=self._augment(client_id),
            capture=self.capture,
            weigh=self._experiment.method.problem.task.weight,
            on_step=lambda done, total: self.on_step(client_id, done, total),
        )
        if not self._experiment.settings.dapper_args.evaluation.personal:
            return self._as_received(self._local_update(context, downlink))
        before = self._own_figures(context, downlink).headline
        upload = self._local_update(context, downlink)
        trained = self._as_downlink(upload, downlink)
        after = self._own_figures(context, trained)
        if self._experiment.settings.dapper_args.evaluation.personal == "trained":
            TrainedFigures(after, self._validation_figures(context, trained)).keep(context.memory)
        upload = replace(upload, metrics=replace(upload.metrics, accuracy_before=before, accuracy_after=after.headline))
        return self._as_received(upload)

    def _as_received(self, upload: Upload) -> Upload:
        """Return ``upload`` as the server will see it."""
        return as_received(upload, self._experiment.method.problem.layout)

    def update_own(self, downlink: Downlink) -> Upload:
        """Train the client of ``downlink`` on its own data, which this process has."""
        return self.update(downlink, self._experiment.data_of(downlink.client_id))

    def personal_model(self, downlink: Downlink) -> Backbone:
        """Return the model that the client of ``downlink`` uses itself."""
        context = self._context(downlink, self._experiment.data_of(downlink.client_id))
        return self._experiment.method.seeded_personal_model(context, downlink)

    def announcement(self, client_id: int) -> Announcement:
        """Return what the silo of ``client_id`` tells the server of its own data when it joins."""
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
        """Test the model that the client would use, given ``downlink``, on the client's own test samples."""
        figures = self._own_figures(self._context(downlink, data), downlink)
        count = self._experiment.own_tests(downlink.client_id).test.num_samples
        return Measurement(num_samples=count, headline=figures.headline, loss=figures.loss)

    def _context(self, downlink: Downlink, data: ClientData) -> ClientContext:
        return ClientContext(
            profile=self._profile(downlink),
            data=data,
            memory=self.memories.setdefault(downlink.client_id, Memory()),
            device=self._experiment.device,
        )

    def _profile(self, downlink: Downlink) -> ClientProfile:
        """Return the client's profile in this round, in which its level may be another than in the first."""
        profile = self._experiment.profiles[downlink.client_id]
        ratios = self._experiment.settings.dapper_args.levels.ratios
        if downlink.level is None or downlink.level == profile.level:
            return profile
        if not 1 <= downlink.level <= len(ratios):
            raise ProtocolError(f"downlink asks for level {downlink.level}; there are {len(ratios)}")
        return replace(profile, level=downlink.level, ratio=ratios[downlink.level - 1])

    def _local_update(self, context: ClientContext, downlink: Downlink) -> Upload:
        """Train with torch's global generator seeded, which dropout or a user's loader may draw from."""
        seed = self._experiment.settings.common_args.random_seed
        layers = seeded_layers(seed, Stream.TRAINING, downlink.client_id, downlink.round)
        task = self._experiment.method.problem.task
        on_cpu = self._experiment.device.type == "cpu"
        memory = freed_memory_kept() if on_cpu else nullcontext()  # a GPU's is torch's to keep
        method = method_blamed(self._experiment.method, f"client {downlink.client_id}, round {downlink.round}")
        with memory, layers, method, self._blamed(downlink), task_blamed(task):
            return self._made_private(self._experiment.method.local_update(context, downlink), downlink)

    def _blamed(self, downlink: Downlink) -> AbstractContextManager[None]:
        """Turn what a user's network raises in training into one line."""
        problem = self._experiment.method.problem
        network = problem.backbone
        where = f"client {downlink.client_id}, round {downlink.round}: the network {network.label} cannot be trained"
        hints = (note for note in problem.layout.notes if IDLE in note)
        return blamed(where, *hints, backward=bare(network) is not network)

    def _made_private(self, upload: Upload, downlink: Downlink) -> Upload:
        """Clip the upload's change and add noise, and leave out training's measurements, for an untrusted server.

        The upload stays as it is unless ``privacy.where`` is ``client``.
        """
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
        """Return the task's augmentation of the client's batches, seeded by client, round and epoch."""
        problem = self._experiment.method.problem

        def augment(batches: Iterable[Batch], round_: int, epoch: int) -> Iterator[Batch]:
            generator = torch_generator(problem.seed, Stream.AUGMENTATION, client_id, round_, epoch)
            for inputs, targets in batches:
                yield Batch(*problem.task.augment(inputs, targets, generator))

        return augment

    def _own_figures(self, context: ClientContext, downlink: Downlink) -> Figures:
        """Test the client's own model, given ``downlink``, on its own test samples."""
        return self._figures(context, downlink, self._experiment.own_tests(context.profile.client_id).test)

    def _validation_figures(self, context: ClientContext, downlink: Downlink) -> Figures | None:
        """Test the client's own model, given ``downlink``, on its validation samples; None where it has none."""
        validation = self._experiment.own_tests(context.profile.client_id).validation
        return None if validation is None else self._figures(context, downlink, validation)

    def _figures(self, context: ClientContext, downlink: Downlink, samples: TestData) -> Figures:
        method = self._experiment.method
        return evaluate(method.seeded_personal_model(context, downlink), method.problem.task, samples, context.device)

    def _as_downlink(self, upload: Upload, sent: Downlink) -> Downlink:
        """Return the trained weights as a downlink.

        Tensors that are uploaded whole are cut like the others. Those that the client does not send back are as it was
        sent them, which may have been cut already.
        """
        layout = self._experiment.method.problem.layout
        names = upload.plan.omitted - sent.plan.omitted
        unchanged = {name: tensor for name, tensor in sent.weights.items() if name in names}
        plan = replace(upload.plan, omitted=upload.plan.omitted - names)
        if not plan.equals(sent.plan):
            unchanged = slim_tensors(unchanged, layout, plan)
        whole = {name: upload.weights[name] for name in upload.unsliced}
        weights = {**upload.weights, **unchanged, **slim_tensors(whole, layout, plan)}
        return Downlink(upload.round, upload.client_id, weights, plan)


def _capture_of(experiment: Experiment) -> Capture:
    """Return CUDA graphs where there is a GPU, unless the settings switch them off, or steps are timed part by part."""
    args = experiment.settings.device_args
    captures = args.capture == "auto" and experiment.device.type == "cuda" and not is_profiling()
    return Captures(CudaGraphs(experiment.device)) if captures else EAGER
