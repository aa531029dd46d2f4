from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedml_dapper.config import load_settings
from fedml_dapper.errors import ConfigError

CONFIG = Path(__file__).parents[1] / "config"


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    file = tmp_path / "experiment.yaml"
    file.write_text("data_args: {dataset: digits}\nmodel_args: {model: resnet10}\n")
    return file


@pytest.mark.parametrize("name", ["digits_offline.yaml", "digits.yaml", "office_caltech.yaml"])
def test_shipped_experiments_hold_the_papers_settings(name: str) -> None:
    settings = load_settings([CONFIG / name])
    training, dapperfl = settings.train_args, settings.dapper_args.params["dapperfl"]
    assert dapperfl == {"alpha_0": 0.9, "alpha_min": 0.1, "eps": 0.2, "gamma": 0.01}
    assert settings.dapper_args.levels.ratios == (0.0, 0.2, 0.4, 0.6, 0.8)
    assert (training.client_num_in_total, training.client_num_per_round, training.epochs) == (10, 10, 5)
    if name != "digits_offline.yaml":
        assert (training.comm_round, training.batch_size, training.learning_rate) == (100, 64, 0.01)
        assert (training.momentum, training.weight_decay, settings.model_args.width) == (0.9, 1e-5, None)


@pytest.mark.parametrize(
    ("name", "rounds", "epochs", "rate"), [("pacs.yaml", 500, 5, 0.05), ("office_caltech_fdse.yaml", 500, 1, 0.1)]
)
def test_fdse_experiments_hold_its_settings(name: str, rounds: int, epochs: int, rate: float) -> None:
    settings = load_settings([CONFIG / name])
    training = settings.train_args
    assert (training.comm_round, training.epochs, training.learning_rate) == (rounds, epochs, rate)
    assert (training.batch_size, training.momentum, training.weight_decay) == (50, 0.0, 1e-3)
    assert (training.learning_rate_decay, training.max_grad_norm) == (0.998, 10)
    assert (training.client_num_in_total, training.client_num_per_round) == (4, 4)
    assert (settings.model_args.model, settings.dapper_args.aggregation_weights) == ("alexnet", "uniform")


def test_fedcmd_experiment_holds_its_settings() -> None:
    settings = load_settings([CONFIG / "mnist_dirichlet.yaml"])
    training, data = settings.train_args, settings.data_args
    assert (data.dataset, data.partition, data.dirichlet_alpha) == ("mnist", "dirichlet", 0.1)
    assert (training.client_num_in_total, training.client_num_per_round, training.comm_round) == (100, 10, 200)
    assert (training.epochs, training.batch_size, training.learning_rate, training.momentum) == (5, 32, 0.01, 0.0)
    assert settings.model_args.model == "lenet5"


@pytest.mark.parametrize(
    ("also", "message"),
    [
        (
            ["client_order=official"],
            "data_args.clients does not go with data_args.client_order official: .* leave client_order out",
        ),
        (
            ["ratios=[0.0]"],
            "data_args.clients with levels .up to level 2. needs dapper_args.levels.ratios .*it has 1 levels",
        ),
        (
            ["data_silo_config=[a.yaml, b.yaml]"],
            "data_args.clients with levels does not go with client_specific_args.data_silo_config: levels",
        ),
        (
            ["assignment=[1, 1]"],
            "data_args.clients with levels does not go with dapper_args.levels.assignment as a list: levels stand",
        ),
        (["assignment=[1]"], ".1 entries. needs one entry for each of train_args.client_num_in_total .2 clients."),
    ],
)
def test_stated_clients_leave_nothing_else_to_say_it(experiment: Path, also: list[str], message: str) -> None:
    stated = [
        "client_num_in_total=2",
        "client_num_per_round=2",
        "clients=[{domain: a, level: 2}, {domain: b, level: 1}]",
    ]
    with pytest.raises(ConfigError, match=message):
        load_settings([experiment], [*stated, *also])


def test_compatibility_overlay_changes_only_what_it_names() -> None:
    paper = load_settings([CONFIG / "office_caltech.yaml"])
    official = load_settings([CONFIG / "office_caltech.yaml", CONFIG / "official_compat.yaml"])
    assert official.train_args == paper.train_args
    assert official.dapper_args.pruning.scope == "official_mask"
    assert official.dapper_args.params["dapperfl"]["recovery"] == "zero"
    assert official.dapper_args.params["dapperfl"]["gamma"] == 0.01


def test_the_shipped_cross_silo_experiment_finds_its_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [CONFIG / "cross_silo.yaml"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"dapper_grpc.certificates: no folder certs; looked in .*make_certs.sh certs",
    ):
        load_settings(files)
    (tmp_path / "certs").mkdir()
    comm = load_settings(files).comm_args
    assert comm.backend == "DAPPER_GRPC"
    assert comm.dapper_grpc is not None
    assert comm.dapper_grpc.certificates == tmp_path / "certs"
    assert comm.dapper_grpc.server_host == "127.0.0.1"


def test_effective_settings_load_back_equal(tmp_path: Path) -> None:
    settings = load_settings([CONFIG / "quickstart.yaml"], ["learning_rate=1e-3"])
    file = tmp_path / "settings.yaml"
    file.write_text(settings.as_yaml())
    assert load_settings([file]) == settings
    assert settings.train_args.learning_rate == 0.001


def test_numbers_with_exponents_are_numbers_for_code_of_ones_own_too(experiment: Path, tmp_path: Path) -> None:
    """PyYAML reads YAML 1.1, in which an exponent needs a dot and a sign."""
    numbers = ["1e-5", "-2E3", "+1e+2", "1.5e3", ".5e1", "5.e-1", "1.0e-05"]
    words = ["'1e-5'", "1e", "e5", "1e5s", "1_0e2", "1e-5-rc", "1.2.3", "0x1e"]
    file = tmp_path / "above.yaml"
    file.write_text(f"model_args: {{arguments: {{numbers: [{', '.join(numbers)}], words: [{', '.join(words)}]}}}}")
    settings = load_settings([experiment, file])
    assert settings.model_args.arguments == {
        "numbers": [1e-5, -2000.0, 100.0, 1500.0, 5.0, 0.5, 1e-5],
        "words": ["1e-5", "1e", "e5", "1e5s", "1_0e2", "1e-5-rc", "1.2.3", 30],
    }
    file.write_text(settings.as_yaml())
    assert load_settings([file]) == settings
    assert load_settings([experiment], ["model_args.arguments={x: 1e-5}"]).model_args.arguments == {"x": 1e-5}


def test_off_is_a_word_where_yaml_reads_a_boolean(tmp_path: Path) -> None:
    file = tmp_path / "above.yaml"
    file.write_text("device_args:\n  capture: off\n")
    for settings in (
        load_settings([CONFIG / "quickstart.yaml", file]),
        load_settings([CONFIG / "quickstart.yaml"], ["capture=off"]),
    ):
        assert settings.device_args.capture == "off"
    with pytest.raises(ConfigError, match="capture"):
        load_settings([CONFIG / "quickstart.yaml"], ["capture=on"])


@pytest.mark.parametrize("ratios", ["ratios", "levels.ratios", "dapper_args.levels.ratios"])
def test_overrides_by_whole_key_and_by_its_end(experiment: Path, ratios: str) -> None:
    settings = load_settings(
        [experiment],
        ["comm_round=7", "train_args.epochs=2", "dapper_args.params.dapperfl.gamma=0.5", f"{ratios}=[0.1]"],
    )
    assert (settings.train_args.comm_round, settings.train_args.epochs) == (7, 2)
    assert settings.dapper_args.params == {"dapperfl": {"gamma": 0.5}}
    assert settings.dapper_args.levels.ratios == (0.1,)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train_args.learnig_rate=0.1", "unknown key `learnig_rate` in train_args; did you mean `learning_rate`?"),
        ("trian_args.epochs=1", "unknown key `trian_args`; did you mean `train_args`?"),
        ("wdth=3", "unknown key; did you mean `width`?"),
        ("comm_round=many", "`comm_round` in train_args is 'many': input should be a valid integer"),
        ("ratios=[0.2,1.0]", "dapper_args.levels.ratios"),
        (
            "client_num_per_round=11",
            "client_num_per_round (11) needs train_args.client_num_in_total of as many or more (it is 10)",
        ),
        ("backend=mpi", "`backend` in comm_args is 'mpi'"),
        ("backend=GRPC", "whoever reaches its port can run code here (CVE-2026-5536, GHSA-2fpx-xrc2-7qf3)"),
        ("backend=DAPPER_GRPC", "backend DAPPER_GRPC needs comm_args.dapper_grpc: the server's address and the folder"),
        ("dapper_grpc={server_address: here, certificates: .}", "expected HOST:PORT, e.g. server.example.org:8890"),
        ("dapper_grpc={server_address: 'a:99999', certificates: .}", "expected HOST:PORT"),
        ("dapper_grpc={server_address: 'a:1', certificates: ., token: abc}", "unknown key `token`"),
        (
            "dapper_grpc={server_address: 'a:1', certificates: ., token_file: a, token_variable: b}",
            "two places for one",
        ),
        ("training_type=cross_silo", "simulation takes sp or MPI"),
        (
            "clients=[a, b]",
            "data_args.clients (2 entries) needs one entry for each of train_args.client_num_in_total (10 clients)",
        ),
        ("clients=[{domain: a, level: 1}, b]", "`clients` gives a level to some clients only"),
        ("clients=[{domain: a, levle: 1}]", "unknown key `levle`"),
        ("epochs", "expected key=value"),
        ("ratios=[]", "needs at least one ratio"),
        ("enable_tensorbord=true", "did you mean `enable_tensorboard`?"),
    ],
)
def test_mistakes_are_named_in_one_line(experiment: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings([experiment], [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mistake_among_overrides_is_not_put_down_to_the_file_alone(experiment: Path) -> None:
    for overrides, place in ((["comm_round=many"], "--set"), ({"comm_round": "many"}, "the settings passed")):
        with pytest.raises(ConfigError, match=rf"^{experiment}, {place}: `comm_round` in train_args is 'many'"):
            load_settings([experiment], overrides)
    experiment.write_text("train_args: {comm_round: many}\n")
    with pytest.raises(ConfigError, match=rf"^{experiment}: `comm_round` in train_args is 'many'"):
        load_settings([experiment])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a\n", "expected sections"),
        ("data_args: [\n", "not valid YAML"),
        ("data_args: {clients: [{}]}\n", "missing key"),
        (
            "device_args: {using_gpu: true, workers: 2}\n",
            "device_args.workers .2. does not go with device_args.using_gpu: a GPU takes one process",
        ),
        (
            "device_args: {workers: 2}\ncomm_args: {backend: MPI}\n",
            "workers .2. needs comm_args.backend sp .it is MPI.: every other backend has its own processes",
        ),
    ],
)
def test_files_that_are_not_experiments(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_settings([file])


def test_missing_file_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path / "none.yaml")):
        load_settings([tmp_path / "none.yaml"])


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ("dp_args: {enable_dp: true, dp_solution_type: ldp}", "leave `enable_dp` out: FedML's noise covers"),
        ("common_args: {enable_secagg: true}", "leave `enable_secagg` out: FedML adds up masked vectors"),
        ("fhe_args: {enable_fhe: true}", "leave `enable_fhe` out"),
        ("defense_args: {enable_defense: true}", "use dapper_args.defence"),
        ("train_args: {federated_optimizer: LSA}", "`LSA` is refused: FedML adds up masked vectors"),
    ],
)
def test_protections_that_slim_models_do_not_fit_are_refused_with_the_reason(
    tmp_path: Path, section: str, reason: str
) -> None:
    file = tmp_path / "protected.yaml"
    file.write_text(section)
    with pytest.raises(ConfigError, match=reason):
        load_settings([CONFIG / "digits_offline.yaml", file])


def test_fedml_s_grpc_wants_everyone_s_address(experiment: Path) -> None:
    with pytest.raises(ConfigError, match=r"backend GRPC needs comm_args.grpc_ipconfig_path"):
        load_settings([experiment], ["backend=GRPC", "allow_pickle=true"])


def test_all_misplaced_settings_are_told_at_once(experiment: Path) -> None:
    wrong = ["wdth=3", "epochs", "comm_round=many", "learnig_rate=1", "method.x=1"]
    with pytest.raises(ConfigError) as caught:
        load_settings([experiment], wrong)
    line = str(caught.value)
    assert line.startswith(f"{experiment}, --set: 5 mistakes: (1) --set wdth: unknown key; did you mean `width`?; (2)")
    assert all(part in line for part in ("--set epochs: expected key=value", "'many'", "`learning_rate`", "method"))
    with pytest.raises(ConfigError, match=r"2 mistakes: \(1\) wdth: unknown key.*\(2\) learnig_rate: unknown key"):
        load_settings([experiment], {"wdth": 3, "learnig_rate": 1})


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "a pipe"),
        (os.mkdir, "a folder"),
        (lambda path: os.symlink("/dev/null", path), "a device"),
        (lambda path: os.symlink("/nowhere", path), "a link that leads nowhere"),
    ],
)
def test_what_is_no_plain_file_is_called_what_it_is(
    experiment: Path, tmp_path: Path, make: Callable[[Path], None], kind: str
) -> None:
    make(tmp_path / "odd.py")
    with pytest.raises(ConfigError, match=rf"no config file at .*odd.py: that is {kind}; write the settings to a plai"):
        load_settings([tmp_path / "odd.py"])
    with pytest.raises(
        ConfigError, match=rf"model_args.model: no file .*odd.py \(there is {kind} of that name\); looke"
    ):
        load_settings([experiment], [f"model={tmp_path}/odd.py:Net"])


@pytest.mark.parametrize("key", ["dapper_args.at_home", "at_home", "personal_layers"])
def test_a_setting_is_known_by_its_former_name(experiment: Path, key: str) -> None:
    assert load_settings(experiment, [f"{key}=norms"]).dapper_args.personal_layers == "norms"


def test_a_file_may_have_the_former_name_and_one_above_it_the_present_one(experiment: Path, tmp_path: Path) -> None:
    below = tmp_path / "below.yaml"
    below.write_text("dapper_args: {at_home: norms}")
    assert load_settings([experiment, below]).dapper_args.personal_layers == "norms"
    assert load_settings([experiment, below], ["personal_layers=none"]).dapper_args.personal_layers == "none"
    below.write_text("dapper_args: {at_home: norms, personal_layers: none}")
    with pytest.raises(ConfigError, match=r"`at_home` in dapper_args: the former name of `dapper_args.person"):
        load_settings([experiment, below])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (".inf", "`x` is inf; write it as a word, 'inf', of which float() makes it"),
        ("[1, .nan]", "`x` holds a value that is nan"),
        ("2026-11-27", "`x` is a date; give numbers, words, lists and mappings alone (in a file, quotes make a word"),
        ("{deep: {day: 2026-11-27}}", "`x` holds `deep`, which holds `day`, which is a date"),
        ("{1: one}", "`x` has the key 1; keys are words, so write '1'"),
        ("!!set {a, b}", "`x` is a set"),
        ("!!binary /w==", "`x` is a bytes"),
    ],
)
@pytest.mark.parametrize("key", ["data_args.arguments", "model_args.arguments", "task_arguments", "params.moon"])
def test_arguments_of_ones_own_are_what_a_ledger_can_hold(experiment: Path, key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(experiment, [f"{key}={{x: {value}}}"])
    assert key.removesuffix(".moon") in str(caught.value)
    assert message.replace("`x` ", "") in str(caught.value)


def test_a_program_s_arguments_are_held_to_the_same(experiment: Path) -> None:
    with pytest.raises(ConfigError, match=r"data_args.arguments: `scale` is a float32; give numbers"):
        load_settings(experiment, {"data_args.arguments": {"scale": np.float32(0.5)}})
    plain = {"a": None, "b": [1, 2.5, "three"], "c": {"d": (True, False)}, "e": Path("data")}
    assert load_settings(experiment, {"data_args.arguments": plain}).data_args.arguments == plain


def test_a_value_within_a_setting_is_known_by_the_setting_s_end(experiment: Path) -> None:
    settings = load_settings(experiment, ["params.moon.mu=0.5", "task_arguments.depth.of=3"])
    assert settings.dapper_args.params == {"moon": {"mu": 0.5}}
    assert settings.train_args.task_arguments == {"depth": {"of": 3}}
    with pytest.raises(ConfigError, match=r"several sections; write data_args.arguments.n or model_args.arguments.n$"):
        load_settings(experiment, ["arguments.n=3"])
    with pytest.raises(ConfigError, match=r"`ratios` in dapper_args.levels is \{'0': 0.1\}"):
        load_settings(experiment, ["ratios.0=0.1"])


BUDGETS = "dapper_args: {levels: [{rank: 16}, {rank: 4, base: 0.5}]}"
RATIOS = "dapper_args: {levels: {ratios: [0.0, 0.2, 0.4]}}"


@pytest.mark.parametrize(
    ("layers", "overrides", "budgets", "ratios"),
    [
        ([BUDGETS], ["levels.assignment=index_mod"], 2, (0.0, 0.0)),
        ([BUDGETS, "dapper_args: {levels: {assignment: index_mod}}"], [], 2, (0.0, 0.0)),
        (["dapper_args: {levels: {assignment: index_mod}}", BUDGETS], [], 2, (0.0, 0.0)),
        (["dapper_args: {levels: {assignment: index_mod}}", RATIOS, BUDGETS], [], 2, (0.0, 0.0)),
        (["dapper_args: {levels: {assignment: index_mod}}", BUDGETS, RATIOS], [], None, (0.0, 0.2, 0.4)),
    ],
)
def test_levels_laid_over_others_leave_what_they_do_not_say(
    experiment: Path,
    tmp_path: Path,
    layers: list[str],
    overrides: list[str],
    budgets: int | None,
    ratios: tuple[float, ...],
) -> None:
    files = [experiment, *(tmp_path / f"{number}.yaml" for number in range(len(layers)))]
    for file, layer in zip(files[1:], layers, strict=True):
        file.write_text(layer)
    levels = load_settings(files, ["model_args.adapter={rank: 16}", *overrides]).dapper_args.levels
    assert levels.assignment == "index_mod"
    assert levels.ratios == ratios
    assert levels.budgets is None if budgets is None else len(levels.budgets or ()) == budgets


@pytest.mark.parametrize("override", ["train_args=", "train_args={}", "dapper_args.levels=null"])
def test_an_empty_section_takes_nothing_from_the_file(experiment: Path, override: str) -> None:
    with pytest.raises(ConfigError, match=r"^--set [a-z_.]+: a section, and this leaves nothing in it; name one of"):
        load_settings(experiment, [override])
    assert load_settings(experiment, ["dapper_args.privacy="]).dapper_args.privacy is None


def test_a_key_in_capitals_is_recognised(experiment: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--set EPOCHS: unknown key; did you mean `epochs`\?$"):
        load_settings(experiment, ["EPOCHS=3"])
