"""Static BatchNorm (HeteroFL): batch statistics in training; those for testing are measured afterwards.

The original measures them before every test, with the dense global model on all clients' training images: ``dense``.
A weak client cannot run that model, and where clients are other people's nobody has all images. So by default each
client measures its own trained slim model, in every round. The server averages over all clients, or for every level
apart (``by_level``): statistics of a narrow network differ from a wide one's (Slimmable Networks, Yu et al., ICLR 2019,
whose switchable BatchNorm has gains and biases for every width too). ``exact`` measures the level's model that the
aggregation gave, by all that can run it, as US-Nets do after training (Yu and Huang, ICCV 2019). Networks without
BatchNorm have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Literal, TypeVar

import torch
from torch import Tensor

from fedml_dapper.datasets import Batch, ClientData
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.methods.contract import (
    Aggregation,
    ClientContext,
    ClientProfile,
    Downlink,
    Method,
    MethodParams,
    Phase,
    Problem,
    ServerState,
    Upload,
    UploadsMean,
    forward_only,
    mean_of_uploads,
)
from fedml_dapper.methods.contract.batchnorm import recalibrate, renew_statistics, running_statistics
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import PruningPlan, Recovery, write_back

Statistics = Literal["slim", "recalibrate", "by_level", "exact", "dense"]


class StaticBatchNormParams(MethodParams):
    """Settings of the methods that measure running statistics after training."""

    bn_statistics: Statistics = "recalibrate"
    """Running statistics of the tested model. ``recalibrate``: the mean of those that clients measured, in one
    pass over their un-augmented images after training. ``by_level``: the same for the clients of each level apart; the
    global model has those of the strongest level that took part so far. ``slim``: the mean of those tracked during
    training. In a simulation besides, before every test: ``exact``, those of each level's model, in one pass over the
    un-augmented images of all clients that can run it, the global model's as under ``by_level``, and until the next
    test a level has these; ``dense``, those of the dense model over all clients' images, and between two tests those of
    ``slim``."""


P = TypeVar("P", bound=StaticBatchNormParams)


class StaticBatchNorm(Method[P]):
    """Base of methods whose clients send the running statistics of the slim model that they trained.

    A :meth:`local_update` of their own calls :meth:`measure_statistics` after training; an :meth:`aggregation` of their
    own is given to :meth:`with_level_statistics`.
    """

    recovery: Recovery = "holders"

    def __init__(self, params: P, problem: Problem) -> None:
        super().__init__(params, problem)
        if params.bn_statistics in ("by_level", "exact", "dense") and problem.personal_layers != "none":
            raise ConfigError(
                f"dapper_args.params.{self.name}.bn_statistics: `{params.bn_statistics}` wants statistics at the"
                f" server, and dapper_args.personal_layers `{problem.personal_layers}` keeps them with clients; choose"
                " recalibrate or slim"
            )
        if params.bn_statistics == "by_level" and problem.defence.aggregation != "mean":
            raise ConfigError(
                f"dapper_args.params.{self.name}.bn_statistics: `by_level` takes means over few clients each, in which"
                f" dapper_args.defence.aggregation `{problem.defence.aggregation}` finds no majority; choose"
                " recalibrate or slim"
            )

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """E epochs of :meth:`objective` from the received model, whose statistics are then measured."""
        model = self.load(client, downlink)
        training = self.train_epochs(client, downlink, model, self.objective(client, downlink))
        self.measure_statistics(client, model)
        return self.upload(client, downlink, model, training)

    def measure_statistics(self, client: ClientContext, model: Backbone) -> None:
        """Give the trained ``model`` statistics of the client's images, where ``bn_statistics`` asks for that."""
        if self._measures:
            renew_statistics(model, client.data, client.device)

    def aggregation(self, server: ServerState) -> Aggregation:
        """Each coordinate's mean over the clients that hold it, and the levels' own statistics."""
        return self.with_level_statistics(server, super().aggregation(server))

    def with_level_statistics(self, server: ServerState, aggregation: Aggregation) -> Aggregation:
        """An aggregation with, beside ``aggregation``, the statistics of every level apart; itself where none are asked
        for."""
        if self.params.bn_statistics != "by_level" or not self._statistics:
            return aggregation
        return _StatisticsByLevel(aggregation, server, self.problem, self._statistics)

    @property
    def takes_robust_means(self) -> bool:
        return type(self).aggregation is StaticBatchNorm.aggregation

    @property
    def _measures(self) -> bool:
        """Whether clients measure statistics after training."""
        return self.params.bn_statistics in ("recalibrate", "by_level")

    @cached_property
    def _statistics(self) -> frozenset[str]:
        return frozenset(running_statistics(self.problem.backbone, copy=False))

    @property
    def tests_on_training_data(self) -> bool:
        return self.params.bn_statistics in ("exact", "dense")

    def before_tests(self, server: ServerState, clients: Sequence[ClientData], device: torch.device) -> None:
        if self.params.bn_statistics == "dense":
            model = self.global_model(server).to(device)
            server.weights = {**server.weights, **recalibrate(model, chain.from_iterable(clients), device)}
        elif self.params.bn_statistics == "exact" and self._statistics:
            for level in range(1, len(self.problem.ratios) + 1):
                able = [client for client in clients if server.profiles[client.client_id].level <= level]
                if able:
                    self._measure(server, level, chain.from_iterable(able), device)
            _adopt_strongest(server, self.problem)

    def _measure(self, server: ServerState, level: int, data: Iterable[Batch], device: torch.device) -> None:
        """Remember the statistics of the model of ``level`` on ``data``; channels that it lacks keep theirs."""
        measured = recalibrate(self._cut(server, level).to(device), data, device)
        whole = {name: self.as_of_level(server, level).weights[name] for name in sorted(self._statistics)}
        plan = self.level_plan(server, level)
        server.memory.keep(_group(level), {**whole, **write_back(whole, measured, self.problem.layout, plan)})

    def measuring(self, profile: ClientProfile) -> tuple[Phase, ...]:
        """Phase of the pass after training, for :meth:`local_phases`; none where nothing is measured."""
        return (forward_only(self.first_plan(profile)),) if self._measures and self._statistics else ()

    def local_phases(self, profile: ClientProfile) -> tuple[Phase, ...]:
        """E epochs of the part it is sent, and the pass that measures."""
        return (*super().local_phases(profile), *self.measuring(profile))

    def downlink(self, server: ServerState, client_id: int) -> Downlink:
        return super().downlink(self.as_of_level(server, server.profiles[client_id].level), client_id)

    def level_plan(self, server: ServerState, level: int) -> PruningPlan:
        """Channels of the global model that :meth:`level_model` of ``level`` has."""
        anyone = ClientProfile(0, "", level, self.problem.ratios[level - 1], 0)
        return self.plan(replace(server, profiles=(anyone, *server.profiles[1:])), anyone.client_id)

    def level_model(self, server: ServerState, level: int) -> Backbone:
        """The level's part of the global model, with the level's statistics where there are such.

        Raises :class:`DataError` where the server does not remember them, as in a finished run without checkpoints.
        """
        kept_apart = self.params.bn_statistics in ("by_level", "exact") and self._statistics
        if kept_apart and server.round > 0 and not _remembered(server, self.problem):
            raise DataError(
                f"the statistics of {self.name}'s levels (bn_statistics: {self.params.bn_statistics}) are in the"
                " checkpoint of the run's last round, which is not there; keep the run's checkpoints folder"
            )
        return self._cut(server, level)

    def _cut(self, server: ServerState, level: int) -> Backbone:
        return self.part_of_global_model(self.as_of_level(server, level), self.level_plan(server, level))

    def as_of_level(self, server: ServerState, level: int) -> ServerState:
        """State of the server with the statistics of clients of ``level``, where these are averaged apart."""
        return replace(server, weights={**server.weights, **server.memory.recall(_group(level))})

    @property
    def takes_edges(self) -> bool:
        return super().takes_edges and self.params.bn_statistics != "by_level"  # which averages those of levels apart

    @property
    def takes_late_uploads(self) -> bool:
        # by level, statistics that arrive late would be blended with the strongest level's
        return super().takes_late_uploads and self.params.bn_statistics != "by_level"


class _StatisticsByLevel:
    """Aggregation with, beside another one, the mean of statistics over the clients of each level."""

    def __init__(self, whole: Aggregation, server: ServerState, problem: Problem, names: frozenset[str]) -> None:
        self._whole = whole
        self._server = server
        self._problem = problem
        self._names = names
        self._means: dict[int, UploadsMean] = {}

    def add(self, upload: Upload) -> None:
        self._whole.add(upload)
        level = self._server.profiles[upload.client_id].level
        if level not in self._means:
            before = {name: self._server.weights[name] for name in sorted(self._names)}
            before.update(self._server.memory.recall(_group(level)))
            self._means[level] = mean_of_uploads(before, self._problem, "holders")
        weight = 1 if self._problem.uniform_weights else upload.num_samples
        sent = {name: tensor for name, tensor in upload.weights.items() if name in self._names}
        self._means[level].add(sent, upload.plan, weight)

    def close(self) -> None:
        self._whole.close()
        for level, mean in self._means.items():
            self._server.memory.keep(_group(level), mean.result())
        _adopt_strongest(self._server, self._problem)


def _group(level: int) -> str:
    """Name under which the server remembers the statistics of ``level``."""
    return f"statistics of level {level}"


def _remembered(server: ServerState, problem: Problem) -> list[dict[str, Tensor]]:
    """Statistics of the levels that the server has some of, strongest level first."""
    levels = range(1, len(problem.ratios) + 1)
    return [found for level in levels if (found := server.memory.recall(_group(level)))]


def _adopt_strongest(server: ServerState, problem: Problem) -> None:
    """Give the global model the statistics of the strongest level that has some."""
    server.weights = {**server.weights, **next(iter(_remembered(server, problem)), {})}
