"""Between FedML's flat ``args`` and our typed settings.

FedML copies every key of every YAML section onto one ``args`` object, where programs may change them; so ``args`` is
the truth about values, and the file is the truth about which keys were meant. A new setting needs no line here.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fedml
from fedml.arguments import Arguments, add_args

from fedml_dapper.config import Settings, check, load_settings
from fedml_dapper.config.keys import is_section
from fedml_dapper.errors import ConfigError
from fedml_dapper.platform.offline import without_platform
from fedml_dapper.platform.tracking.wandb import without_fedmls_wandb

_NOT_FLAT = {"silo_args"}
"""Sections that share keys with others, so that FedML's flat copy has no room for them."""


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
