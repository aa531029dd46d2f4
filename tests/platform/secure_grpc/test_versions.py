"""Processes of other versions in one run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedml_dapper import __version__
from fedml_dapper.config import SecureGrpcConfig, Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import LEDGER_NAME, WIRE_SCHEMA, build_experiment, read_ledger, simulate

from ..federation_in_threads import Federation
from ..processes import Silos
from ..test_parity import without_seconds
from .experiment_file import experiment_file, of_four

SettingsFactory = Callable[..., Settings]
InThreads = Callable[[Path, int], Federation]
MAJOR, MINOR = (int(part) for part in __version__.split(".")[:2])
OF_VERSION = """
import fedml_dapper

fedml_dapper.__version__ = "{version}"

from pydantic.fields import FieldInfo

from fedml_dapper.config import DapperArgs, Settings


class LaterArgs(DapperArgs):
    novelty: int = 3


if {knows_more}:
    Settings.model_fields["dapper_args"] = FieldInfo(annotation=LaterArgs, default=LaterArgs())
    Settings.model_rebuild(force=True)

from fedml_dapper.commands.fedml import main

main()
"""


def program(folder: Path, version: str, knows_more: bool = False) -> Path:
    """What starts a process of ``version``, perhaps with a setting that the present one does not know."""
    file = folder / f"version_{version}.py"
    file.write_text(OF_VERSION.format(version=version, knows_more=knows_more))
    return file


@pytest.mark.nightly
def test_a_silo_of_the_version_before_takes_part_and_one_too_far_apart_is_told_who_is_to_upgrade(
    in_threads: InThreads, tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path,
    introduced_as: Callable[..., None],
) -> None:  # fmt: skip
    settings = of_four(tiny_settings, "comm_round=2", "width=4")
    federation = in_threads(experiment_file(tmp_path, settings, config), 4)
    far = f"{MAJOR}.{MINOR + 3}.0"
    introduced_as(1, version=f"{MAJOR}.{MINOR + 1}.0", schema=WIRE_SCHEMA + 1)
    introduced_as(2, version=f"{MAJOR}.{MINOR}.9", schema=WIRE_SCHEMA - 1)
    introduced_as(4, version=far)
    federation.start_all()
    failure = federation.error_of(4)
    assert isinstance(failure, ConfigError)
    assert (
        f"the server refuses this silo: versions {far} and {__version__} of fedml_dapper are too far apart to take part"
        f" in one run: upgrade the process of version {__version__}"
    ) in str(failure)
    introduced_as(4, version=__version__)
    federation.start(4)
    federation.wait()
    _, rounds = simulate(build_experiment(settings))
    assert [record.scores for record in federation.rounds()] == [record.scores for record in rounds]


@pytest.mark.nightly
def test_silos_of_the_version_before_take_part_with_a_server_that_has_a_setting_more(
    tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path
) -> None:
    settings = tiny_settings(
        "client_num_in_total=4", "client_num_per_round=4", "threads=1", "epochs=1", "image_size=16", "width=4"
    )
    _, rounds = simulate(build_experiment(settings))
    later, far = f"{MAJOR}.{MINOR + 1}.0", f"{MAJOR}.{MINOR + 3}.0"
    programs = {0: program(tmp_path, later, knows_more=True), 4: program(tmp_path, far)}
    silos = Silos(tmp_path, experiment_file(tmp_path, settings, config), 4, cold=(0, 4), programs=programs)
    try:
        silos.start_all()
        assert silos.wait(4, 120) == 2
        assert (
            f"the server refuses this silo: versions {far} and {later} of fedml_dapper are too far apart to take part"
            f" in one run: upgrade the process of version {later}"
        ) in silos.output(4)
        silos.start(4, program=program(tmp_path, f"{MAJOR}.{MINOR}.9"))
        assert [silos.wait(rank, 120) for rank in range(5)] == [0] * 5, silos.output(0)
    finally:
        silos.stop()
    record, found = read_ledger(silos.run_dir / LEDGER_NAME)
    assert without_seconds(found) == without_seconds(rounds)
    assert (record.version, record.settings["dapper_args"]["novelty"]) == (later, 3)
