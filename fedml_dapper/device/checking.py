"""Whether a device can take part: its data, level, certificate, and memory for a round, measured before it joins."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator

import torch

from fedml_dapper.config import MayCallArgs, Settings
from fedml_dapper.device.rank import check_rank, grpc_of
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import Experiment, build_experiment
from fedml_dapper.fleet.calibration import largest_step
from fedml_dapper.fleet.demand import Demand, DemandCounter
from fedml_dapper.models.on_disk import put_on_disk
from fedml_dapper.operations.credentials import read_credentials
from fedml_dapper.process.freed_memory import give_back_freed_memory, give_back_large_blocks
from fedml_dapper.process.memory_limit import memory_left
from fedml_dapper.process.rss import peak_bytes

MB = 1_000_000


def check_device(settings: Settings, rank: int) -> Iterator[str]:
    """Yield what the device holds and needs, a line each; nothing is sent.

    Raises:
        ConfigError: It cannot take part: settings, certificate, or too little memory.
        DataError: Its data are missing or damaged.
    """
    give_back_large_blocks()
    config = grpc_of(settings)
    check_rank(settings, rank)
    credentials = read_credentials(config, rank)
    check_command(settings.silo_args.may_call)
    yield f"certificate: {credentials.name}, for the server at {config.config_for_silo(rank).server_address}"
    if settings.device_args.threads is not None:
        torch.set_num_threads(settings.device_args.threads)
    experiment = build_experiment(settings, rank=rank)
    put_on_disk(experiment.method.problem.backbone)
    give_back_freed_memory()
    data = experiment.data_of(rank - 1)
    yield f"data: {data.num_samples} training samples of domain {data.domain}"
    demand = refuse_too_little_memory(experiment, rank)
    yield (
        f"level {demand.level}: {experiment.method.name}, {demand.bytes_down / MB:.2f} MB down and"
        f" {demand.bytes_up / MB:.2f} MB up a round"
    )
    before, extra = largest_step(experiment.method, demand.level)
    yield (
        f"memory: {before / MB:.0f} MB before training, {extra / MB:.0f} MB more in the largest step, peak"
        f" {peak_bytes() / MB:.0f} MB"
    )
    left = memory_left()
    if left is not None:
        yield f"memory left: {left.bytes / MB:.0f} MB ({left.bound})"


def check_command(may_call: MayCallArgs | None) -> None:
    """Raise :class:`ConfigError` where the command that says when the device may call is not there."""
    if may_call is None or may_call.command is None:
        return
    program = shlex.split(may_call.command)[0]
    if shutil.which(program) is None:
        raise ConfigError(f"silo_args.may_call.command: no program `{program}` that can be run")


def refuse_too_little_memory(experiment: Experiment, rank: int) -> Demand:
    """Return what a round of this silo needs, before anything is trained.

    Raises:
        ConfigError: More memory than there is, or its level is none of the experiment's.
    """
    profile = experiment.profiles[rank - 1]
    level = experiment.settings.silo_args.level or profile.level
    ratios = experiment.method.problem.ratios
    if level > len(ratios):
        raise ConfigError(f"silo_args.level is {level}, but dapper_args.levels.ratios has {len(ratios)} levels")
    demand = DemandCounter(experiment.method).demand(level, ratios[level - 1])
    left = memory_left()
    if left is not None and demand.memory_bytes > left.bytes:
        batch = experiment.method.problem.training.samples_at_a_time
        raise ConfigError(
            f"level {level} needs {demand.memory_bytes / MB:.0f} MB, and {left.bytes / MB:.0f} MB are left"
            f" ({left.bound}); take a weaker level (silo_args.level), or lower train_args.micro_batch_size (now"
            f" {batch} samples at a time)"
        )
    return demand
