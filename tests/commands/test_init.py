"""An experiment file to start from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from PIL import Image

from fedml_dapper.cli import main
from fedml_dapper.commands.init import _answer
from fedml_dapper.config import load_settings
from fedml_dapper.errors import ConfigError

ROOT = Path(__file__).parents[2]


def init(*arguments: str | Path | int, answers: str | None = None) -> Result:
    return CliRunner().invoke(main, ["init", *map(str, arguments)], input=answers, prog_name="fedml-dapper")


def test_five_questions_make_an_experiment_that_can_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for domain in ("ink", "chalk"):
        (tmp_path / "pictures" / domain / "circle").mkdir(parents=True)
    (tmp_path / "my_model.py").write_text("")
    said = init(answers="pictures\nmy_model.py:Net\n4\n50\n3\n")
    assert said.exit_code == 0, said.output
    assert "fedml-dapper run -c experiment.yaml" in said.output
    settings = load_settings(["experiment.yaml"])
    assert (settings.data_args.dataset, settings.data_args.data_cache_dir) == ("folder", tmp_path / "pictures")
    assert settings.model_args.model == f"{tmp_path}/my_model.py:Net"
    assert settings.model_args.norm is None
    assert (settings.train_args.client_num_in_total, settings.train_args.comm_round) == (4, 3)
    assert settings.dapper_args.levels.ratios == (0.0, 0.125, 0.25, 0.375, 0.5)
    assert settings.dapper_args.method == "dapperfl"
    assert "the run says how much it can" in Path("experiment.yaml").read_text()


@pytest.mark.long
@pytest.mark.parametrize(("answers", "missing"), [("", "data"), ("digits_offline\n", "model")])
def test_where_nobody_answers_it_says_what_to_give(tmp_path: Path, answers: str, missing: str) -> None:
    result = init(tmp_path / "begun.yaml", answers=answers)
    assert result.exit_code == 2
    assert f"as stdin has ended; give --{missing}, or --yes" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_stdin_that_the_shell_closed_is_nobody_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ConfigError, match="as stdin has ended; give --data"):
        _answer("data", None, yes=False)


def test_flags_and_defaults_ask_nothing_and_the_file_runs(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    assert init(file, "--yes", "--rounds", 1, "--clients", 4).exit_code == 0
    settings = load_settings([file])
    assert (settings.dapper_args.method, settings.model_args.norm) == ("dapperfl_slim", "standardised")
    assert settings.dapper_args.levels.ratios == (0.0, 0.2, 0.4, 0.6, 0.8)
    small = ["--set", "epochs=1", "--set", "width=4", "--set", "client_share=0.05", "--output", str(tmp_path / "run")]
    ran = CliRunner().invoke(main, ["run", "-c", str(file), "--json", *small], prog_name="fedml-dapper")
    assert ran.exit_code == 0, ran.output


NET = """
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))
"""


def test_pictures_and_a_network_in_the_working_directory_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the network leaves ``__pycache__`` there, and the first run its results."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for folder in ("chalk/circle", "chalk/square", "ink/circle", "ink/square"):
        Path(folder).mkdir(parents=True)
        for number in range(5):
            Image.new("RGB", (8, 8), (number * 40, 50, 99)).save(Path(folder, f"{number}.png"))
    Path("net.py").write_text(NET)
    begun = init("--data", ".", "--model", "net.py:Net", "--clients", 2, "--rounds", 1, "--yes")
    assert begun.exit_code == 0, begun.output
    for command in ("data check -c experiment.yaml", "run -c experiment.yaml", "run -c experiment.yaml"):
        result = CliRunner().invoke(main, command.split(), prog_name="fedml-dapper")
        assert result.exit_code == 0, result.output
    assert len(list(Path("runs").iterdir())) == 2


def test_paths_are_right_from_where_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my pictures: all").mkdir()
    (tmp_path / "trials").mkdir()
    (tmp_path / "my_model.py").touch()
    assert init("trials/one.yaml", "--data", "my pictures: all", "--model", "my_model.py:Net", "--yes").exit_code == 0
    settings = load_settings(["trials/one.yaml"])
    assert settings.data_args.data_cache_dir == tmp_path / "my pictures: all"
    assert settings.model_args.model == f"{tmp_path}/my_model.py:Net"


@pytest.mark.parametrize("place", ["~", "$PLACE"])
def test_a_home_and_variables_are_known_in_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """At the prompt no shell writes them out."""
    home = tmp_path / "home"
    (home / "pictures").mkdir(parents=True)
    for file in ("my_data.py", "my_model.py"):
        (home / file).touch()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PLACE", str(home))
    monkeypatch.chdir(tmp_path)
    said = init("one.yaml", answers=f"{place}/pictures\n{place}/my_model.py:Net\n4\n50\n3\n")
    assert said.exit_code == 0, said.output
    settings = load_settings(["one.yaml"])
    assert (settings.data_args.dataset, settings.data_args.data_cache_dir) == ("folder", home / "pictures")
    assert settings.model_args.model == f"{home}/my_model.py:Net"
    assert init("two.yaml", "--data", f"{place}/my_data.py:load", "--yes").exit_code == 0
    assert load_settings(["two.yaml"]).data_args.dataset == f"{home}/my_data.py:load"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("there.yaml",), "there.yaml is there already"),
        (("nowhere/one.yaml",), "no folder nowhere"),
        (("one.yaml", "--weakest", "0"), "0 is not in the range"),
        (("one.yaml", "--data", "nopics"), "--data nopics: no folder, FILE.py:FUNCTION or suite of that name; did you"),
        (("one.yaml", "--data", "$NOWHERE_AT_ALL/pictures"), "the environment has no variable NOWHERE_AT_ALL"),
        (("one.yaml", "--data", "folder"), "--data folder: no folder"),
        (("one.yaml", "--data", "mine.py:load"), "--data mine.py:load: no file "),
        (("one.yaml", "--model", "net.py"), "--model net.py: no FILE.py:NAME, torchvision:NAME or built-in network"),
        (("one.yaml", "--model", "resnet12"), "of that name; did you mean `resnet1"),
        (("one.yaml", "--model", "net.py:Net"), "--model net.py:Net: no file "),
    ],
)
def test_what_cannot_be_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.yaml").write_text("mine")
    result = init(*arguments, "--yes")
    assert result.exit_code == 2
    assert said in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there.yaml"]
    assert Path("there.yaml").read_text() == "mine"
