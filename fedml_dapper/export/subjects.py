"""Choice of a run's model to export: the global one, a level's or a client's, with statistics of chosen pictures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedml_dapper.datasets import ClientData, ClientSamples, unlabelled_pictures
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.federation.run_folder.finished import FinishedRun
from fedml_dapper.methods import ClientContext, as_sent, renew_statistics
from fedml_dapper.methods.contract.batchnorm import running_statistics
from fedml_dapper.models import Backbone

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Subject:
    """A model of a finished run, on the CPU, in evaluation mode."""

    model: Backbone
    whose: str
    """Description of the model, in words."""
    level: int | None
    """Capability level that it fits; None for the whole model."""
    ratio: float
    client: int | None = None
    """Client whose own model it is, if it is one."""
    changes: tuple[str, ...] = ()
    """What was done to the model after the run."""


def choose(run: FinishedRun, level: int | None = None, client: int | None = None) -> Subject:
    """Return the model for a ``level``, for a ``client``, for a client as if it were of a level, or the whole one.

    A client of a method that personalises has its own model. Any other client has its level's, with BatchNorm's
    statistics of its own training images.

    Raises:
        ConfigError: There is no such model.
        DataError: It needs data or a checkpoint that are not available.
    """
    check_known(run, level, client)
    if client is not None and run.method.personalises:
        return _own(run, client, level)
    if not run.method.has_global_model:
        raise ConfigError(
            f"method `{run.method.name}` has no global model: every client uses one of its own; name one by --client"
        )
    if client is None:
        return of_level(run, level)
    own_level = run.state.profiles[client].level if level is None else level
    subject = replace(of_level(run, own_level), client=client)
    if not running_statistics(subject.model):
        return subject
    if run.experiment is None:
        raise DataError(
            f"client {client}'s statistics take its training images, which are not here: {run.without_data}"
        )
    return with_statistics(subject, run.experiment.data_of(client), f"client {client}'s training images")


def of_level(run: FinishedRun, level: int | None) -> Subject:
    """Return the global model, or what a device of ``level`` carries of it.

    Raises:
        ConfigError: The method has no model for the level.
    """
    if level is None:
        return Subject(run.method.global_model(run.state).eval(), "the global model", None, 0.0)
    ratio = run.method.problem.ratios[level - 1]
    whose = f"the global model as devices of capability level {level} carry it (pruning ratio {ratio:g})"
    return Subject(run.level_model(level).eval(), whose, level, ratio)


def has_statistics(subject: Subject) -> bool:
    """Return whether the model has a BatchNorm with running statistics."""
    return bool(running_statistics(subject.model, copy=False))


def calibrated(subject: Subject, run: FinishedRun, folder: Path) -> Subject:
    """Return ``subject`` with BatchNorm's statistics of the pictures in ``folder``.

    Raises:
        ConfigError: The model has no BatchNorm.
        DataError: There are no pictures.
    """
    if not has_statistics(subject):
        raise ConfigError(
            f"--calibrate: {run.method.problem.backbone.label} has no BatchNorm, so that there are no statistics to"
            " measure; leave it out"
        )
    pictures = pictures_for(run, folder)
    return with_statistics(subject, pictures, f"{pictures.num_samples} pictures ({pictures.domain})")


def pictures_for(run: FinishedRun, folder: Path) -> ClientSamples:
    """Read the pictures in ``folder``, prepared as those of the run were.

    Raises:
        ConfigError: The run's data are no pictures.
    """
    if run.origin.preprocessing is None:
        raise ConfigError(
            f"{folder}: the run's data are no pictures that this package prepares, so that it does not know how to"
            " prepare others"
        )
    batch_size = run.settings.train_args.batch_size
    return unlabelled_pictures(folder, run.origin.preprocessing, batch_size, run.origin.seed)


def with_statistics(subject: Subject, data: ClientData, of: str) -> Subject:
    """Return ``subject`` with BatchNorm's statistics of ``data``, described as ``of``."""
    model = subject.model
    renew_statistics(model, data, CPU)
    return replace(
        subject,
        model=model.eval(),
        changes=(*subject.changes, f"BatchNorm statistics measured on {of}, without labels"),
    )


def check_known(run: FinishedRun, level: int | None, client: int | None = None) -> None:
    """Check that the run has such a level and such a client.

    Raises:
        ConfigError: It has not.
    """
    levels = len(run.method.problem.ratios)
    clients = len(run.state.profiles)
    if level is not None and not 1 <= level <= levels:
        raise ConfigError(f"--level {level}: the run in {run.folder} has levels 1 to {levels}")
    if client is not None and not 0 <= client < clients:
        known = f"clients 0 to {clients - 1}" if clients else "no clients that it knows"
        raise ConfigError(f"--client {client}: the run in {run.folder} has {known}")


def _own(run: FinishedRun, client: int, level: int | None) -> Subject:
    profile = run.state.profiles[client]
    if level not in (None, profile.level):
        raise ConfigError(
            f"--level {level}: client {client}'s own model is of level {profile.level}; leave --level out"
        )
    if not run.settings.common_args.is_simulation:
        raise ConfigError(
            f"--client {client}: a silo keeps its own model to itself, and the run's folder does not have it"
        )
    if run.experiment is None:
        raise DataError(f"client {client}'s own model takes its data, which are not here: {run.without_data}")
    if client not in run.memories:
        raise DataError(
            f"client {client}'s own model is in no checkpoint of round {run.state.round} in {run.folder}; it never"
            " trained, or the checkpoint was removed"
        )
    context = ClientContext(profile, run.experiment.data_of(client), run.memories[client].snapshot())
    downlink = as_sent(run.method.downlink(run.state, client), run.method.problem.layout)
    model = run.method.seeded_personal_model(context, downlink).to(CPU).eval()
    slim = run.method.slims and profile.ratio > 0
    return Subject(
        model, f"client {client}'s own model", profile.level if slim else None, profile.ratio if slim else 0.0, client
    )
