"""A run that is over, or as far as it has come: its method, models and memories, and its data where they are here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedml_dapper.config import DeviceArgs, Settings, check, sources
from fedml_dapper.errors import DataError
from fedml_dapper.federation.checkpoint_folder import checkpoint_of_round
from fedml_dapper.federation.experiment import Experiment, build_experiment
from fedml_dapper.federation.file_names import CHECKPOINTS_NAME, LEDGER_NAME, MODEL_NAME
from fedml_dapper.federation.ledger import read_ledger
from fedml_dapper.federation.model_file import ModelOrigin, check_code, origin_of, read_model, rebuild_method
from fedml_dapper.federation.records import RunRecord
from fedml_dapper.federation.settings_shared import SharedSettings
from fedml_dapper.methods import ClientProfile, Memory, Method, ServerState


@dataclass(frozen=True)
class FinishedRun:
    """What a run's folder holds, ready to make models of, on the CPU."""

    folder: Path
    record: RunRecord
    settings: Settings
    origin: ModelOrigin
    method: Method[Any]
    state: ServerState
    """After the last round whose model was written."""
    memories: Mapping[int, Memory]
    """The clients', by client id; empty where no checkpoint of that round was kept, or clients keep them."""
    experiment: Experiment | None
    """With the data; None where they are not here."""
    without_data: str
    """Why they are not."""


def open_finished(folder: Path) -> FinishedRun:
    """The run in ``folder``. Where its data are elsewhere, the network is built from what its model's file says.

    Raises :class:`DataError` where there is no run or no model, :class:`ConfigError` where the code that the run names
    is not what it was, or where a program passed the network.
    """
    record, _ = read_ledger(folder / LEDGER_NAME)
    settings = _as_it_was(check(Settings, record.settings, where=str(folder / LEDGER_NAME)), record)
    file = read_model(folder / MODEL_NAME)
    check_code(record.sources, settings, file.path)
    experiment, without = _with_data(record, settings)
    if experiment is not None:
        method = experiment.method
        profiles = experiment.roster.profiles(file.round + 1)
        origin = file.origin or origin_of(experiment)
    elif file.origin is not None:
        origin = file.origin
        method = rebuild_method(file.origin, file.path)
        profiles = _profiles(record)
    else:
        raise DataError(f"{file.path} is of an earlier version, which has to have the run's data beside it: {without}")
    shared = SharedSettings.of(settings, method)
    checkpoint = checkpoint_of_round(folder / CHECKPOINTS_NAME, file.round, shared)
    memory, memories = (Memory(), {}) if checkpoint is None else (checkpoint.memory, checkpoint.memories)
    state = ServerState(file.round, file.weights, profiles, memory)
    return FinishedRun(folder, record, settings, origin, method, state, memories, experiment, without)


def _as_it_was(settings: Settings, record: RunRecord) -> Settings:
    """``settings`` on the CPU, with the method's own as they were in the run, whatever its defaults are today."""
    args = settings.dapper_args
    params = args.params | ({record.method: record.params} if record.params else {})
    update = {"device_args": DeviceArgs(), "dapper_args": args.model_copy(update={"params": params})}
    return settings.model_copy(update=update)


def _with_data(record: RunRecord, settings: Settings) -> tuple[Experiment | None, str]:
    """The experiment of a run, or why its data cannot be had."""
    if settings.data_args.dataset is None:
        return None, "a program passed them"
    here = sources(settings)
    changed = [key for key, source in record.sources.items() if here.get(key) != source]
    if changed:
        return None, f"{changed[0]} is not what it was in the run"
    try:
        return build_experiment(settings), ""
    except DataError as error:
        return None, str(error)


def _profiles(record: RunRecord) -> tuple[ClientProfile, ...]:
    """The clients as the ledger has them."""
    return tuple(
        ClientProfile(client.client, client.domain, client.level, client.ratio, client.num_samples)
        for client in record.clients
    )
