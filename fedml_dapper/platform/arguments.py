"""Translation between FedML's flat ``args`` and our typed settings.

FedML copies every key of every YAML section onto one ``args`` object, where programs may change them. So values are
read from ``args``, and the file decides which keys are settings. A new setting needs no line here.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fedml
from fedml.arguments import Arguments, add_args

from fedml_dapper.config import WITH_SECRETS, Settings, check, experiment_file, load_settings, load_with_notes
from fedml_dapper.config.keys import is_section
from fedml_dapper.errors import ConfigError
from fedml_dapper.platform.offline import without_platform
from fedml_dapper.platform.program_end import end_by_a_line
from fedml_dapper.platform.program_output import show
from fedml_dapper.platform.tracking.wandb import without_fedmls_wandb

_FILES = "dapper_files"
_NOT_FLAT = {"silo_args"}
"""Sections that are left out of FedML's flat copy, as they share keys with others."""


class _ReadArguments(Arguments):  # type: ignore[misc]  # fedml is untyped
    """FedML's ``args`` made from sections that were read already, keys of FedML's own included."""

    def __init__(self, command_line: Namespace, sections: Mapping[str, Any], settings: Settings) -> None:
        self.load_yaml_config = lambda path: sections  # FedML's constructor calls it to read the file
        super().__init__(command_line, settings.common_args.training_type, settings.comm_args.backend)
        del self.load_yaml_config  # it is no setting, and FedML copies all attributes of args

    def set_attr_from_config(self, configuration: Mapping[str, Any]) -> None:
        """Copy all keys of all sections onto this object; a section that is empty in the file is None."""
        for section in configuration.values():
            for key, value in (section or {}).items():
                setattr(self, key, value)


def init(config_files: Path | str | Sequence[Path | str] | None = None) -> Arguments:
    """Run ``fedml.init`` after checking the experiment file, and without FedML's platform look-ups.

    From here on the program shows rounds as they end, and one of our own errors that nobody catches ends it as it ends
    a command: by one line and exit code 2.

    Args:
        config_files: The experiment file, or several, of which later ones are laid over earlier ones. By default
            ``--cf FILE`` of the command line, as in any FedML program.

    Raises:
        ConfigError: Something in the files is wrong; FedML has not been started.
    """
    end_by_a_line()
    files = _files_of_command_line() if config_files is None else config_files
    files = [files] if isinstance(files, Path | str) else files
    if not files:
        raise ConfigError("no experiment file: pass --cf FILE, e.g. --cf config/quickstart.yaml")
    loaded = load_with_notes(files)
    command_line: Namespace = add_args()
    command_line.yaml_config_file = str(files[0])
    args = start(loaded.settings, loaded.sections, command_line)
    # They are read again later, when the program may be in another folder.
    setattr(args, _FILES, tuple(str(experiment_file(file).absolute()) for file in files))
    show(args, (*loaded.notes, *_unread_options()))
    return args


def _files_of_command_line() -> list[str]:
    """Return all files given by ``--cf``, of which FedML's own parser keeps the last alone."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--cf", "--yaml_config_file", dest="files", action="append", default=[])
    found: list[str] = parser.parse_known_args()[0].files
    return found


def _unread_options() -> list[str]:
    """Return a note where the command line changes settings, as that of ``fedml-dapper run`` may."""
    if not any(word == "--set" or word.startswith("--set=") for word in sys.argv[1:]):
        return []
    return ["--set is not read in a program of one's own: put what it says into a file, and lay that over by --cf"]


def start(settings: Settings, sections: Mapping[str, Any], command_line: Namespace) -> Arguments:
    """Run ``fedml.init`` with ``settings``, and with all other keys of ``sections``, read from the experiment files.

    Raises:
        ConfigError: FedML cannot write where it has to.
    """
    _check_home()
    args: Arguments = _ReadArguments(command_line, sections, settings)
    _write_settings(args, settings)
    args.worker_num = settings.train_args.client_num_per_round  # as fedml.load_arguments sets it
    for key in ("gpu_mapping_file", "gpu_mapping_key"):  # fedml.device.get_device asks for them under MPI
        vars(args).setdefault(key, None)
    vars(args).pop("enable_tracking", None)  # by which fedml.init would log a simulation in to FedML's platform
    platform_wanted = settings.tracking_args.using_mlops
    with nullcontext() if platform_wanted else without_platform(), without_fedmls_wandb(args):
        return fedml.init(args, check_env=False, should_init_logs=False)


def _check_home() -> None:
    """Raise :class:`ConfigError` where FedML's own folder cannot be written, whose place no setting names."""
    folder = Path.home() / ".fedml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_ours = os.access(folder, os.W_OK)
    except OSError:
        is_ours = False
    if not is_ours:
        raise ConfigError(f"FedML writes into {folder}, which cannot be written; set HOME to a folder that can")


def _write_settings(args: Arguments, settings: Settings) -> None:
    flat = vars(args)
    for name, section in settings.model_dump(mode="json", exclude=_NOT_FLAT, context=WITH_SECRETS).items():
        for key, value in section.items():
            if value is None:
                flat.pop(_flat_key(name, key), None)  # FedML asks whether a key is there, not whether it has a value
            else:
                flat[_flat_key(name, key)] = value


def settings_of(args: Arguments) -> Settings:
    """Read the settings from ``args``, where the program may have changed them.

    Raises:
        ConfigError: The program has changed them to something that does not fit.
    """
    flat = vars(args)
    values: dict[str, dict[str, Any]] = settings_of_files(args).model_dump(include=_NOT_FLAT)
    for name, field in Settings.model_fields.items():
        if name in _NOT_FLAT:
            continue
        section = field.annotation
        assert isinstance(section, type)
        values[name] = {key: flat[_flat_key(name, key)] for key in section.model_fields if _flat_key(name, key) in flat}
    return check(Settings, values, where=f"{', '.join(_files(args))}, as changed by the program")


def settings_of_files(args: Arguments) -> Settings:
    """Read the settings from the experiment's files, without the program's changes."""
    return load_settings(_files(args))


def _files(args: Arguments) -> tuple[str, ...]:
    files: tuple[str, ...] | None = vars(args).get(_FILES)
    file = vars(args).get("yaml_config_file")
    if files is None and file is None:
        raise ConfigError("args name no experiment file; make them by fedml_dapper.platform.init()")
    return (str(file),) if files is None else files


def _flat_key(section: str, key: str) -> str:
    """Return the name of ``section.key`` in FedML's flat copy: ``key``, or both names if several sections have it."""
    return f"{section}_{key}" if key in _AMBIGUOUS else key


def _ambiguous() -> frozenset[str]:
    """Return the keys that several sections have."""
    sections = (field.annotation for name, field in Settings.model_fields.items() if name not in _NOT_FLAT)
    keys = Counter(key for section in sections if is_section(section) for key in section.model_fields)
    return frozenset(key for key, count in keys.items() if count > 1)


_AMBIGUOUS = _ambiguous()
