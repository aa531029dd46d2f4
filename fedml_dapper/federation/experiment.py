"""The experiment that settings describe, built and checked before anything is written or trained.

:func:`build_experiment` makes an :class:`Experiment`, which server, clients and edges share.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from fedml_dapper import __version__
from fedml_dapper.config import ModelArgs, Precision, Settings, sources
from fedml_dapper.datasets import ClientData, ClientTests, Division, Preprocessing, TestData
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.federation.experiment_data import ExperimentData, load_data, with_passed_data
from fedml_dapper.federation.method_fits import check_method
from fedml_dapper.federation.names import check_names
from fedml_dapper.federation.privacy.account_of_run import (
    check_accountant,
    privacy_note,
    secure_sums_note,
    settled_privacy,
    settled_secure_sums,
)
from fedml_dapper.federation.round.roster import Roster
from fedml_dapper.federation.run_folder.records import ClientSummary, LevelFootprint, RunRecord
from fedml_dapper.federation.scoring.unseen import UnseenDomain
from fedml_dapper.federation.workers.parallelism import WorkerPlan, plan_workers
from fedml_dapper.fleet import FleetPlan, VirtualClock, find_device, plan_fleet, with_fitted_levels, with_solved_levels
from fedml_dapper.inputs import Inputs, moved
from fedml_dapper.methods import ClientProfile, Method, Problem, build_method
from fedml_dapper.models import (
    Backbone,
    bare,
    build_backbone,
    check_starting_weights,
    describe,
    is_named,
    layers_out_of_sight,
    take_over,
)
from fedml_dapper.models.frozen import FROZEN_SOURCE, frozen_digest
from fedml_dapper.pruning import Device
from fedml_dapper.tasks import Task, build_task
from fedml_dapper.tasks.contract import described

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Experiment:
    """A method, its clients with their data and levels, and the test sets."""

    settings: Settings
    method: Method[Any]
    clients: tuple[ClientData, ...]
    """Clients whose data this process has: all, or at most one where silos have data of their own."""
    roster: Roster
    tests: tuple[TestData, ...]
    """Test set of each domain, for the global model."""
    validations: tuple[TestData, ...]
    """Validation set of each domain, by which the global model's round is chosen; empty where the partition keeps
    none."""
    client_tests: tuple[ClientTests, ...]
    """Samples on which each of ``clients`` tests its own model, in the same order."""
    unseen: UnseenDomain | None
    suite_label: str
    classes: tuple[str, ...]
    """Names of the classes, by label; empty where targets are no classes."""
    preprocessing: Preprocessing | None
    """How pictures become inputs, where the data are pictures."""
    device: torch.device
    notes: tuple[str, ...]
    """What is worth knowing of data, network and plans, one line each, for the ledger."""
    sources: Mapping[str, str]
    """Code and data from outside of this package, by setting: what the setting names, or what a program passes in its
    place."""
    workers: WorkerPlan
    """How many processes train the clients of a round, in a simulation of one command."""
    clock: VirtualClock | None = None
    """Virtual clock of a simulation's rounds; None without a fleet that has one."""

    @property
    def division(self) -> Division:
        """The data of all clients whose data this process has, and the test sets."""
        return Division(self.clients, self.client_tests, self.tests, self.validations, self.notes)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @cached_property
    def profiles(self) -> tuple[ClientProfile, ...]:
        """Profiles of all clients in the first round, in client order."""
        return self.roster.profiles(1)

    @property
    def silos_have_own_data(self) -> bool:
        """Whether each silo has data that nobody else knows, so that it announces them when it joins."""
        return self.settings.data_args.partition == "own"

    @property
    def sums_in_secret(self) -> bool:
        """Whether clients are processes of their own that sum uploads securely, so that the server sees sums alone."""
        return self.method.problem.secure_sums is not None and not self.settings.common_args.is_simulation

    def data_of(self, client_id: int) -> ClientData:
        """Return the training data of ``client_id``, which this process has."""
        return next(client for client in self.clients if client.client_id == client_id)

    def own_tests(self, client_id: int) -> ClientTests:
        """Return the samples on which ``client_id``, whose data this process has, tests its own model."""
        return next(
            tests
            for client, tests in zip(self.clients, self.client_tests, strict=True)
            if client.client_id == client_id
        )

    def one_by_one(self, reason: str) -> Experiment:
        """Return the experiment without worker processes, with a note that gives the ``reason`` if it had any."""
        if self.workers.count == 1:
            return self
        alone = WorkerPlan.of_one(self.settings.device_args.threads, reason)
        return replace(self, workers=alone, notes=(*self.notes, str(alone.note)))

    def record(self) -> RunRecord:
        """Return the run's record, which is the ledger's first line."""
        return RunRecord(
            version=__version__,
            suite=self.suite_label,
            domains=tuple(test.domain for test in self.tests),
            classes=self.classes,
            unseen_domain=self.settings.dapper_args.evaluation.unseen_domain,
            method=self.method.name,
            metric=self.method.problem.task.headline,
            settings=self.settings.model_dump(mode="json"),
            params=self.method.params.model_dump(mode="json"),
            workers=self.workers.count,
            threads=self.workers.threads,
            sources=dict(self.sources),
            footprints=level_footprints(self.method),
            cost_note=self.method.cost_note,
            clients=tuple(
                ClientSummary(
                    client=p.client_id, domain=p.domain, level=p.level, ratio=p.ratio, num_samples=p.num_samples
                )
                for p in self.profiles
                if not self.silos_have_own_data
            ),
            notes=self.notes,
        )


def build_experiment(
    settings: Settings, model: nn.Module | None = None, data: ExperimentData | None = None, rank: int = 0
) -> Experiment:
    """Load the data, divide it among clients, trace the model and check every level's budget; writes nothing.

    Args:
        settings: The experiment's settings.
        model: Network that a program passes in place of the one that ``settings`` name.
        data: Data that a program passes in place of those that ``settings`` name.
        rank: This process, where silos have data of their own: rank 0 is the server, rank N the silo of client N - 1;
            then come edges.

    Raises:
        ConfigError: Settings do not fit each other, the network or the method; the error says what to do.
        DataError: Data are missing, damaged or not what the task needs.
    """
    check_names(settings, model is not None, data is not None)  # these two first, as loading data may take long
    check_accountant(settings)
    seed = settings.common_args.random_seed
    device = device_of(settings)
    if slow := slow_precision(settings.device_args.using_gpu, settings.device_args.precision):
        LOGGER.warning(slow)
    if data is None:
        data = load_data(settings, device, rank)
    _check_targets(build_task(settings.train_args), data)
    division = data.division
    unseen = data.unseen
    clients = division.clients
    settings, passed_notes = _as_passed(settings, model, data)
    args = settings.model_args
    asked = (data.num_classes, seed, data.example)
    backbone = build_backbone(args, *asked) if model is None else take_over(model, args, *asked)
    _check_start(backbone, args, is_passed=model is not None)
    problem = build_problem(settings, backbone.to(device), data.example)
    settings = settings.with_ratios(problem.ratios)
    _check_outputs(problem, data.num_classes)
    devices = tuple(Device(client.client_id, client.domain, client.num_samples) for client in clients)

    def method_of(chosen: Settings) -> Method[Any]:
        args = chosen.dapper_args
        is_same = (args.levels.ratios, args.pruning) == (problem.ratios, problem.pruning)
        other = replace(problem, ratios=args.levels.ratios, pruning=args.pruning)
        return build_method(args, problem if is_same else other)

    as_asked = settings
    settings = with_solved_levels(settings, problem, method_of)
    solved_notes = _solved_notes(as_asked, settings)
    settings = with_fitted_levels(settings, devices, method_of)
    method = method_of(settings)
    check_method(settings, method)
    if settings.data_args.partition != "own":
        method.check_clients(clients)
    for ratio in settings.dapper_args.levels.ratios:
        method.footprint(ratio)  # an unreachable budget is an error now, not in the middle of a round
    if method.slims:
        method.problem.verify()
    if settings.silo_args.device is not None:
        find_device(settings.silo_args.device, "silo_args.device")
    fleet = _fleet_plan(settings, method, devices)
    roster = Roster(settings, method, devices, fleet)
    if settings.data_args.partition != "own" and not any(method.takes_part(each.level) for each in roster.profiles(1)):
        raise ConfigError(
            f"dapper_args.method: no client of a level that `{method.name}` trains; change dapper_args.levels"
        )
    workers = plan_workers(settings, division, bare(backbone))
    privacy = problem.privacy
    secure = problem.secure_sums
    return Experiment(
        settings=settings,
        method=method,
        clients=clients,
        roster=roster,
        tests=division.domain_tests,
        validations=division.domain_validations,
        client_tests=division.client_tests,
        unseen=unseen,
        suite_label=data.label,
        classes=data.classes,
        preprocessing=data.preprocessing,
        device=device,
        notes=(
            *data.notes,
            *passed_notes,
            *solved_notes,
            *division.notes,
            *layers_out_of_sight(bare(problem.backbone)),
            *method.notes,
            *(() if fleet is None else fleet.notes),
            *(() if workers.note is None else (workers.note,)),
            *(() if privacy is None else (privacy_note(privacy, settings.train_args.comm_round),)),
            *(() if secure is None else (secure_sums_note(secure, settings.common_args.is_simulation),)),
        ),
        sources=_sources(settings, model, data, method.problem.backbone),
        clock=_clock(settings, method, fleet),
        workers=workers,
    )


def _as_passed(settings: Settings, model: nn.Module | None, data: ExperimentData) -> tuple[Settings, tuple[str, ...]]:
    """Return ``settings`` without the names of data and network that a program passes, and notes that say so.

    The program may have used these names itself, for FedML's loaders and its model hub.
    """
    if data.source is not None:
        settings = with_passed_data(settings)
    args = settings.model_args
    seed = settings.common_args.random_seed
    if model is None or args.model is None or ":" in args.model:  # `file:name` is code, and has to be what is passed
        return settings, ()
    if is_named(model, args, data.num_classes, seed, data.example):
        return settings, ()
    note = f"the network is the program's; model_args.model {args.model} is for what made it"
    return settings.model_copy(update={"model_args": args.model_copy(update={"model": None})}), (note,)


def _fleet_plan(settings: Settings, method: Method[Any], devices: Sequence[Device]) -> FleetPlan | None:
    """Plan which level each client's device can run; None without a fleet, or where silos name their devices later.

    Raises :class:`ConfigError` where too few clients can run any level.
    """
    args = settings.dapper_args
    fewest = settings.dapper_args.min_clients_per_round
    if args.fleet is None or args.fleet.devices is None:
        return None
    fleet = plan_fleet(args.fleet, method, settings.model_args, devices)
    fleet.check()
    able = len(fleet.clients) - len(fleet.left_out)
    if able < fewest:
        raise ConfigError(
            f"dapper_args.fleet: {able} of {len(fleet.clients)} clients can run a level of `{method.name}`, and"
            f" dapper_args.min_clients_per_round is {fewest}; `fedml-dapper plan` says what limits the others"
        )
    return fleet


def _clock(settings: Settings, method: Method[Any], fleet: FleetPlan | None) -> VirtualClock | None:
    """Return the virtual clock of a fleet that has one.

    Raises :class:`ConfigError` where the experiment is no simulation or the clock's settings do not fit the method.
    """
    args = settings.dapper_args.fleet
    training = settings.train_args
    if fleet is None or args is None or args.clock is None:
        return None
    able = [one for one in fleet.clients if one.fit.level is not None and method.takes_part(one.fit.level)]
    if args.clock.over_selection > 1 and len(able) <= training.client_num_per_round:
        raise ConfigError(
            f"dapper_args.fleet.clock.over_selection: all {len(able)} clients that can take part are wanted already;"
            f" lower train_args.client_num_per_round ({training.client_num_per_round}), or leave it out"
        )
    return VirtualClock(args.clock, able, settings.common_args.random_seed) if able else None


def build_untrained(settings: Settings, num_classes: int, example: Inputs) -> Method[Any]:
    """Build the method of ``settings`` without its data, for ``num_classes`` classes and inputs like ``example``.

    Raises:
        ConfigError: Levels' ratios are out of reach, or the method does not fit the network.
    """

    return _build_method(solved_settings(settings, num_classes, example), num_classes, example)


def solved_settings(settings: Settings, num_classes: int, example: Inputs) -> Settings:
    """Return ``settings`` with levels' ratios of parameters, where theirs are of what training costs.

    Raises:
        ConfigError: A ratio is out of the method's reach.
    """
    problem = _problem_of(settings, num_classes, example)
    return with_solved_levels(settings, problem, lambda chosen: _build_method(chosen, num_classes, example))


def _build_method(settings: Settings, num_classes: int, example: Inputs) -> Method[Any]:
    return build_method(settings.dapper_args, _problem_of(settings, num_classes, example))


def _problem_of(settings: Settings, num_classes: int, example: Inputs) -> Problem:
    backbone = build_backbone(settings.model_args, num_classes, settings.common_args.random_seed, example)
    return build_problem(settings, backbone, example)


def _solved_notes(asked: Settings, solved: Settings) -> list[str]:
    """Say which ratios of parameters levels of a cost have come to."""
    ratio_of = asked.dapper_args.pruning.ratio_of
    if solved is asked:
        return []
    ratios, sizes = (", ".join(f"{one:g}" for one in each.dapper_args.levels.ratios) for each in (asked, solved))
    return [f"levels: ratios {ratios} of {ratio_of} are ratios {sizes} of parameters"]


def build_problem(settings: Settings, backbone: Backbone, example: Inputs) -> Problem:
    """Build the learning problem of ``settings`` for ``backbone`` and inputs like ``example``, a batch of one."""
    privacy = settled_privacy(settings)
    problem = Problem(
        backbone=backbone,
        example=example,
        training=settings.train_args,
        pruning=settings.dapper_args.pruning,
        uniform_weights=settings.dapper_args.aggregation_weights == "uniform",
        seed=settings.common_args.random_seed,
        ratios=settings.dapper_args.levels.ratios,
        budgets=settings.dapper_args.levels.budgets,
        uplink=settings.dapper_args.uplink,
        downlink=settings.dapper_args.downlink,
        defence=settings.dapper_args.defence,
        task=build_task(settings.train_args),
        personal_layers=settings.dapper_args.personal_layers,
        privacy=privacy,
        secure_sums=settled_secure_sums(settings, privacy),
    )
    return problem.with_ratios_of_budgets()


def _sources(settings: Settings, model: nn.Module | None, data: ExperimentData, backbone: Backbone) -> dict[str, str]:
    named = sources(settings)
    if model is not None and settings.model_args.model is None:
        named["model_args.model"] = describe(model)
    if data.source is not None:
        named["data_args.dataset"] = data.source
    frozen = frozen_digest(backbone)
    if frozen is not None:
        named[FROZEN_SOURCE] = frozen
    return named


def _check_targets(task: Task, data: ExperimentData) -> None:
    """Raise :class:`DataError` where the data's targets are not what the task needs."""
    for place, sample in data.firsts:
        misfit = task.misfit_of_targets(sample.targets, data.num_classes)
        if misfit:
            raise DataError(f"{place}: targets do not fit task `{task.name}`: they are {misfit}")
    if data.source is None or not task.has_labels:  # classes of data that settings name were counted
        return
    for client in data.division.clients:
        labels = client.labels
        if labels is not None and not 0 <= int(labels.min()) <= int(labels.max()) < data.num_classes:
            raise DataError(
                f"client {client.client_id} has the classes {int(labels.min())} to {int(labels.max())}, and the"
                f" program's dataset says that there are {data.num_classes} (its eighth part), which count from 0"
            )


def _check_start(backbone: Backbone, args: ModelArgs, is_passed: bool) -> None:
    """Raise :class:`ConfigError` where the initial global model, passed by a program or named, is not finite."""
    if is_passed:
        check_starting_weights(backbone, f"the network that the program passes ({backbone.label})")
    elif args.weights is not None:
        check_starting_weights(backbone, f"model_args.weights: {args.weights}", from_file=True)
    else:
        check_starting_weights(backbone, f"model_args.model: `{args.model}`")


@torch.no_grad()
def _check_outputs(problem: Problem, num_classes: int) -> None:
    """Raise :class:`ConfigError` where the model's outputs are not what the task needs."""
    model = copy.deepcopy(problem.backbone).eval()
    try:
        outputs = model(moved(problem.example, next(model.parameters()).device))
    except Exception as error:  # whatever the user's network raises
        raise ConfigError(
            f"{problem.backbone.label} cannot run on inputs that are {described(problem.example)}:"
            f" {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    misfit = problem.task.misfit(outputs, num_classes)
    if misfit:
        raise ConfigError(f"{problem.backbone.label} does not fit task `{problem.task.name}`: {misfit}")


def level_footprints(method: Method[Any]) -> tuple[LevelFootprint, ...]:
    """Return the cost of each capability level's model, strongest first."""
    rows = []
    for level, ratio in enumerate(method.problem.ratios, start=1):
        cost = asdict(method.footprint(ratio))
        rows.append(LevelFootprint(level=level, ratio=ratio, params=cost.pop("parameters"), **cost))
    return tuple(rows)


def device_of(settings: Settings) -> torch.device:
    """Return the device of models and data; raise :class:`ConfigError` where settings want a GPU and none is there."""
    if not settings.device_args.using_gpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("device_args.using_gpu: torch finds no GPU on this machine; set it to false")
    return torch.device("cuda", settings.device_args.gpu_id)


def slow_precision(using_gpu: bool, precision: Precision) -> str | None:
    """Return a warning where this machine has no instructions for ``precision``; None where it has."""
    if using_gpu or precision != "bf16" or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    return (
        "precision bf16: this CPU has no instructions for it (avx512_bf16, AMX) and imitates them,"
        " twenty times slower than fp32; choose fp32"
    )
