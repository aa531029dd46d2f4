"""What ``pip install`` brings is enough: a wheel is built and used in an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedml_dapper.benches.grid import bench_names
from fedml_dapper.config import SHIPPED, experiment_file

ROOT = Path(__file__).parents[1]
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check")


def python(arguments: Sequence[str | Path], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=os.environ | {"HOME": str(cwd), "COLUMNS": "200"} | environment,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel of the present files was installed into."""
    tree, wheels, target = (tmp_path_factory.mktemp(name) for name in ("tree", "wheels", "target"))
    for folder in ("fedml_dapper", "config"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree)
    built = python(["-m", "pip", "wheel", ".", *OFFLINE, "--wheel-dir", wheels], tree)
    assert built.returncode == 0, built.stderr
    [wheel] = wheels.iterdir()
    put = python(["-m", "pip", "install", *OFFLINE, "--target", target, wheel], tree)
    assert put.returncode == 0, put.stderr
    shutil.rmtree(tree)
    return target


@pytest.mark.long
def test_it_holds_what_config_holds(installed: Path) -> None:
    def files(folder: Path) -> dict[Path, bytes]:
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert files(installed / "fedml_dapper" / "shipped") == files(ROOT / "config")


@pytest.mark.nightly
def test_the_benches_are_there_outside_of_a_clone(installed: Path, tmp_path: Path) -> None:
    listed = python(["-m", "fedml_dapper.entry", "bench", "--list"], tmp_path, PYTHONPATH=str(installed))
    assert listed.returncode == 0, listed.stderr
    assert [line.split()[0] for line in listed.stdout.splitlines()] == bench_names()


@pytest.mark.nightly
def test_a_shipped_experiment_is_found_by_name_and_that_is_said(installed: Path, tmp_path: Path) -> None:
    words = ["run", "-c", "quickstart.yaml", "-c", "config/methods/fedavg.yaml", "--set", "dataset=my_digits"]
    refused = python(["-m", "fedml_dapper.entry", *words], tmp_path, PYTHONPATH=str(installed))
    shipped = installed / "fedml_dapper" / "shipped"
    first, its_place, second, other_place, error = refused.stderr.splitlines()
    assert first == "quickstart.yaml: no such file here, taking the shipped one:"
    assert its_place == str(shipped / "quickstart.yaml")
    assert second.endswith("taking the shipped one:")
    assert other_place == str(shipped / "methods" / "fedavg.yaml")
    assert (refused.returncode, "my_digits" in error) == (2, True)


def test_a_file_of_ones_own_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert experiment_file("quickstart.yaml") == SHIPPED / "quickstart.yaml"
    (tmp_path / "quickstart.yaml").touch()
    assert experiment_file("quickstart.yaml") == Path("quickstart.yaml")
    assert experiment_file(tmp_path / "digits.yaml") == tmp_path / "digits.yaml"
    assert experiment_file("nothing.yaml") == Path("nothing.yaml")
