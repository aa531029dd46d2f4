"""Between FedML's flat ``args`` and our typed settings.

FedML copies every key of every YAML section onto one ``args`` object, where programs may change them; so ``args`` is
the truth about values, and the file is the truth about which keys were meant. Network and data a program may pass as
objects, to trainer, aggregator and runner: they are noted here, and the experiment is built of them when it is needed.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedml
from fedml.arguments import Arguments, add_args
from torch import nn

from fedml_dapper.config import FEDML_PROTECTIONS, Settings, check, load_settings, why_refused
from fedml_dapper.config.keys import is_section
from fedml_dapper.datasets import ClientData
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import Experiment, ExperimentData, build_experiment, passed_data
from fedml_dapper.models import check_same_network
from fedml_dapper.platform.offline import without_platform
from fedml_dapper.platform.tracking.wandb import without_fedmls_wandb
from fedml_dapper.pruning import Tensors

_EXPERIMENT, _PASSED = "dapper_experiment", "dapper_passed"
_NOT_FLAT = {"silo_args"}
"""Sections that share keys with others, so that FedML's flat copy has no room for them."""


@dataclass
class _Passed:
    """What the program brings in place of what settings name."""

    model: nn.Module | None = None
    dataset: object = None
    """FedML's eight-part tuple, of which ``data`` were made, if there was one."""
    data: ExperimentData | None = None


def init(config_file: Path | str | None = None) -> Arguments:
    """``fedml.init`` with the experiment file checked first and without FedML's platform look-ups.

    The file is ``config_file`` or, as in any FedML program, ``--cf FILE`` of the command line. Raises
    :class:`ConfigError` before FedML starts when something in it is wrong.
    """
    command_line: Namespace = add_args()
    if config_file is not None:
        command_line.yaml_config_file = str(config_file)
    if not command_line.yaml_config_file:
        raise ConfigError("no experiment file: pass --cf FILE, e.g. --cf config/quickstart.yaml")
    return start(load_settings(command_line.yaml_config_file), command_line)


def start(settings: Settings, command_line: Namespace) -> Arguments:
    """``fedml.init`` with ``settings`` in place of what the file of ``command_line`` says."""
    args = Arguments(command_line, settings.common_args.training_type, settings.comm_args.backend)
    _write_settings(args, settings)
    args.worker_num = settings.train_args.client_num_per_round  # as fedml.load_arguments sets it
    for key in ("gpu_mapping_file", "gpu_mapping_key"):  # fedml.device.get_device asks for them under MPI
        vars(args).setdefault(key, None)
    platform_wanted = settings.tracking_args.using_mlops
    with nullcontext() if platform_wanted else without_platform(), without_fedmls_wandb(args):
        return fedml.init(args, check_env=False, should_init_logs=False)


def experiment_of(args: Arguments) -> Experiment:
    """The experiment that ``args`` and what the program passed describe, built once and kept with them.

    Raises :class:`ConfigError` or :class:`~fedml_dapper.errors.DataError`.
    """
    refuse_protections(args)
    experiment = _built(args)
    if experiment is None:
        passed = _passed(args)
        experiment = build_experiment(settings_of(args), passed.model, passed.data, rank=int(args.rank))
        attach(args, experiment)
    return experiment


def attach(args: Arguments, experiment: Experiment) -> None:
    """Give ``args`` an experiment that was built already."""
    setattr(args, _EXPERIMENT, experiment)


def refuse_protections(args: Arguments) -> None:
    """Raises :class:`ConfigError` where the program switched on what FedML's base classes would do to slim models."""
    for key in FEDML_PROTECTIONS:
        if vars(args).get(key):  # set by the program; a file with it was refused before
            raise ConfigError(why_refused(key))


def note_model(args: Arguments, model: nn.Module) -> None:
    """Make ``model``, which the program passes, the one that is trained, with its present weights.

    Raises :class:`ConfigError` where it is another network than one passed before, or than the experiment's.
    """
    passed, experiment = _passed(args), _built(args)
    own = None if experiment is None else experiment.method.problem.backbone
    if model is own or model is passed.model:
        return
    if own is not None:
        check_same_network(model, own, settings_of(args).model_args.model or "what was passed before")
        own.load_state_dict(model.state_dict())
    elif passed.model is not None:
        check_same_network(model, passed.model, "what was passed before")
    passed.model = model if passed.model is None else passed.model


def note_data(args: Arguments, dataset: object) -> None:
    """Make FedML's eight-part ``dataset``, which the program passes, the one that is trained and tested on.

    Raises :class:`ConfigError` where settings name other data, or an experiment was built on others,
    :class:`~fedml_dapper.errors.DataError` where it cannot be used.
    """
    passed = _passed(args)
    if _is_ours(dataset) or dataset is passed.dataset:
        return
    data = passed_data(settings_of(args), dataset)
    if _built(args) is not None:
        raise ConfigError("the program passes its data after the experiment was built without them; pass them first")
    passed.data, passed.dataset = data, dataset


def keep_data(args: Arguments, data: ExperimentData) -> None:
    """Keep data that settings name and that are loaded already, for the experiment."""
    _passed(args).data = data


def hand_back(args: Arguments, weights: Tensors) -> None:
    """Put the trained global model into the network that the program passed, as FedML's own runners do.

    A method's own layers have no place in it, so of a model with such it stays as it was.
    """
    model = _passed(args).model
    if model is not None and model.state_dict().keys() == weights.keys():
        model.load_state_dict(dict(weights))


def _built(args: Arguments) -> Experiment | None:
    experiment = vars(args).get(_EXPERIMENT)
    assert experiment is None or isinstance(experiment, Experiment)
    return experiment


def _passed(args: Arguments) -> _Passed:
    passed = vars(args).setdefault(_PASSED, _Passed())
    assert isinstance(passed, _Passed)
    return passed


def _is_ours(dataset: object) -> bool:
    """Whether the training data per client are what :func:`fedml_dapper.platform.load` gave."""
    train_local = dataset[5] if isinstance(dataset, Sequence) and len(dataset) == 8 else None
    return isinstance(train_local, dict) and all(isinstance(data, ClientData) for data in train_local.values())


def _write_settings(args: Arguments, settings: Settings) -> None:
    flat = vars(args)
    for name, section in settings.model_dump(mode="json", exclude=_NOT_FLAT).items():
        for key, value in section.items():
            if value is None:
                flat.pop(_flat_key(name, key), None)  # FedML asks whether a key is there, not whether it has a value
            else:
                flat[_flat_key(name, key)] = value


def settings_of(args: Arguments) -> Settings:
    """The settings in ``args``, as the program may have changed them; raises :class:`ConfigError`."""
    file = Path(args.yaml_config_file)
    meant = load_settings([file])  # refuses keys that FedML's flat copy cannot tell apart from its own
    flat = vars(args)
    values: dict[str, dict[str, Any]] = meant.model_dump(include=_NOT_FLAT)
    for name, field in Settings.model_fields.items():
        if name in _NOT_FLAT:
            continue
        section = field.annotation
        assert isinstance(section, type)
        values[name] = {key: flat[_flat_key(name, key)] for key in section.model_fields if _flat_key(name, key) in flat}
    return check(Settings, values, where=f"{file}, as changed by the program")


def _flat_key(section: str, key: str) -> str:
    """Where FedML's flat copy has ``section.key``: under ``key``, or under both names if several sections have it."""
    return f"{section}_{key}" if key in _AMBIGUOUS else key


def _ambiguous() -> frozenset[str]:
    """Keys that stand in several sections."""
    sections = (field.annotation for name, field in Settings.model_fields.items() if name not in _NOT_FLAT)
    keys = Counter(key for section in sections if is_section(section) for key in section.model_fields)
    return frozenset(key for key, count in keys.items() if count > 1)


_AMBIGUOUS = _ambiguous()
