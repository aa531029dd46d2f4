"""Experiment files as they are written for FedML: what their keys mean here, and which are named as unused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedml_dapper.config import Loaded, load_settings, load_with_notes
from fedml_dapper.config.fedml_keys import UNUSED, UNUSED_SECTIONS
from fedml_dapper.config.fedml_meanings import MEANINGS
from fedml_dapper.errors import ConfigError

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "fedml.md"
SIMULATION = """
common_args:
  training_type: "simulation"
  random_seed: 7
  config_version: release
  using_mlops: false
environment_args:
  bootstrap: config/prepare.sh
data_args:
  dataset: "mnist"
  data_cache_dir: ~/somewhere/that/is/not
  partition_method: "hetero"
  partition_alpha: 0.25
model_args:
  model: "lr"
  global_model_file_path: ./cache/model.pt
train_args:
  federated_optimizer: "FedProx"
  fedprox_mu: 0.3
  client_id_list: "[]"
  client_num_in_total: 20
  client_num_per_round: 4
  comm_round: 3
  epochs: 1
  batch_size: 10
  client_optimizer: SGD
  lr: 0.5
  learning_rate: 0.03
  weight_decay: 0.001
  server_optimizer: sgd
  server_lr: 0.1
validation_args:
  frequency_of_the_test: 2
device_args:
  worker_num: 4
  using_gpu: false
  gpu_mapping_file: config/mapping.yaml
  gpu_mapping_key: some
comm_args:
  backend: "MPI"
  is_mobile: 0
  grpc_ipconfig_path: ./config/not_there.csv
tracking_args:
  enable_tracking: true
  enable_wandb: false
  wandb_key: 0123456789abcdef
  wandb_project: fedml
  wandb_name: first
  log_file_dir: ./log
attack_args:
  enable_attack: false
  attack_type: none
defense_args:
  enable_defense: false
  norm_bound: 5.0
"""


def loaded(folder: Path, *texts: str) -> Loaded:
    files = [folder / f"{number}.yaml" for number, _ in enumerate(texts)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    return load_with_notes(files)


def test_a_file_that_was_written_for_fedml_is_read_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = loaded(tmp_path, SIMULATION)
    settings = found.settings
    assert (settings.dapper_args.method, settings.dapper_args.params) == ("fedprox", {"fedprox": {"mu": 0.3}})
    assert (settings.data_args.partition, settings.data_args.dirichlet_alpha) == ("dirichlet", 0.25)
    assert settings.data_args.data_cache_dir == tmp_path / "somewhere/that/is/not"
    training = settings.train_args
    assert (training.learning_rate, training.client_optimizer, training.client_num_in_total) == (0.03, "sgd", 20)
    assert "0123456789abcdef" not in settings.as_yaml()
    [unused] = [note for note in found.notes if note.startswith("keys of FedML's")]
    named = (
        "environment_args, attack_args, defense_args, common_args.config_version, model_args.global_model_file_path,"
        " train_args.server_optimizer, train_args.server_lr, device_args.gpu_mapping_file, device_args.gpu_mapping_key,"
        " comm_args.is_mobile, tracking_args.enable_tracking, tracking_args.wandb_key, tracking_args.wandb_name,"
        " tracking_args.log_file_dir"
    )
    assert unused.endswith(f": {named}")
    assert "train_args.federated_optimizer FedProx chooses the method fedprox" in found.notes
    assert any("FedML's own trainers use none" in note for note in found.notes)
    assert found.sections["data_args"]["partition_method"] == "hetero"  # which a program's own loader may want


def test_a_few_keys_of_ours_laid_over_it_count(tmp_path: Path) -> None:
    ours = "data_args: {partition: domain_shares}\ntrain_args: {momentum: 0}\ndapper_args: {method: dapperfl}\n"
    found = loaded(tmp_path, SIMULATION, ours)
    assert found.settings.data_args.partition == "domain_shares"
    assert found.settings.data_args.dirichlet_alpha is None
    assert found.settings.dapper_args.method == "dapperfl"
    assert "train_args.federated_optimizer is FedProx; the method is dapper_args.method, 'dapperfl'" in found.notes
    assert not any("momentum" in note for note in found.notes)


@pytest.mark.parametrize(
    ("optimizer", "method"),
    [
        ("FedAvg", "fedavg"),
        ("FedAvg_seq", "fedavg"),
        ("SCAFFOLD", "scaffold"),
        ("FedDyn", "feddyn"),
        ("HeteroFL", "heterofl"),
        ("my.py:Own", "my.py:Own"),
    ],
)
def test_an_optimizer_chooses_the_method_of_its_name(tmp_path: Path, optimizer: str, method: str) -> None:
    (tmp_path / "my.py").touch()
    found = loaded(tmp_path, f"train_args: {{federated_optimizer: '{optimizer}'}}\n")
    assert found.settings.dapper_args.method.endswith(method)
    assert found.settings.train_args.federated_optimizer == "FedAvg"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train_args: {federated_optimizer: FedNova}", "`FedNova` is none of the methods here"),
        ("train_args: {federated_optimizer: FedOpt}", "method fedavgm has a server's momentum; name one as"),
        ("train_args: {federated_optimizer: 3}", "`federated_optimizer` in train_args is 3"),
        ("train_args: {lr: 0.1}", "train_args.lr: FedML's trainers read learning_rate; write that"),
        ("train_args: {ml_engine: jax}", "train_args.ml_engine: is 'jax', and networks are torch's here"),
        ("train_args: {client_optimizer: Adagrad}", "`client_optimizer` in train_args is 'adagrad'"),
        ("common_args: {scenario: hierarchical}", "a silo is one process here"),
        ("common_args: {training_type: cross_cloud}", "is for clusters that FedML's platform rents; write cross_silo"),
        (
            "common_args: {using_mlops: true}\ntracking_args: {using_mlops: false}",
            "common_args.using_mlops is True, and tracking_args.using_mlops False; leave the former out",
        ),
        (
            "common_args: {training_type: cross_silo}\ncomm_args: {backend: GRPC, allow_pickle: true}\n"
            "train_args: {client_num_in_total: 1000, client_num_per_round: 2}\ndevice_args: {worker_num: 2}",
            "device_args.worker_num is 2, and train_args.client_num_in_total 1000: across silos each client is a",
        ),
        ("tracking_args: {wandb_keey: abc}", "unknown key `wandb_keey` in tracking_args"),
        ("enviroment_args: {bootstrap: x}", "unknown key `enviroment_args`"),
        (
            "data_args: {partition_metod: hetero}",
            "unknown key `partition_metod` in data_args; did you mean `partition_method`",
        ),
        ("dapper_args: {wandb_key: abc}", "unknown key `wandb_key` in dapper_args"),
        ("secure_aggregation_args: {enable_sa: true}", "leave `enable_sa` out: FedML adds up masked vectors"),
        ("attack_args: {enable_attack: 'yes'}", "leave `enable_attack` out"),
        ("train_args: {fedprox_mu: 1}\ndapper_args: {params: 3}", "`params` in dapper_args is 3"),
        ("train_args: {feddyn_alpha: 1}\ndapper_args: 3", "`dapper_args` is 3"),
    ],
)
def test_what_would_make_it_another_run_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("listed", "is_noted"),
    [("", False), ('"[]"', False), ("[1, 2]", False), ('"[138]"', True), ("soon", True), ('"{[]}"', True)],
)
def test_ids_of_fedml_s_platform_are_not_used_and_that_is_said(tmp_path: Path, listed: str, is_noted: bool) -> None:
    found = loaded(tmp_path, f"train_args:\n  client_id_list: {listed}\n")
    assert any("client_id_list" in note for note in found.notes) == is_noted


def test_a_partition_that_has_no_word_here_is_said(tmp_path: Path) -> None:
    found = loaded(tmp_path, "data_args: {partition_method: homo, partition_alpha: 0.5}\n")
    assert found.settings.data_args.partition is None
    assert any("partition_method 'homo' is for a program's own loader" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "alpha", "said"),
    [
        ("partition_alpha: 0.5", None, "data_args.partition_alpha 0.5 is not used: no `partition_method: hetero` asks"),
        (
            "partition_method: hetero, partition_alpha: 0.5, dirichlet_alpha: 0.3",
            0.3,
            "data_args.partition_alpha 0.5 is not used: data_args.dirichlet_alpha is 0.3",
        ),
        ("partition: dirichlet, partition_alpha: 0.5", 0.5, None),
    ],
)
def test_an_alpha_that_has_no_part_is_said(tmp_path: Path, text: str, alpha: float | None, said: str | None) -> None:
    found = loaded(tmp_path, f"data_args: {{{text}}}\n")
    assert found.settings.data_args.dirichlet_alpha == alpha
    assert [note.startswith(said or "none") for note in found.notes] == [True] * (said is not None)


def test_a_file_of_ours_says_nothing_of_fedml() -> None:
    assert load_with_notes("quickstart.yaml").notes == ()


def test_effective_settings_of_a_fedml_file_load_back_equal(tmp_path: Path) -> None:
    settings = loaded(tmp_path, SIMULATION).settings
    again = tmp_path / "settings.yaml"
    again.write_text(settings.as_yaml())
    assert load_settings(again) == settings


def test_the_page_has_every_key_and_what_it_means_here() -> None:
    page = PAGE.read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for key, meaning in MEANINGS.items():
        assert any(f"`{key.partition(',')[0]}`" in row and meaning in row for row in rows), key
    for key, why in (UNUSED | UNUSED_SECTIONS).items():
        assert any(f"`{key}`" in row and why.partition(" (")[0] in row for row in rows), key
