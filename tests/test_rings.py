"""The rings of tests, by running pytest on folders of made-up tests: second tries, tables of seconds, notes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.grids import ROOT
from tests.rings.notes import COLLECTED, DONE_BEFORE, FOLDER, PASSED, lines_of, note
from tests.rings.seconds import table

FLAKY = """
from pathlib import Path

def test_passes_when_it_is_run_again():
    tried = Path(__file__).with_name("tried")
    first = not tried.exists()
    tried.touch()
    assert not first
"""
BROKEN = "def test_is_broken(): assert False\n"
SOUND = "def test_is_sound(): pass\n"
FLAKY_NAME = "test_flaky.py::test_passes_when_it_is_run_again"


def run_pytest(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DAPPER_"))}
    kept |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # other plugins take seconds to load
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "xdist", *arguments],
        cwd=folder, env=kept | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that pytest takes for a project."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_sound.py").write_text(SOUND)
    return tmp_path


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one_process", "xdist"])
def test_what_passes_at_its_second_try_passes_and_is_named_last(folder: Path, workers: tuple[str, ...]) -> None:
    (folder / "test_flaky.py").write_text(FLAKY)
    finished = run_pytest(folder, "-p", "tests.rings.once_more", "--once-more", "3", *workers)
    assert finished.returncode == 0, finished.stdout
    assert "1 failed, 1 passed" in finished.stdout
    assert finished.stdout.splitlines()[-2:] == ["flaky:", f"  {FLAKY_NAME}"]


def test_without_being_asked_nothing_is_tried_again(folder: Path) -> None:
    (folder / "test_flaky.py").write_text(FLAKY)
    finished = run_pytest(folder, "-p", "tests.rings.once_more")
    assert (finished.returncode, "flaky" in finished.stdout.splitlines()) == (1, False)


def test_what_is_broken_fails_beside_a_flaky_one(folder: Path) -> None:
    (folder / "test_flaky.py").write_text(FLAKY)
    (folder / "test_broken.py").write_text(BROKEN)
    finished = run_pytest(folder, "-p", "tests.rings.once_more", "--once-more", "3")
    assert finished.returncode == 1
    assert "flaky:" not in finished.stdout


@pytest.mark.parametrize("file", ["test_broken.py", "test_no_python.py"])
def test_many_failures_and_files_that_cannot_be_read_are_not_tried_again(folder: Path, file: str) -> None:
    broken = "import pytest\n@pytest.mark.parametrize('n', range(4))\ndef test_broken(n): assert False\n"
    (folder / file).write_text(broken if file == "test_broken.py" else "import nothing_of_that_name\n")
    finished = run_pytest(folder, "-p", "tests.rings.once_more", "--once-more", "3")
    assert finished.returncode not in (0, 5)
    assert "once more, alone" not in finished.stdout


def test_a_table_adds_up_folders_and_names_the_slowest() -> None:
    of_test = {f"tests/a/test_x.py::test_{number}": float(number) for number in range(12)} | {"tests/test_y.py::b": 2.5}
    lines = table(of_test)
    assert lines[0].split() == ["66.0", "s", "12", "tests/a"]
    assert lines[1].split() == ["2.5", "s", "1", "tests"]
    assert lines[2].split() == ["68.5", "s", "13", "in", "all"]
    assert lines[4].split() == ["11.0", "s", "tests/a/test_x.py::test_11"]
    assert len(lines) == 4 + 10


def test_the_table_ends_a_run_that_asks_for_it(folder: Path) -> None:
    finished = run_pytest(folder, "-p", "tests.rings.seconds", "--seconds", "-n", "1")
    assert "seconds by folder" in finished.stdout
    assert "the 1 slowest:" in finished.stdout


@pytest.mark.long
def test_what_passed_is_noted_and_left_out_the_next_time(folder: Path) -> None:
    (folder / "test_broken.py").write_text(BROKEN)
    (folder / "test_uses_the_package.py").write_text("def test_it():\n    import fedml_dapper.errors\n")
    notes = folder / "notes"
    notes.mkdir()
    command = ("-p", "tests.rings.notes", "-n", "1")
    first = run_pytest(folder, *command, **{FOLDER: str(notes)})
    passed = {"test_sound.py::test_is_sound", "test_uses_the_package.py::test_it"}
    assert (first.returncode, lines_of(notes / PASSED)) == (1, passed)
    assert lines_of(notes / COLLECTED) == passed | {"test_broken.py::test_is_broken"}
    assert len(list(notes.glob("coverage.*"))) == 1
    note(notes / DONE_BEFORE, passed)
    (folder / "test_broken.py").write_text(BROKEN.replace("False", "True"))
    second = run_pytest(folder, *command, **{FOLDER: str(notes)})
    assert "1 passed" in second.stdout
    assert lines_of(notes / PASSED) == lines_of(notes / COLLECTED)
    assert len(list(notes.glob("coverage.*"))) == 2
