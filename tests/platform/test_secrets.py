"""Passwords among the settings: the run has them, and no file that it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedml_dapper.cli import main
from fedml_dapper.config import Settings, load_settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import LEDGER_NAME, REPORT_NAME, SETTINGS_NAME, build_experiment
from fedml_dapper.platform.arguments import init, settings_of
from fedml_dapper.platform.transports import open_transport

from .processes import free_port

SettingsFactory = Callable[..., Settings]
SECRETS = ("hunter2", "correct-horse")
BROKER = """
comm_args:
  customized_training_mqtt_config: {BROKER_HOST: 127.0.0.1, MQTT_USER: dapper, MQTT_PWD: hunter2}
  customized_training_s3_config:
    {BUCKET_NAME: fedml, CN_S3_AKI: dapper, CN_S3_SAK: correct-horse, CN_S3_ENDPOINT: "http://127.0.0.1:9"}
"""


@pytest.fixture
def files(tiny_settings: SettingsFactory, tmp_path: Path) -> list[Path]:
    """A tiny experiment, and what is laid over it to name a broker and a store, with their secrets."""
    tiny = tmp_path / "tiny.yaml"
    tiny.write_text(tiny_settings("epochs=1", "client_share=0.03", "comm_round=1").as_yaml())
    broker = tmp_path / "broker.yaml"
    broker.write_text(BROKER)
    return [tiny, broker]


def run(files: list[Path], folder: Path, *options: str) -> None:
    configs = [word for file in files for word in ("-c", str(file))]
    result = CliRunner().invoke(main, ["run", *configs, "--output", str(folder), *options])
    assert result.exit_code == 0, result.output
    assert not any(secret in result.output for secret in SECRETS)


def test_no_file_of_a_run_has_a_secret_and_it_goes_on_all_the_same(files: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(files, folder)
    run(files, folder, "--resume", "--set", "comm_round=2")
    written = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {SETTINGS_NAME, LEDGER_NAME, REPORT_NAME} <= written.keys()
    assert [name for name, content in written.items() if any(secret.encode() in content for secret in SECRETS)] == []
    assert load_settings([folder / SETTINGS_NAME]).comm_args.customized_training_s3_config is not None


def test_what_trackers_and_terminals_show_has_no_secret(files: list[Path]) -> None:
    settings = load_settings(files)
    shown = build_experiment(settings).record().model_dump_json() + settings.as_yaml()
    assert "dapper" in shown
    assert not any(secret in shown for secret in SECRETS)


def test_fedml_gets_the_secrets_and_so_does_a_program(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["program"])
    args = init(files)
    assert args.customized_training_mqtt_config["MQTT_PWD"] == "hunter2"
    assert args.customized_training_s3_config["CN_S3_SAK"] == "correct-horse"
    assert settings_of(args) == load_settings(files)


def test_settings_of_a_run_say_that_its_secrets_have_to_be_given_again(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "settings.yaml"
    written.write_text(load_settings(files).as_yaml())
    monkeypatch.setattr("sys.argv", ["program"])
    args = init(written)
    args.backend = "MQTT_S3"
    args.customized_training_mqtt_config["BROKER_PORT"] = free_port()
    with pytest.raises(ConfigError, match=r"MQTT_PWD and .*CN_S3_SAK: missing, as files of a run leave secrets out"):
        open_transport(args, None, 0, 1)
