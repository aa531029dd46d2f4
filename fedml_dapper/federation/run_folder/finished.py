"""A run read back from its folder: method, model and memories, and the data where they can be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedml_dapper.config import ENTRY_POINTS, DeviceArgs, Settings, check, sources
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.federation.experiment import Experiment, build_experiment
from fedml_dapper.federation.run_folder.checkpoint_folder import checkpoint_of_round
from fedml_dapper.federation.run_folder.file_names import CHECKPOINTS_NAME, LEDGER_NAME, MODEL_NAME
from fedml_dapper.federation.run_folder.ledger import read_ledger
from fedml_dapper.federation.run_folder.model_file import (
    CODE,
    ModelOrigin,
    check_code,
    origin_of,
    read_model,
    rebuild_method,
)
from fedml_dapper.federation.run_folder.own_code import check_consent
from fedml_dapper.federation.run_folder.records import RunRecord
from fedml_dapper.federation.wire.settings_shared import SharedSettings
from fedml_dapper.methods import ClientProfile, Memory, Method, ServerState
from fedml_dapper.models import Backbone
from fedml_dapper.models.frozen import FROZEN_SOURCE


@dataclass(frozen=True)
class FinishedRun:
    """Content of a run's folder, on the CPU, from which models can be made. The run may be finished or cut short."""

    folder: Path
    record: RunRecord
    settings: Settings
    origin: ModelOrigin
    method: Method[Any]
    state: ServerState
    """Server state after the last round whose model was written."""
    memories: Mapping[int, Memory]
    """Clients' memories by client id; empty where no checkpoint of that round was kept, or silos keep them."""
    experiment: Experiment | None
    """The experiment with its data; None where the data are not here."""
    without_data: str
    """Why the data are not here; empty where they are."""

    def level_model(self, level: int) -> Backbone:
        """Return the global model as a device of capability ``level`` carries it.

        Raises:
            ConfigError: The method cuts no model, and that of the level would have to be cut.
        """
        if not self.method.has_level_model(level):
            ratio = self.method.problem.ratios[level - 1]
            raise ConfigError(
                f"method `{self.method.name}` trains the full model on everyone and has none for devices of level"
                f" {level}, whose pruning ratio is {ratio:g}; leave the level out, or take a run of a method that slims"
            )
        return self.method.level_model(self.state, level)


def open_finished(folder: Path, *, trust_code: bool = False) -> FinishedRun:
    """Read the run in ``folder``; where its data are elsewhere, the network is built from its model's file.

    Args:
        folder: The run's.
        trust_code: Whether to run whatever code the folder's files name. Without it, only code runs that a run of this
            user's ran on this machine.

    Raises:
        DataError: There is no run, or no model.
        ConfigError: The code that the run names has changed or is neither this user's nor trusted, or a program passed
            the network.
    """
    record, _ = read_ledger(folder / LEDGER_NAME)
    settings = _as_in_run(check(Settings, record.settings, where=str(folder / LEDGER_NAME)), record)
    file = read_model(folder / MODEL_NAME)
    check_code(record.sources, settings, file.path)
    check_consent(settings, CODE, folder / LEDGER_NAME, trust_code)
    experiment, without = _with_data(record, settings, folder / LEDGER_NAME, trust_code)
    if experiment is not None:
        method = experiment.method
        profiles = experiment.roster.profiles(file.round + 1)
        origin = file.origin or origin_of(experiment)
    elif file.origin is not None:
        origin = file.origin
        method = rebuild_method(file.origin, file.path, trust_code)
        profiles = _profiles(record)
    else:
        raise DataError(f"{file.path} is of an earlier version, which has to have the run's data beside it: {without}")
    method.problem.take_frozen(file.weights)
    # Named files may have moved since, or a program may have passed the data: the checkpoint has what the run had.
    shared = SharedSettings.of(settings, method, sources(settings) | record.sources)
    checkpoint = checkpoint_of_round(folder / CHECKPOINTS_NAME, file.round, shared)
    memory, memories = (Memory(), {}) if checkpoint is None else (checkpoint.memory, checkpoint.memories)
    weights = {name: file.weights[name] for name in method.problem.layout.travelling}
    state = ServerState(file.round, weights, profiles, memory)
    return FinishedRun(folder, record, settings, origin, method, state, memories, experiment, without)


def _as_in_run(settings: Settings, record: RunRecord) -> Settings:
    """Return ``settings`` with the method's settings of the run in place of today's defaults."""
    args = settings.dapper_args
    params = args.params | ({record.method: record.params} if record.params else {})
    return settings.model_copy(update={"dapper_args": args.model_copy(update={"params": params})})


def _on_cpu(settings: Settings) -> Settings:
    """Return ``settings`` with a CPU in place of the device on which the run trained, and of its precision."""
    return settings.model_copy(update={"device_args": DeviceArgs()})


def _with_data(record: RunRecord, settings: Settings, ledger: Path, trust_code: bool) -> tuple[Experiment | None, str]:
    """Return the experiment of a run, or None and the reason why its data cannot be loaded."""
    if settings.data_args.dataset is None:
        return None, "a program passed them"
    here = sources(settings)
    changed = [key for key, source in record.sources.items() if key != FROZEN_SOURCE and here.get(key) != source]
    if changed:
        return None, f"{changed[0]} is not what it was in the run"
    try:
        check_consent(settings, ENTRY_POINTS, ledger, trust_code)
    except ConfigError as error:
        return None, str(error)
    try:
        return build_experiment(_on_cpu(settings)), ""
    except DataError as error:
        return None, str(error)


def _profiles(record: RunRecord) -> tuple[ClientProfile, ...]:
    """Return the clients' profiles as the ledger records them."""
    return tuple(
        ClientProfile(client.client, client.domain, client.level, client.ratio, client.num_samples)
        for client in record.clients
    )
