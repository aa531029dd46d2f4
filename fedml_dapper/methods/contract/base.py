"""The contract every method meets; the defaults below are FedAvg."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import torch

from fedml_dapper.config import Section, check
from fedml_dapper.datasets import ClientData
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.methods.contract.aggregation import Aggregation, RecoverAndAverage
from fedml_dapper.methods.contract.batchnorm import renew_statistics
from fedml_dapper.methods.contract.local_training import ClientContext, LocalTraining, Loss
from fedml_dapper.methods.contract.messages import Downlink, Upload
from fedml_dapper.methods.contract.needs import check_gains, check_needs
from fedml_dapper.methods.contract.phases import Pass, Phase
from fedml_dapper.methods.contract.problem import Problem
from fedml_dapper.methods.contract.state import ClientProfile, ServerState, Value
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import (
    DENSE,
    Footprint,
    PruningPlan,
    Tensors,
    footprint,
    slim_model,
    slim_tensors,
    write_back,
)
from fedml_dapper.pruning.footprint import count_macs, count_parameters
from fedml_dapper.pruning.layout import Scope


class MethodParams(Section):
    """Base of a method's own settings, ``dapper_args.params``."""


P = TypeVar("P", bound=MethodParams)


class Method(Generic[P]):
    """A federated learning method: what is sent, how a client trains, how the server aggregates.

    Methods keep nothing in themselves between rounds: the server's memory is ``ServerState.memory``, a client's is
    ``ClientContext.memory``. So the same object serves any client, in any process.
    """

    name: ClassVar[str]
    Params: type[P]
    slims: ClassVar[bool] = False
    """Whether weak clients train slim models; otherwise everyone trains the full one (DapperFL, footnote 6)."""
    slim_downlink: ClassVar[bool] = False
    """Whether they are sent slim models too."""
    has_global_model: bool = True
    """Whether the server's model is meant to be used; otherwise only the clients' own are, as where norms stay at
    home."""
    sees_batches: ClassVar[bool] = False
    """Whether training looks at a batch as a whole, beyond means over its samples."""
    takes_at_home: ClassVar[bool] = False
    """Whether it goes with ``dapper_args.at_home``: whatever it does with a client's model, it does without what stays
    at the client."""
    serves_newcomers: ClassVar[bool] = True
    """Whether there is a model for a client that never trained (:meth:`adapted_model`)."""
    scopes: ClassVar[tuple[Scope, ...]] = ("internal", "grouped")
    """Values of ``dapper_args.pruning.scope`` that the method can slim under."""
    cost_note: ClassVar[str] = ""
    """For reports: what the method costs beyond, or does not save of, what footprints show."""
    needs_sgd: ClassVar[bool] = False
    """Whether its derivation holds for ``client_optimizer: sgd`` alone."""
    needs_representations: bool = False
    """Whether it does something with representations z or the linear predictor on them, which not every model has."""
    needs_labels: bool = False
    """Whether it needs one class a sample, which not every task has."""
    way_out: ClassVar[str] = "choose another dapper_args.method"
    """What to do where a task or model lacks what the method needs."""

    def __init__(self, params: P, problem: Problem) -> None:
        check_needs(self, problem, keeps_something_itself=type(self).personal is not Method.personal)
        self.params = params
        self.problem = problem
        self.problem = replace(problem, backbone=self.build_model(problem.backbone), slims=self.slims)
        if problem.at_home != "none":
            check_gains(self.name, self.problem)
            self.has_global_model = False

    @classmethod
    def check_params(cls, values: Mapping[str, Any]) -> P:
        """The method's settings from plain values; raises ``ConfigError``."""
        return check(cls.Params, values, where=f"settings of {cls.name}", prefix=f"dapper_args.params.{cls.name}")

    def build_model(self, backbone: Backbone) -> Backbone:
        """The model this method trains; methods that change layers return a changed copy.

        Called once, at the start: ``self.problem`` still holds the plain backbone.
        """
        return backbone

    def check_clients(self, clients: Sequence[ClientData]) -> None:
        """Raises ``ConfigError`` where the method cannot work on these clients' data; called before round 1."""
        without = [client.client_id for client in clients if client.labels is None]
        if self.needs_labels and without:
            raise ConfigError(
                f"dapper_args.method: `{self.name}` needs one class for every sample, and those of client {without[0]}"
                " have none; choose another method, or give targets that are single integers"
            )

    @cached_property
    def personal(self) -> frozenset[str]:
        """Names of tensors that never leave a client; it keeps them in its memory between rounds, in full size.

        By default those that ``dapper_args.at_home`` names.
        """
        return self.problem.kept_at_home

    @property
    def personalises(self) -> bool:
        """Whether clients use models of their own, :meth:`personal_model`, rather than the server's."""
        return not self.has_global_model or bool(self.personal)

    @property
    def depends_on_comm_round(self) -> str:
        """What of the method depends on how many rounds there are to be, in words for whoever asks for more: nothing.

        A method that reads ``self.problem.training.comm_round`` has to say so: such a run cannot be extended, and
        everybody has to have the same ``comm_round``.
        """
        return ""

    @property
    def fixed_comm_round(self) -> str:
        """Why a run cannot be extended, in words: what of the method, or of its noise, depends on the number of rounds;
        empty where nothing does."""
        privacy = self.problem.privacy
        is_chosen = privacy is not None and privacy.is_for_target
        return self.depends_on_comm_round or (
            "noise is chosen for dapper_args.privacy.target_epsilon" if is_chosen else ""
        )

    @property
    def beyond_sums(self) -> str:
        """What the server learns of clients besides sums over what their plans name, in words that go on after
        "learns"; empty where nothing, so that noise on the sums is all that ``dapper_args.privacy`` takes.

        A method that aggregates in its own way, but by :class:`RecoverAndAverage` alone, says so itself; so does one
        whose clients send extras.
        """
        if type(self).check_plan is not Method.check_plan:
            return "which channels each client keeps, which follows from the client's data"
        return "" if self.takes_robust_means else "more of every upload than its part in a mean"

    @property
    def takes_robust_means(self) -> bool:
        """Whether all that the server learns of clients is :class:`RecoverAndAverage`'s mean, for which a robust
        statistic can stand in. A method that aggregates in its own way says so itself."""
        return type(self).aggregation is Method.aggregation

    @property
    def takes_late_uploads(self) -> bool:
        """Whether an upload may count in a later round than its own, as what goes into a mean alone may."""
        return self.takes_robust_means and self.has_global_model

    @property
    def takes_edges(self) -> bool:
        """Whether the server may learn of an edge's clients nothing but the sum of their uploads
        (:class:`RecoverAndAverage`), and the :meth:`aggregation` takes such."""
        return self.takes_robust_means and self.problem.defence.aggregation == "mean"

    def footprint(self, ratio: float) -> Footprint:
        """What a client of pruning ratio ``ratio`` trains, gets and sends."""
        widths = self.problem.widths(ratio) if self.slims else {}
        return footprint(self.problem.layout, widths, personal=self.personal, slim_downlink=self.slim_downlink)

    def model_size(self, plan: PruningPlan) -> tuple[int, int]:
        """Parameters and multiply-accumulates per image of the model a client trains under ``plan``."""
        skipped = self.lacked(plan)
        layout = self.problem.layout
        widths = plan.widths
        return count_parameters(layout, widths, skipped), count_macs(layout, widths, skipped)

    def lacked(self, plan: PruningPlan) -> frozenset[str]:
        """Tensors of the global model that a client's model under ``plan`` does not have."""
        return plan.omitted - self.personal

    def sendable(self, plan: PruningPlan) -> PruningPlan:
        """``plan`` without what never leaves a client."""
        return replace(plan, omitted=plan.omitted | self.personal) if self.personal else plan

    # Server to client

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        """The part of the global model that ``client_id`` trains in the coming round, of which it is sent all that is
        not personal; asking twice changes nothing."""
        del server, client_id
        return DENSE

    def downlink(self, server: ServerState, client_id: int) -> Downlink:
        """What a client gets in the round that follows ``server.round`` completed ones."""
        plan = self.sendable(self.plan(server, client_id))
        sent = {name: tensor for name, tensor in server.weights.items() if name not in plan.omitted}
        return Downlink(server.round + 1, client_id, slim_tensors(sent, self.problem.layout, plan), plan)

    # On the client

    def local_model(self, plan: PruningPlan) -> Backbone:
        """An untrained model of the shape that ``plan`` leaves."""
        return slim_model(self.problem.backbone, self.problem.layout, plan)

    def load(self, client: ClientContext, downlink: Downlink) -> Backbone:
        """The client's own copy of the model it was sent, with its personal tensors put in."""
        model = self.local_model(downlink.plan).to(client.device)
        state = model.state_dict()
        own = {name: tensor for name, tensor in client.memory.recall("personal").items() if name in state}
        own = slim_tensors(own, self.problem.layout, downlink.plan)
        model.load_state_dict({**state, **downlink.weights, **own})
        return model

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """The client's local objective in this round: the task's loss."""
        del client, downlink
        return self.problem.task_loss

    def epochs(self, profile: ClientProfile) -> int:
        """Local epochs of a client."""
        del profile
        return self.problem.training.epochs

    def local_phases(self, profile: ClientProfile) -> tuple[Phase, ...]:
        """What :meth:`local_update` runs, for whoever asks whether a device can: E epochs of the part it is sent."""
        return (Phase(self.epochs(profile), (Pass(self.first_plan(profile)),)),)

    def first_plan(self, profile: ClientProfile) -> PruningPlan:
        """The part of the global model that a client like ``profile`` is sent in the first round."""
        anyone = replace(profile, client_id=0)
        return self.plan(ServerState(0, self.problem.backbone.state_dict(), (anyone,)), anyone.client_id)

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """A client's round: E epochs of :meth:`objective` from the received model."""
        model = self.load(client, downlink)
        epochs = self.epochs(client.profile)
        loss = self.objective(client, downlink)
        training = LocalTraining(client, downlink.round, self.problem.training, epochs)
        optimizer = training.optimizer(model)
        for _ in range(epochs):
            training.epoch(model, optimizer, loss)
        return self.upload(client, downlink, model, training)

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
            weights={name: tensor for name, tensor in state.items() if name not in self.personal},
            metrics=training.metrics(),
            plan=downlink.plan,
            extras=extras or {},
        )

    def keep_personal(self, client: ClientContext, state: Tensors, plan: PruningPlan) -> None:
        """Remember the personal tensors of a model cut to ``plan``; channels that it lacks keep their values, at first
        those of the initial global model."""
        initial = self.problem.backbone.state_dict()
        remembered = client.memory.recall("personal")
        whole = {name: remembered.get(name, initial[name]) for name in sorted(self.personal)}
        trained = {name: state[name] for name in whole if name in state}
        client.memory.keep("personal", {**whole, **write_back(whole, trained, self.problem.layout, plan)})

    # Client to server

    def check_plan(self, server: ServerState, upload: Upload) -> None:
        """Raises ``ProtocolError`` unless ``upload`` is the part of the model that its client is to send in the open
        round: by default the part that it was sent."""
        if upload.unsliced or not upload.plan.equals(self.sendable(self.plan(server, upload.client_id))):
            raise ProtocolError("upload's plan is not the one that its client was sent")

    def check_extras(self, server: ServerState, upload: Upload) -> None:
        """Raises ``ProtocolError`` unless ``upload`` holds the extras that its client is to send in the open round, in
        names, shapes and dtypes: by default none."""
        del server
        if upload.extras:
            raise ProtocolError(f"upload holds extras that `{self.name}` knows nothing of: {sorted(upload.extras)[:3]}")

    def trained_samples(self, profile: ClientProfile) -> int:
        """On how many of its images a client trains, which its uploads have to say: all."""
        return profile.num_samples

    def aggregation(self, server: ServerState) -> Aggregation:
        """Recover what was pruned and average (DapperFL Eq. 6-7); without pruning, FedAvg's weighted mean."""
        return RecoverAndAverage(server, self.problem)

    def round_notes(self, server: ServerState) -> Mapping[str, Value]:
        """What the ledger and the terminal are to say of the round just closed, by name."""
        del server
        return {}

    # Models to evaluate

    @property
    def tests_on_training_data(self) -> bool:
        """Whether :meth:`before_tests` reads the clients' training data, which only a simulation has in one place."""
        return False

    def before_tests(self, server: ServerState, clients: Sequence[ClientData], device: torch.device) -> None:
        """What a simulation does to the global model before it is tested, given all clients' training data: nothing."""
        del server, clients, device

    def global_model(self, server: ServerState) -> Backbone:
        """The server's model."""
        model = copy.deepcopy(self.problem.backbone)
        model.load_state_dict(server.weights)
        return model

    def takes_part(self, level: int) -> bool:
        """Whether clients of capability ``level`` train at all."""
        del level
        return True

    def has_level_model(self, level: int) -> bool:
        """Whether a device of capability ``level`` can run what :meth:`level_model` gives: the whole model fits only
        where nothing has to be cut."""
        return self.slims or self.problem.ratios[level - 1] == 0

    def level_model(self, server: ServerState, level: int) -> Backbone:
        """The server's model as a device of capability ``level`` can carry it, cut by the method's own rule: what such
        a device would be sent in the coming round; whole where the method does not slim."""
        if not self.slims:
            return self.global_model(server)
        anyone = ClientProfile(0, "", level, self.problem.ratios[level - 1], 0)
        downlink = self.downlink(replace(server, profiles=(anyone, *server.profiles[1:])), anyone.client_id)
        model = self.local_model(downlink.plan)
        model.load_state_dict({**model.state_dict(), **downlink.weights})
        return model

    def personal_model(self, client: ClientContext, downlink: Downlink) -> Backbone:
        """The model a client uses itself, given what the server has for it or what it has just trained.

        Nothing is remembered: evaluation leaves no trace.
        """
        return self.load(client, downlink)

    @property
    def adapts(self) -> bool:
        """Whether the method has a rule of its own for newcomers, which :meth:`adapted_model` then follows."""
        return type(self).adapted_model is not Method.adapted_model

    def adapted_model(self, server: ServerState, data: ClientData, device: torch.device) -> Backbone:
        """The model for a newcomer of a domain that nobody trained on, adapted without ``data``'s labels: by default
        the server's, with statistics of ``data`` where those of clients stay at home."""
        model = self.global_model(server)
        if self.problem.kept_at_home:
            model.to(device)
            renew_statistics(model, data, device)
        return model
