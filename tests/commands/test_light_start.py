"""What a command shows of itself, and what it reads from files, comes at once: nothing heavy is loaded for it."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import fedml_dapper.commands
from fedml_dapper.cli import SUMMARIES, main
from fedml_dapper.deployment.format_names import FORMAT_NAMES as OFFERED
from fedml_dapper.export import FORMATS

HEAVY = {"torch", "fedml", "sklearn", "scipy", "optuna", "matplotlib", "pandas", "numpy", "onnx", "PIL"}
DRAWING = {"matplotlib", "numpy", "PIL"}
"""What a page with pictures needs."""
[LEDGER] = Path(__file__).parents[2].glob("results/small/cells/office_caltech10-fedavg-76ceaab6d6-seed1/ledger.*")
NO_COMMANDS = {"__init__", "complaint", "experiment", "fedml", "options", "server_options"}
LOADED = """
import json, sys
from fedml_dapper.cli import main
for arguments in json.loads(sys.argv[1]):
    main(arguments, standalone_mode=False)
    print(json.dumps([arguments, sorted(set(sys.modules) & set(json.loads(sys.argv[2])))]), file=sys.stderr)
"""


def test_the_overview_names_every_command() -> None:
    there = {file.stem for file in Path(fedml_dapper.commands.__path__[0]).glob("*.py")} - NO_COMMANDS
    assert set(SUMMARIES) == there
    context = click.Context(main)
    assert all(main.get_command(context, name) for name in SUMMARIES)
    assert tuple(sorted(FORMATS)) == OFFERED


def test_alone_it_shows_five_commands_that_fit_a_terminal() -> None:
    lines = CliRunner().invoke(main, []).stdout.splitlines()
    assert [line.split()[1] in SUMMARIES for line in lines[:5]] == [True] * 5
    assert lines[5] == ""
    assert max(map(len, lines)) <= 80


def heavy_after(asked: Sequence[Sequence[str]], **environment: str) -> dict[str, set[str]]:
    """Which heavy packages are loaded after each of the commands ``asked``, one after another in one process."""
    answer = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps(asked), json.dumps(sorted(HEAVY))],
        capture_output=True, text=True, check=True, env=os.environ | environment,
    )  # fmt: skip
    loaded = [json.loads(line) for line in answer.stderr.splitlines() if line.startswith("[[")]  # others are warnings
    assert [arguments for arguments, _ in loaded] == asked
    return {" ".join(arguments): set(found) for arguments, found in loaded}


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A finished run of which there is the ledger alone."""
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(LEDGER, folder)
    return folder


def test_help_and_version_load_nothing_heavy() -> None:
    asked = [[], ["--version"], ["--help"], *([name, "--help"] for name in SUMMARIES), ["data", "check", "--help"]]
    assert {name: found for name, found in heavy_after(asked).items() if found} == {}


def test_compare_loads_what_draws_where_it_draws(run_folder: Path) -> None:
    runs = ["compare", str(run_folder), str(run_folder)]
    figures, page = heavy_after([[*runs, "--json"], [*runs, "-o", str(run_folder / "page.html")]]).values()
    assert figures == set()
    assert page == DRAWING


@pytest.mark.nightly
def test_report_and_data_check_load_what_reads_and_draws_pictures(run_folder: Path) -> None:
    with lzma.open(run_folder / LEDGER.name) as packed:
        (run_folder / LEDGER.name.removesuffix(".xz")).write_bytes(packed.read())
    data, report = heavy_after([["data", "check", "--dataset", "digits_offline"], ["report", str(run_folder)]]).values()
    assert data == {"torch", "numpy", "PIL"}  # torch brings pictures to their size
    assert report <= data | DRAWING


def test_doctor_leaves_to_another_process_what_may_be_broken(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemError('broken')")  # so that the other process is soon done
    assert heavy_after([["doctor"]], PYTHONPATH=str(tmp_path)) == {"doctor": set()}


@pytest.mark.nightly
def test_a_run_loads_what_draws_after_it_has_trained() -> None:
    code = (
        "import json, sys; from pathlib import Path; from fedml_dapper.commands.experiment import build_experiment;"
        "from fedml_dapper.config import experiment_file, load_settings;"
        "build_experiment(load_settings([experiment_file(Path('quickstart.yaml'))])); print(json.dumps([*sys.modules]))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(json.loads(answer.stdout.splitlines()[-1])) == {"torch", "numpy", "PIL"}


UNUSED = {
    "fedml", "torch._dynamo", "torch._inductor", "torch.onnx", "torchvision", "sympy", "networkx", "scipy", "sklearn",
    "pandas", "cryptography", "grpc", "prometheus_client", "wandb", "onnx", "opacus", "optuna", "mpi4py", "tensorboard",
}  # fmt: skip
"""What a simulation in one process has no use for."""


@pytest.mark.long
def test_a_run_in_one_process_loads_its_own_method_and_nothing_heavy_beside_torch(tmp_path: Path) -> None:
    command = ["run", "-c", "quickstart.yaml", "--output", str(tmp_path / "run")]
    for change in ("comm_round=1", "client_num_per_round=1", "epochs=1", "model_args.width=4", "workers=1"):
        command += ["--set", change]
    code = (
        "import json, sys; from fedml_dapper.cli import main;"
        f"main({command}, standalone_mode=False); print(json.dumps([*sys.modules]))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(answer.stdout.splitlines()[-1]))
    assert loaded & UNUSED == set()
    catalogue = "fedml_dapper.methods.catalogue."
    assert {name for name in loaded if name.startswith(catalogue)} == {f"{catalogue}dapperfl_slim"}


@pytest.mark.parametrize("name", ["--version", "--help"])
def test_version_and_overview_do_without_settings(name: str) -> None:
    code = f"import sys; from fedml_dapper.cli import main; main(['{name}'], standalone_mode=False)"
    answer = subprocess.run(
        [sys.executable, "-c", f"{code}; print('pydantic' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert answer.stdout.endswith("False\n")
