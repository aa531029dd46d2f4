"""From settings to everything a run needs, checked before anything is written or trained."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fedml_dapper import __version__
from fedml_dapper.config import LevelArgs, Settings, read_silo_levels, sources
from fedml_dapper.datasets import ClientData, ClientTests, TestData, divide, load_suite
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.records import ClientSummary, LevelFootprint, RunRecord
from fedml_dapper.federation.unseen import UnseenDomain, leave_out
from fedml_dapper.methods import ClientProfile, Method, Problem, build_method
from fedml_dapper.models import build_backbone
from fedml_dapper.pruning import assign_levels
from fedml_dapper.tasks import build_task


@dataclass(frozen=True)
class Experiment:
    """A method, its clients with their data and levels, and the test sets."""

    settings: Settings
    method: Method[Any]
    clients: tuple[ClientData, ...]
    profiles: tuple[ClientProfile, ...]
    tests: tuple[TestData, ...]
    """One a domain, for the global model."""
    validations: tuple[TestData, ...]
    """One a domain, by which a round of the global model is chosen; empty where the partition keeps none."""
    client_tests: tuple[ClientTests, ...]
    """One a client, for its own model."""
    unseen: UnseenDomain | None
    suite_label: str
    num_classes: int
    device: torch.device
    notes: tuple[str, ...]

    def record(self) -> RunRecord:
        """The ledger's first line."""
        return RunRecord(
            version=__version__,
            suite=self.suite_label,
            domains=tuple(test.domain for test in self.tests),
            unseen_domain=self.settings.dapper_args.evaluation.unseen_domain,
            method=self.method.name,
            metric=self.method.problem.task.headline,
            settings=self.settings.model_dump(mode="json"),
            sources=sources(self.settings),
            footprints=level_footprints(self.method, self.settings.dapper_args.levels),
            cost_note=self.method.cost_note,
            clients=tuple(
                ClientSummary(
                    client=p.client_id, domain=p.domain, level=p.level, ratio=p.ratio, num_samples=p.num_samples
                )
                for p in self.profiles
            ),
            notes=self.notes,
        )


def build_experiment(settings: Settings) -> Experiment:
    """Load the data, deal it out, trace the model and check every level's budget.

    Raises :class:`ConfigError` or :class:`DataError` with what to do; writes nothing.
    """
    seed, training = settings.common_args.random_seed, settings.train_args
    device = _device(settings)
    suite, unseen = leave_out(load_suite(settings.data_args), settings)
    division = divide(suite, settings.data_args, training.client_num_in_total, training.batch_size, seed).to(device)
    clients = division.clients
    problem = Problem(
        backbone=build_backbone(settings.model_args, suite.num_classes, seed, suite.input_size).to(device),
        input_size=suite.input_size,
        training=training,
        pruning=settings.dapper_args.pruning,
        uniform_weights=settings.dapper_args.aggregation_weights == "uniform",
        seed=seed,
        ratios=settings.dapper_args.levels.ratios,
        uplink=settings.dapper_args.uplink,
        defence=settings.dapper_args.defence,
        task=build_task(training),
    )
    _check_outputs(problem, suite.num_classes)
    method = build_method(settings.dapper_args, problem)
    aggregation = settings.dapper_args.defence.aggregation
    if aggregation != "mean" and not method.takes_robust_means:
        raise ConfigError(
            f"dapper_args.defence.aggregation: `{aggregation}` stands in for the mean of methods that recover and"
            f" average only, and `{method.name}` aggregates in its own way; set it to mean, or choose another method"
        )
    level_args = settings.dapper_args.levels
    if level_args.strict and not method.slims and any(level_args.ratios):
        raise ConfigError(
            f"dapper_args.levels.strict: method `{method.name}` trains the full model on every client, whatever its"
            " capability level; choose a method that slims, or leave `strict` out for a comparison that ignores limits"
        )
    method.check_clients(clients)
    if unseen is not None and not method.serves_newcomers:
        raise ConfigError(
            f"dapper_args.evaluation.unseen_domain: method `{method.name}` has no model for a client that never trained"
        )
    for ratio in level_args.ratios:
        method.footprint(ratio)  # an unreachable budget is an error now, not in the middle of a round
    levels = read_silo_levels(settings) or _stated_levels(settings) or assign_levels(level_args, len(clients), seed)
    profiles = tuple(
        ClientProfile(client.client_id, client.domain, level, level_args.ratios[level - 1], client.num_samples)
        for client, level in zip(clients, levels, strict=True)
    )
    return Experiment(
        settings=settings,
        method=method,
        clients=clients,
        profiles=profiles,
        tests=division.domain_tests,
        validations=division.domain_validations,
        client_tests=division.client_tests,
        unseen=unseen,
        suite_label=suite.label,
        num_classes=suite.num_classes,
        device=device,
        notes=division.notes,
    )


@torch.no_grad()
def _check_outputs(problem: Problem, num_classes: int) -> None:
    """Raises :class:`ConfigError` where the model's outputs are not what the task needs."""
    model, side = copy.deepcopy(problem.backbone).eval(), problem.input_size
    outputs = model(torch.zeros(1, 3, side, side, device=next(model.parameters()).device))
    misfit = problem.task.misfit(outputs, num_classes)
    if misfit:
        raise ConfigError(f"model_args.model: {type(model).__name__} does not fit task `{problem.task.name}`: {misfit}")


def _stated_levels(settings: Settings) -> list[int]:
    """The levels in ``data_args.clients``; empty where it has none."""
    return [client.level for client in settings.data_args.clients or () if client.level is not None]


def level_footprints(method: Method[Any], levels: LevelArgs) -> tuple[LevelFootprint, ...]:
    """Cost of each capability level's model, strongest first."""
    rows = []
    for level, ratio in enumerate(levels.ratios, start=1):
        cost = asdict(method.footprint(ratio))
        rows.append(LevelFootprint(level=level, ratio=ratio, params=cost.pop("parameters"), **cost))
    return tuple(rows)


def _device(settings: Settings) -> torch.device:
    if not settings.device_args.using_gpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("device_args.using_gpu: torch finds no GPU on this machine; set it to false")
    return torch.device("cuda", settings.device_args.gpu_id)
