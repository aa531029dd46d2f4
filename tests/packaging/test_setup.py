"""What ``run/setup.sh`` installs, and when; pip itself is a script that writes down how it was called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDER = """#!/bin/sh
echo "$(basename "$0") $*" >>"{calls}"
"""
TOOLS = ("python", "fedml-dapper", "pytest", "ruff", "mypy", "codespell")
INDEX = "https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True)
class Clone:
    """A clone whose environment's programs only say that they were called."""

    folder: Path

    def bash(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        around = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        path = f"{self.folder / 'bin'}:{around['PATH']}"
        return subprocess.run(
            ["bash", *words], cwd=self.folder, env={**around, "PATH": path, **environment},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def installs(self, *words: str, **environment: str) -> str:
        """What pip is asked for by ``bash WORDS``, all calls together; empty where it is not called."""
        ran = self.bash(*words, **environment)
        assert ran.returncode == 0, ran.stderr
        return " ".join(call for call in self.calls() if " pip install " in call)

    def calls(self) -> list[str]:
        """The calls since one last asked."""
        noted = self.folder / "calls"
        found = noted.read_text().splitlines() if noted.exists() else []
        noted.unlink(missing_ok=True)
        return found


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    shutil.copytree(ROOT / "run", tmp_path / "run")
    for name in ("setup.py", "constraints.txt", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in TOOLS:
        (programs / name).write_text(RECORDER.format(calls=tmp_path / "calls"))
        (programs / name).chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3.11").symlink_to(sys.executable)
    return Clone(tmp_path)


def test_light_installs_the_package_alone_and_then_nothing(clone: Clone) -> None:
    asked = clone.installs("run/setup.sh", "--light")
    assert asked.endswith("--constraint constraints.txt --editable .")
    assert "pytest" not in asked
    assert clone.installs("run/setup.sh", "--light") == ""
    assert clone.installs("run/setup.sh", "--for-a-run") == ""


def test_the_quickstart_runs_in_a_light_environment_as_it_is(clone: Clone) -> None:
    clone.installs("run/setup.sh", "--light")
    assert clone.bash("run/quickstart.sh", "--set", "comm_round=5").returncode == 0
    assert clone.calls() == ["fedml-dapper run -c config/quickstart.yaml --set comm_round=5"]


@pytest.mark.parametrize("script", ["run/setup.sh", "run/test.sh"])
def test_what_wants_the_tools_adds_them_to_a_light_environment(clone: Clone, script: str) -> None:
    clone.installs("run/setup.sh", "--light")
    assert clone.installs(script).endswith("--editable .[dev]")
    for words in ([], ["--light"], ["--for-a-run"]):
        assert clone.installs("run/setup.sh", *words) == ""


def test_a_first_quickstart_installs_everything_so_that_the_tests_need_no_network(clone: Clone) -> None:
    assert clone.installs("run/quickstart.sh").endswith("--editable .[dev]")
    assert clone.installs("run/test.sh") == ""


@pytest.mark.parametrize(("kind", "again"), [(["--light"], "--editable ."), ([], "--editable .[dev]")])
def test_other_versions_are_installed_in_the_same_measure(clone: Clone, kind: list[str], again: str) -> None:
    clone.installs("run/setup.sh", *kind)
    with (clone.folder / "constraints.txt").open("a") as constraints:
        constraints.write("# reviewed\n")
    assert clone.installs("run/setup.sh", "--for-a-run").endswith(again)


@pytest.mark.parametrize("is_for_cpus", [False, True])
def test_gpu_libraries_are_left_out_where_torch_is_a_build_for_cpus(clone: Clone, is_for_cpus: bool) -> None:
    build = "2.15.0+cpu" if is_for_cpus else "2.15.0"
    (clone.folder / ".venv" / "lib" / "python3.11" / "site-packages" / f"torch-{build}.dist-info").mkdir(parents=True)
    asked = clone.installs("run/setup.sh")
    for package in ("nvidia-cudnn-cu13==", "cuda-toolkit==", "triton=="):
        assert (f" {package}" in asked) is not is_for_cpus
    assert " tritonclient==" in asked


def test_light_says_how_to_do_without_gpu_libraries_unless_that_is_what_it_does(clone: Clone) -> None:
    hint = f"PIP_EXTRA_INDEX_URL={INDEX} bash run/setup.sh --light"
    assert hint in clone.bash("run/setup.sh", "--light").stdout
    (clone.folder / ".venv" / "installed").unlink()
    assert INDEX not in clone.bash("run/setup.sh", "--light", PIP_EXTRA_INDEX_URL=INDEX).stdout


def test_an_option_that_it_does_not_know_is_refused_before_anything_is_installed(clone: Clone) -> None:
    refused = clone.bash("run/setup.sh", "--lite")
    assert (refused.returncode, refused.stderr) == (2, "usage: bash run/setup.sh [--light | --for-a-run]\n")
    assert clone.calls() == []
