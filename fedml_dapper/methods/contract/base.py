"""The contract of a method, whose defaults are FedAvg (McMahan et al., AISTATS 2017).

The six hooks of a round come first in :class:`Method`, in the order in which a round calls them. Most methods override
one to four of them. What follows is for special needs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import torch

from fedml_dapper.capture import Unchanging
from fedml_dapper.config import Section, check
from fedml_dapper.datasets import ClientData
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.methods.contract.aggregation import Aggregation, RecoverAndAverage
from fedml_dapper.methods.contract.batchnorm import renew_statistics
from fedml_dapper.methods.contract.local_training import ClientContext, LocalTraining
from fedml_dapper.methods.contract.messages import Downlink, Upload
from fedml_dapper.methods.contract.phases import BACKWARD, Pass, Phase
from fedml_dapper.methods.contract.problem import Problem
from fedml_dapper.methods.contract.requirements import check_adapters, check_importance, check_problem
from fedml_dapper.methods.contract.state import ClientProfile, ServerState, Value
from fedml_dapper.methods.contract.step import Loss, Terms
from fedml_dapper.models import Backbone
from fedml_dapper.models.loading import put_tensors
from fedml_dapper.models.on_disk import let_go
from fedml_dapper.pruning import (
    DENSE,
    Footprint,
    PruningPlan,
    Recovery,
    Tensors,
    footprint,
    slim_model,
    slim_tensors,
    write_back,
)
from fedml_dapper.pruning.footprint import count_macs, count_parameters
from fedml_dapper.pruning.layout import Scope
from fedml_dapper.randomness.seeding import Stream, seeded_layers

SIZE = "the size of a model"
"""What levels' ratios are shares of for most methods: what ``dapper_args.pruning.ratio_of`` names."""


class MethodParams(Section):
    """Base of a method's own settings, which stand below ``dapper_args.params``."""


P = TypeVar("P", bound=MethodParams)


class Method(Unchanging, Generic[P]):
    """A federated learning method: what is sent, how a client trains, how the server aggregates.

    A round calls six hooks, of which a method overrides those that it does differently from FedAvg:

    * :meth:`plan`: the part of the global model that a client trains
    * :meth:`downlink`: what the server sends to a client
    * :meth:`objective`: the loss that a client minimises
    * :meth:`local_update`: a client's round, from what it was sent to what it sends
    * :meth:`aggregation`: what takes in the clients' uploads
    * :meth:`server_update`: what the server makes of their mean

    Methods keep nothing in themselves between rounds: the server's memory is ``ServerState.memory``, a client's is
    ``ClientContext.memory``. So the same object serves any client, in any process.
    """

    name: ClassVar[str]
    """Name of the method in ``dapper_args.method`` and below ``dapper_args.params``."""
    Params: type[P]
    """Class of the method's own settings."""

    def __init__(self, params: P, problem: Problem) -> None:
        check_problem(self, problem, names_its_own=type(self).personal is not Method.personal)
        self.params = params
        self.problem = problem
        self.problem = replace(problem, backbone=self.build_model(problem.backbone), slims=self.slims)
        if self.needs_adapters:
            check_adapters(self)
        if problem.personal_layers != "none":
            check_importance(self)
            self.has_global_model = False

    # A round: server to client, on the client, client to server

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        """The part of the global model that ``client_id`` trains in the coming round: by default all of it.

        The client is sent all of that part that is neither :attr:`personal` nor frozen. Asking twice changes nothing.
        """
        del server, client_id
        return DENSE

    def downlink(self, server: ServerState, client_id: int) -> Downlink:
        """The message to a client in the round after ``server.round``: the part of the global model in its plan."""
        plan = self.sendable(self.plan(server, client_id))
        sent = {name: tensor for name, tensor in server.weights.items() if name not in plan.omitted}
        return Downlink(server.round + 1, client_id, slim_tensors(sent, self.problem.layout, plan), plan)

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """The client's local objective in this round: the task's loss."""
        del client, downlink
        return self.problem.task_loss

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """A client's round: E epochs of :meth:`objective` from the received model, which is then sent."""
        model = self.load(client, downlink)
        training = self.train_epochs(client, downlink, model, self.objective(client, downlink))
        return self.upload(client, downlink, model, training)

    def aggregation(self, server: ServerState) -> Aggregation:
        """The open round's aggregation: uploads are averaged, and :meth:`server_update` gets their mean.

        Full models give FedAvg's mean, weighted by samples. For sub-models, :attr:`recovery` says what stands in for
        coordinates that a client does not hold (DapperFL Eq. 6-7).
        """
        return RecoverAndAverage(server, self.problem, self.recovery, self.server_update)

    def server_update(self, server: ServerState, mean: Tensors) -> None:
        """Write the new global model into ``server``, which still has the old one: by default the ``mean`` itself.

        ``mean`` holds every entry of the global model, by name and in its shape.
        """
        server.weights = dict(mean)

    # Parts of a client's round

    def load(self, client: ClientContext, downlink: Downlink) -> Backbone:
        """The client's own copy of the model it was sent, on its device, with its personal tensors put in."""
        model = self.local_model(downlink.plan).to(client.device)
        remembered = client.memory.recall("personal")
        if remembered:
            present = model.state_dict().keys()
            remembered = {name: tensor for name, tensor in remembered.items() if name in present}
        own = slim_tensors(remembered, self.problem.layout, downlink.plan)
        put_tensors(model, {**downlink.weights, **own})
        return model

    def train_epochs(
        self, client: ClientContext, downlink: Downlink, model: Backbone, loss: Loss | Terms,
        *, momentum: float | None = None, before_step: Callable[[], None] | None = None,
        after_step: Callable[[], None] | None = None,
    ) -> LocalTraining:  # fmt: skip
        """E epochs of ``loss`` on ``model`` by a fresh optimizer; ``model`` itself is trained.

        ``momentum`` replaces the setting's. ``before_step`` may change gradients before each step of the optimizer;
        ``after_step`` is called after it.
        """
        epochs = self.epochs(client.profile)
        training = LocalTraining(client, downlink.round, self.problem.training, epochs)
        optimizer = training.optimizer(model, momentum)
        training.epoch(model, optimizer, loss, after_step, times=epochs, before_step=before_step)
        return training

    def epochs(self, profile: ClientProfile) -> int:
        """Number of local epochs of a client: ``train_args.epochs`` for everyone."""
        del profile
        return self.problem.training.epochs

    def upload(
        self, client: ClientContext, downlink: Downlink, model: Backbone, training: LocalTraining,
        extras: Tensors | None = None,
    ) -> Upload:  # fmt: skip
        """The trained model as a message; its personal tensors go into the client's memory instead."""
        state = model.state_dict()
        if self.personal:
            self.keep_personal(client, state, downlink.plan)
        return Upload(
            round=downlink.round,
            client_id=client.profile.client_id,
            num_samples=client.data.num_samples,
            weights={
                name: state[name]
                for name in self.problem.layout.travelling
                if name in state and name not in self.personal
            },
            metrics=training.metrics(),
            plan=downlink.plan,
            extras=extras or {},
        )

    # What a method needs, and is known for

    slims: ClassVar[bool] = False
    """Whether weak clients train slim models; otherwise everyone trains the full one (DapperFL, footnote 6)."""
    cuts_depth: ClassVar[bool] = False
    """Whether weak clients' models lack whole blocks, so that channels alone do not say how small they are."""
    slim_downlink: ClassVar[bool] = False
    """Whether weak clients are sent slim models too."""
    recovery: Recovery = "global"
    """Stand-in for coordinates that a client does not hold: the previous global model, zero, or nothing (``holders``),
    so that the mean is over those that hold them."""
    has_global_model: bool = True
    """Whether the server's model is meant to be used; otherwise only the clients' own are."""
    allows_personal_layers: ClassVar[bool] = False
    """Whether users may switch on ``dapper_args.personal_layers``: the server does without what clients keep."""
    takes_at_home: ClassVar[bool] = False
    """Former name of :attr:`allows_personal_layers`, which counts as well."""
    sees_batches: bool = False
    """Whether training looks at a batch as a whole, beyond means over its samples."""
    serves_newcomers: ClassVar[bool] = True
    """Whether there is a model for a client that never trained, :meth:`adapted_model`."""
    scopes: ClassVar[tuple[Scope, ...]] = ("internal", "grouped")
    """Values of ``dapper_args.pruning.scope`` that the method can slim under."""
    needs_sgd: ClassVar[bool] = False
    """Whether its derivation holds for ``client_optimizer: sgd`` alone."""
    needs_representations: bool = False
    """Whether it needs representations z under a linear predictor, which not every model has."""
    needs_labels: bool = False
    """Whether it needs one class a sample, which not every task has."""
    needs_adapters: ClassVar[bool] = False
    """Whether it is about adapters (``model_args.adapter``), whose rank components it cuts."""
    remedy: ClassVar[str] = "choose another dapper_args.method"
    """Advice for a run whose task or model lacks what the method needs."""
    ratios_are_of: ClassVar[str] = SIZE
    """What the ratios of levels are shares of, in words, where it is not the size of a level's model."""
    cost_note: ClassVar[str] = ""
    """Note for reports: what the method costs beyond, or does not save of, what footprints show."""

    @classmethod
    def check_params(cls, values: Mapping[str, Any]) -> P:
        """The method's settings from plain values; raises ``ConfigError``."""
        return check(cls.Params, values, where=f"settings of {cls.name}", prefix=f"dapper_args.params.{cls.name}")

    def check_clients(self, clients: Sequence[ClientData]) -> None:
        """Check the clients' data before round 1; raises ``ConfigError`` where the method cannot work on them."""
        without = [client.client_id for client in clients if client.labels is None]
        if self.needs_labels and without:
            raise ConfigError(
                f"dapper_args.method: `{self.name}` needs one class for every sample, and those of client {without[0]}"
                " have none; choose another method, or give targets that are single integers"
            )

    def takes_part(self, level: int) -> bool:
        """Whether clients of capability ``level`` train at all."""
        del level
        return True

    @property
    def depends_on_comm_round(self) -> str:
        """Part of the method that depends on the number of rounds, in words for a user who asks for more; empty for
        nothing.

        A method that reads ``self.problem.training.comm_round`` has to say so: such a run cannot be extended, and
        everybody has to have the same ``comm_round``.
        """
        return ""

    @property
    def fixed_comm_round(self) -> str:
        """Reason why a run cannot be extended, in words: the method's, or its noise's; empty where there is none."""
        privacy = self.problem.privacy
        is_chosen = privacy is not None and privacy.is_for_target
        return self.depends_on_comm_round or (
            "noise is chosen for dapper_args.privacy.target_epsilon" if is_chosen else ""
        )

    # The network, and what stays on the client

    def build_model(self, backbone: Backbone) -> Backbone:
        """The model this method trains; methods that change layers return a changed copy.

        Called once, at the start: ``self.problem`` still holds the plain backbone.
        """
        return backbone

    def local_model(self, plan: PruningPlan) -> Backbone:
        """An untrained model of the shape that ``plan`` leaves."""
        model = slim_model(self.problem.backbone, self.problem.layout, plan)
        let_go(self.problem.backbone)
        return model

    @cached_property
    def personal(self) -> frozenset[str]:
        """Names of tensors that never leave a client; it keeps them in its memory between rounds, in full size.

        By default those that ``dapper_args.personal_layers`` names.
        """
        return self.problem.personal_tensors

    @property
    def personalises(self) -> bool:
        """Whether clients use models of their own, :meth:`personal_model`, rather than the server's."""
        return not self.has_global_model or bool(self.personal)

    def keep_personal(self, client: ClientContext, state: Tensors, plan: PruningPlan) -> None:
        """Remember the personal tensors of a model cut to ``plan``; channels that it lacks keep their values, at first
        those of the initial global model."""
        initial = self.problem.backbone.state_dict()
        remembered = client.memory.recall("personal")
        whole = {name: remembered.get(name, initial[name]) for name in sorted(self.personal)}
        trained = {name: state[name] for name in whole if name in state}
        client.memory.keep("personal", {**whole, **write_back(whole, trained, self.problem.layout, plan)})

    def lacked(self, plan: PruningPlan) -> frozenset[str]:
        """Tensors of the global model that a client's model under ``plan`` does not have."""
        return plan.omitted - self.personal

    def sendable(self, plan: PruningPlan) -> PruningPlan:
        """``plan`` without what never leaves a client."""
        return replace(plan, omitted=plan.omitted | self.personal) if self.personal else plan

    def upload_plan(self, server: ServerState, client_id: int) -> PruningPlan:
        """The part of the global model that ``client_id`` sends back in the open round: by default what it was sent."""
        return self.sendable(self.plan(server, client_id))

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines for the user, before round 1, on what the method leaves as it is in this network: by default layers
        that stay whole where the method slims."""
        return self.problem.layout.notes if self.slims else ()

    # What a round costs a client

    def footprint(self, ratio: float) -> Footprint:
        """Parameters, multiply-accumulates and bytes each way of a client of pruning ratio ``ratio``."""
        widths = self.problem.widths(ratio) if self.slims else {}
        return footprint(self.problem.layout, widths, personal=self.personal, slim_downlink=self.slim_downlink)

    def model_size(self, plan: PruningPlan) -> tuple[int, int]:
        """Parameters and multiply-accumulates per image of the model a client trains under ``plan``."""
        skipped = self.lacked(plan)
        layout = self.problem.layout
        widths = plan.widths
        return count_parameters(layout, widths, skipped), count_macs(layout, widths, skipped)

    def local_phases(self, profile: ClientProfile) -> tuple[Phase, ...]:
        """Phases of :meth:`local_update`, for checks of memory and time: E epochs of the part that is sent."""
        return (Phase(self.epochs(profile), (Pass(self.first_plan(profile)),)),)

    def pass_macs(self, one: Pass) -> int:
        """Multiply-accumulates per image of a pass, with its backward pass where it has one."""
        return self.model_size(one.plan)[1] * (1 + BACKWARD * one.backward)

    def pass_model(self, one: Pass) -> Backbone:
        """An untrained network that runs in a pass; the parameters that the pass trains have ``requires_grad``."""
        model = self.local_model(one.plan)
        if one.trained is not None:
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name in one.trained)
        return model

    def first_plan(self, profile: ClientProfile) -> PruningPlan:
        """The part of the global model that a client like ``profile`` is sent in the first round."""
        anyone = replace(profile, client_id=0)
        return self.plan(ServerState(0, self.problem.starting_weights(), (anyone,)), anyone.client_id)

    # What an upload has to be, and what the server learns by it

    def check_plan(self, server: ServerState, upload: Upload) -> None:
        """Check which part of the model ``upload`` holds: by default :meth:`upload_plan`.

        Raises ``ProtocolError`` for another part.
        """
        if upload.unsliced or not upload.plan.equals(self.upload_plan(server, upload.client_id)):
            raise ProtocolError("upload's plan is not the one that its client was sent")

    def check_extras(self, server: ServerState, upload: Upload) -> None:
        """Check names, shapes and dtypes of the upload's extras, in the open round: by default there are none.

        Raises ``ProtocolError`` for others.
        """
        del server
        if upload.extras:
            raise ProtocolError(f"upload holds extras that `{self.name}` knows nothing of: {sorted(upload.extras)[:3]}")

    def trained_samples(self, profile: ClientProfile) -> int:
        """Number of images that a client trains on, which its uploads have to say: all."""
        return profile.num_samples

    @property
    def beyond_sums(self) -> str:
        """Knowledge of single clients that the server gains besides sums over what their plans name; empty for none.

        In words that go on after "learns". Where it is empty, noise on the sums is all that ``dapper_args.privacy``
        takes. A method with an :meth:`aggregation` of its own that is :class:`RecoverAndAverage` alone says so itself;
        so does one whose clients send extras.
        """
        if type(self).check_plan is not Method.check_plan:
            return "which channels each client keeps, which follows from the client's data"
        return "" if self.takes_robust_means else "more of every upload than its part in a mean"

    @property
    def takes_robust_means(self) -> bool:
        """Whether the server learns nothing of clients but :class:`RecoverAndAverage`'s mean, for which a robust
        statistic can stand in. A method with an :meth:`aggregation` of its own says so itself."""
        return type(self).aggregation is Method.aggregation

    @property
    def takes_late_uploads(self) -> bool:
        """Whether an upload may count in a later round than its own, as what goes into a mean alone may."""
        return self.takes_robust_means and self.has_global_model

    @property
    def takes_edges(self) -> bool:
        """Whether the server may learn of an edge's clients nothing but the sum of their uploads.

        The :meth:`aggregation` is then one that takes such sums, as :class:`RecoverAndAverage` does.
        """
        return self.takes_robust_means and self.problem.defence.aggregation == "mean"

    def round_notes(self, server: ServerState) -> Mapping[str, Value]:
        """Notes on the round just closed, by name, for the ledger and the terminal."""
        del server
        return {}

    # Models to evaluate

    @property
    def tests_on_training_data(self) -> bool:
        """Whether :meth:`before_tests` reads the clients' training data, which only a simulation has in one place."""
        return False

    def before_tests(self, server: ServerState, clients: Sequence[ClientData], device: torch.device) -> None:
        """Change the global model before a simulation tests it, given all clients' training data: by default not."""
        del server, clients, device

    def global_model(self, server: ServerState) -> Backbone:
        """The server's model."""
        model = copy.deepcopy(self.problem.backbone)
        put_tensors(model, server.weights)
        return model

    def part_of_global_model(self, server: ServerState, plan: PruningPlan) -> Backbone:
        """The part of the server's model that ``plan`` leaves."""
        model = self.local_model(plan)
        put_tensors(model, slim_tensors(server.weights, self.problem.layout, plan))
        return model

    def has_level_model(self, level: int) -> bool:
        """Whether a device of capability ``level`` can run what :meth:`level_model` gives: the whole model fits only
        where nothing has to be cut."""
        return self.slims or self.problem.ratios[level - 1] == 0

    def level_model(self, server: ServerState, level: int) -> Backbone:
        """The server's model as a device of capability ``level`` can carry it, cut by the method's own rule.

        It is what such a device would be sent in the coming round; whole where the method does not slim.
        """
        if not self.slims:
            return self.global_model(server)
        anyone = ClientProfile(0, "", level, self.problem.ratios[level - 1], 0)
        downlink = self.downlink(replace(server, profiles=(anyone, *server.profiles[1:])), anyone.client_id)
        model = self.local_model(downlink.plan)
        put_tensors(model, downlink.weights)
        return model

    def personal_model(self, client: ClientContext, downlink: Downlink) -> Backbone:
        """The model a client uses itself, given what the server has for it or what it has just trained.

        Nothing is remembered: evaluation leaves no trace.
        """
        return self.load(client, downlink)

    def seeded_personal_model(self, client: ClientContext, downlink: Downlink) -> Backbone:
        """What :meth:`personal_model` gives; what it draws at random follows from seed, client and round alone."""
        with seeded_layers(self.problem.seed, Stream.TESTS, client.profile.client_id, downlink.round):
            return self.personal_model(client, downlink)

    @property
    def adapts(self) -> bool:
        """Whether the method has a rule of its own for newcomers, which :meth:`adapted_model` then follows."""
        return type(self).adapted_model is not Method.adapted_model

    def adapted_model(self, server: ServerState, data: ClientData, device: torch.device) -> Backbone:
        """The model for a newcomer of a domain that nobody trained on, adapted without ``data``'s labels.

        By default the server's, with statistics of ``data`` where clients keep theirs.
        """
        model = self.global_model(server)
        if self.problem.personal_tensors:
            model.to(device)
            renew_statistics(model, data, device)
        return model
