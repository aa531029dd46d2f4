"""``fedml-dapper settings``, and what ``help()`` says of settings."""

from __future__ import annotations

import pydoc

import pytest
from click.testing import CliRunner, Result

from fedml_dapper.cli import main
from fedml_dapper.config import LevelArgs, Settings
from fedml_dapper.config.keys import keys_of
from fedml_dapper.methods import METHODS


def call(*words: str) -> Result:
    return CliRunner().invoke(main, ["settings", *words], env={"COLUMNS": "80"})


def test_every_key_has_a_meaning() -> None:
    keys = {
        key.path: key for model in (Settings, *(METHODS[name].Params for name in METHODS)) for key in keys_of(model)
    }
    assert [path for path, key in keys.items() if not key.meaning] == []
    assert len(keys) > 150


@pytest.mark.parametrize(
    ("path", "kind", "default"),
    [
        ("train_args.comm_round", "int >= 1 <= 1e+06", "100"),
        ("data_args.dataset", "str | null", "null"),
        ("data_args.client_share", "float > 0 <= 1 | null", "null"),
        ("data_args.clients", "list of section | null", "null"),
        ("data_args.clients.level", "int >= 1 | null", "null"),
        ("data_args.data_cache_dir", "path | null", "null"),
        ("comm_args.backend", "sp | MPI | DAPPER_GRPC | GRPC | MQTT_S3", "sp"),
        ("comm_args.customized_training_mqtt_config.MQTT_USER", "str", "''"),
        ("device_args.using_gpu", "bool", "false"),
        ("device_args.workers", "auto | int >= 1 <= 1024", "auto"),
        ("dapper_args.levels.ratios", "list of float >= 0 < 1", "[0.0, 0.2, 0.4, 0.6, 0.8]"),
        ("dapper_args.params", "section", "{}"),
    ],
)
def test_what_it_may_be_and_its_default(path: str, kind: str, default: str | None) -> None:
    [key] = [key for key in keys_of(Settings) if key.path == path]
    assert (key.kind, key.default) == (kind, default)


@pytest.mark.parametrize(
    ("word", "shown", "hidden"),
    [
        ("comm_round", ["comm_round: int >= 1 <= 1e+06 = 100", "Number of rounds."], ["epochs"]),
        ("train_args", ["epochs: int", "learning_rate: float > 0 = 0.01"], ["gamma", "backend"]),
        ("levels", ["levels.ratios", "levels.strict"], ["scope"]),
        ("dapper_args.levels.strict", ["levels.strict"], ["ratios"]),
        ("dapperfl", ["Settings of DapperFL", "alpha_0: float >= 0 <= 1 = 0.9"], ["comm_round"]),
        ("dapper_args.params.moon", ["MOON"], ["alpha_0"]),
    ],
)
def test_a_word_chooses(word: str, shown: list[str], hidden: list[str]) -> None:
    result = call(word)
    assert result.exit_code == 0, result.output
    assert [text for text in shown if text not in result.stdout] == []
    assert [text for text in hidden if text in result.stdout] == []


def test_without_a_word_all_sections_are_told_and_where_the_methods_are() -> None:
    shown = call().stdout
    assert all(key.path.split(".", 1)[1] in shown for key in keys_of(Settings))
    assert "alpha_0" not in shown
    assert "fedml-dapper settings NAME" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_misspelt_word_is_one_line() -> None:
    result = call("comm_rounds")
    assert result.exit_code == 2
    assert result.stderr == "fedml-dapper: no section, key or method `comm_rounds`; did you mean `comm_round`?\n"


def test_help_tells_meanings() -> None:
    text = pydoc.render_doc(LevelArgs, renderer=pydoc.plaintext)
    assert "ratios: list of float >= 0 < 1 = [0.0, 0.2, 0.4, 0.6, 0.8]" in text
    assert "Pruning ratio of each level: the share that its model lacks." in text
