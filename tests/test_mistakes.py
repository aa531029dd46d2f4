"""All mistakes of an experiment file in one line, and sections with nothing below them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedml_dapper.cli import main
from fedml_dapper.config import Settings, load_settings
from fedml_dapper.config.section import MAX_MISTAKES, Judged
from fedml_dapper.errors import ConfigError

ALL_AT_ONCE = """
common_args: {random_seed: -1}
data_args: {dataset: nowhere.py:load, partition: own, download: perhaps}
model_args: {weights: nowhere.safetensors}
train_args: {learnig_rate: 0.1, client_num_in_total: 3, client_num_per_round: 4, epochs: many, micro_batch_size: 128}
device_args: {precision: fp16}
comm_args: {backend: GRPC, allow_pickle: true}
dp_args: {enable_dp: true}
trian_args: {}
dapper_args:
  levels: {ratios: [0.0], assignment: [2, 1]}
  min_clients_per_round: 5
  privacy: {noise_multiplier: 1}
"""
EXPECTED = (
    "leave `enable_dp` out",
    "`random_seed` in common_args is -1",
    "`download` in data_args is 'perhaps'",
    "unknown key `learnig_rate` in train_args; did you mean `learning_rate`?",
    "`epochs` in train_args is 'many'",
    "unknown key `trian_args`; did you mean `train_args`?",
    "train_args.micro_batch_size (128) needs train_args.batch_size of as many or more (it is 64)",
    "train_args.client_num_per_round (4) needs train_args.client_num_in_total of as many or more (it is 3)",
    "device_args.precision fp16 needs device_args.using_gpu",
    "comm_args.backend GRPC needs comm_args.grpc_ipconfig_path",
    "above 0 (noise_multiplier) needs dapper_args.privacy.delta",
    "training_type simulation needs comm_args.backend sp or MPI (it is GRPC)",
    "dapper_args.min_clients_per_round (5) needs train_args.client_num_per_round of as many or more (it is 4)",
    "dapper_args.levels.assignment as a list (2 entries) needs one entry for each of",
    "dapper_args.levels.assignment as a list (up to level 2) needs dapper_args.levels.ratios with",
    "data_args.partition own does not go with common_args.training_type simulation: it is for silos",
    "dapper_args.privacy needs dapper_args.aggregation_weights uniform (it is samples): clients that count by",
    "data_args.dataset: no file nowhere.py",
    "model_args.weights: no file nowhere.safetensors",
)


def test_a_key_in_another_s_section_is_told_where_it_stands(tmp_path: Path) -> None:
    assert (
        told(tmp_path, "data_args: {batch_size: 8}\n")
        == "unknown key `batch_size` in data_args; it stands in train_args"
    )


def told(folder: Path, text: str) -> str:
    file = folder / "experiment.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    return str(caught.value).removeprefix(f"{file}: ")


def test_all_mistakes_are_told_at_once_and_counted(tmp_path: Path) -> None:
    text = told(tmp_path, ALL_AT_ONCE)
    assert "\n" not in text
    assert [part for part in EXPECTED if part not in text] == []
    assert text.startswith(f"{len(EXPECTED)} mistakes: (1) ")
    assert f"({len(EXPECTED)}) " in text


def test_one_mistake_is_not_counted(tmp_path: Path) -> None:
    assert told(tmp_path, "train_args: {epochs: 0}\n").startswith("`epochs` in train_args is 0")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("train_args: {client_num_per_roud: 2, client_num_in_total: 5}", 1),  # it may be meant for the one it is near
        ("train_args: {client_num_in_total: five, client_num_per_round: 20}", 1),
        ("comm_args: {backend: tcp}\ncommon_args: {training_type: cross_silo}", 1),
        ("dapper_args: {privacy: {secure_aggregation: {}}}", 1),
        ("dapper_args: {levels: {ratios: [2.0], assignment: [4, 1, 1, 1, 1, 1, 1, 1, 1, 1]}}", 1),
        ("dapper_args: {fleet: {devices: [raspberry_pi_4]}, levels: {assignment: index_mod}}", 1),
    ],
)
def test_what_depends_on_a_wrong_value_is_not_held_against_it(tmp_path: Path, text: str, count: int) -> None:
    judged = told(tmp_path, text)
    assert judged.startswith(f"{count} mistakes: ") if count > 1 else "mistakes" not in judged, judged


def test_a_rule_tells_what_it_found_before_it_came_to_a_wrong_value() -> None:
    values = {"dapper_args": {"privacy": {"noise_multiplier": 1, "delta": 0.2}, "aggregation_weights": "evenly"}}
    assert any(
        "privacy.delta (0.2) needs to be less than one over" in line for line in Judged(Settings, values).mistakes
    )


def test_of_very_many_mistakes_the_first_are_told_and_all_counted(tmp_path: Path) -> None:
    text = told(tmp_path, "".join(f"nothing_{number}: {{}}\n" for number in range(2000)))
    assert text.startswith(f"2000 mistakes, of which these are the first {MAX_MISTAKES}: ")
    assert f"({MAX_MISTAKES}) " in text
    assert f"({MAX_MISTAKES + 1}) " not in text


@pytest.mark.parametrize(
    "text",
    [
        "train_args:\n",
        "dapper_args:\n  levels:\n  pruning:\n  params:\n",
        "dapper_args:\n  params:\n    dapperfl:\n",
        "model_args:\n  arguments:\ndata_args:\n  arguments:\n",
        "silo_args:\ntracking_args:\n# nothing more\n",
    ],
)
def test_a_section_with_nothing_below_it_is_an_empty_one(tmp_path: Path, text: str) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(text)
    params = {"dapperfl": {}} if "dapperfl" in text else {}
    assert load_settings(file) == load_settings([], {"dapper_args.params": params})


def test_an_empty_section_laid_over_another_changes_nothing(tmp_path: Path) -> None:
    below, above = tmp_path / "below.yaml", tmp_path / "above.yaml"
    below.write_text("train_args: {comm_round: 3}\ndapper_args: {levels: {ratios: [0.5]}, fleet: {round_s: 9}}\n")
    above.write_text("train_args:\ndapper_args:\n  levels:\n  fleet: null\n")
    settings = load_settings([below, above])
    assert settings.train_args.comm_round == 3
    assert settings.dapper_args.levels.ratios == (0.5,)
    assert settings.dapper_args.fleet is None  # which may be absent


def test_a_quoted_name_neither_breaks_the_line_nor_steers_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(r'model_args: {weights: "a\nfedml-dapper: b\x1b[31m\u2028c.pt"}')
    result = CliRunner().invoke(main, ["run", "-c", str(file)], prog_name="fedml-dapper")
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert r"model_args.weights: no file a\nfedml-dapper: b\x1b[31m\u2028c.pt; looked in" in line


QUOTES = "YAML reads a bare yes, no, on or off as true or false, so put the word in quotes"
TRUTH = "where a number is needed (YAML reads a bare yes, no, on or off as true or false)"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("classes=cat", "`classes` in data_args is 'cat': input should be a whole number or a list"),
        ("classes=1", "`classes` in data_args is 1: input should be greater than or equal to 2"),
        ("classes=2.5", "`classes` in data_args is 2.5: input should be a valid integer, got a number with a"),
        ("classes=[cat, null]", "`1` in data_args.classes is empty; give it a value"),
        ("classes=[cat, 3]", "`1` in data_args.classes is 3: input should be a valid string; where a word is meant"),
        ("classes=[cat, no]", f"`1` in data_args.classes is False: input should be a valid string; {QUOTES}"),
        ("classes=yes", f"data_args.classes: is true, {TRUTH}"),
        ("classes=[]", "data_args.classes: names no class, and there have to be two or more; or leave it out"),
        ("classes=[cat]", "data_args.classes: names 1 class, and there have to be two or more"),
        ("classes=[cat, dog, cat]", "data_args.classes: names the class 'cat' twice"),
        ("classes=[cat, ' ']", "data_args.classes: names a class ' ', which no table can show"),
        ("workers=autos", "`workers` in device_args is 'autos': input should be 'auto' or a whole number"),
        ("workers=0", "`workers` in device_args is 0: input should be greater than or equal to 1"),
        ("assignment=3", "`assignment` in dapper_args.levels is 3: input should be a list or a word"),
        ("assignment=[1, 0]", "`1` in dapper_args.levels.assignment is 0: input should be greater than or equal to 1"),
        (
            "dapper_args.fleet={round_s: 1, devices: 3}",
            "`devices` in dapper_args.fleet is 3: input should be a list or",
        ),
        ("using_gpu=perhaps", "`using_gpu` in device_args is 'perhaps': input should be true or false"),
        ("using_gpu=[1]", "`using_gpu` in device_args is [1]: input should be true or false"),
        ("ratios=3", "`ratios` in dapper_args.levels is 3: input should be a list"),
        ("output_dir=", "`output_dir` in dapper_args is empty; give it a value, or leave it out, which means its"),
        ("output_dir=3", "`output_dir` in dapper_args is 3: input should be the name of a file or folder"),
        ("method=off", f"`method` in dapper_args is False: input should be a valid string; {QUOTES}"),
        ("uplink=off", f"or 'int8'; {QUOTES}"),
        (
            "data_args.clients=[no]",
            f"`domain` in data_args.clients.0 is False: input should be a valid string; {QUOTES}",
        ),
        ("dataset=2024-01-01", "input should be a valid string; where a word is meant, put it in quotes"),
        ("epochs=yes", f"train_args.epochs: is true, {TRUTH}"),
        ("ratios=[0, on]", f"dapper_args.levels.ratios: is true, {TRUTH}"),
        ("method=!!binary ZmVkYXZn", "dapper_args.method: is b'fedavg', bytes where a word is needed"),
        ("comm_round=1:30", "line 1: `1:30` is 90 in YAML, read to the base 60; write the number that you mean in"),
        ("learning_rate=-1:30.5", "line 1: `-1:30.5` is -90.5 in YAML, read to the base 60"),
        ("comm_round=0_10", "line 1: `010` is 8 in YAML, read to the base 8"),
        (f"comm_round=0{'1' * 5000}", "is a number in YAML, read to the base 8"),
        ("gamma=0", "--set gamma: unknown key; one of the method's own is written params.dapperfl.gamma"),
        ("dapperfl.gamma=0", "unknown key; settings of a method are in params: write params.dapperfl.gamma"),
        ("partition_metod=hetero", "--set partition_metod: unknown key; did you mean `partition_method`?"),
        ("data_args.partition_metod=x", "unknown key `partition_metod` in data_args; did you mean `partition_method`?"),
    ],
)
def test_one_mistake_is_told_once_in_the_words_of_a_file(override: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings([], [override])
    assert told in str(caught.value)
    assert "mistakes" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_what_merely_looks_like_that_is_taken() -> None:
    overrides = ["classes=[cat, 'no']", "comm_round=007", "epochs=1_0", "random_seed=0x10", "partition_method=hetero"]
    settings = load_settings([], [*overrides, "capture=off", "partition_alpha=0.5"])
    assert settings.data_args.classes == ("cat", "no")
    assert settings.data_args.partition == "dirichlet"
    assert (settings.train_args.comm_round, settings.train_args.epochs, settings.common_args.random_seed) == (7, 10, 16)
    assert settings.device_args.capture == "off"


@pytest.mark.parametrize("key", [3, b"epochs", ("train_args", "epochs")])
def test_a_program_calls_settings_by_words(key: Any) -> None:
    with pytest.raises(ConfigError, match=r"a setting is called by a word, e.g. train_args.comm_round"):
        load_settings([], {key: 1})
