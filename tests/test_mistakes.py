"""All mistakes of an experiment file in one line, and sections with nothing below them."""

from __future__ import annotations

from pathlib import Path

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
