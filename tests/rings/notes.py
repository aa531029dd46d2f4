"""Notes of the nightly ring, as a plugin of pytest: which tests passed, and which lines of the package they ran.

Each process of a test run writes both down together, every few tests. So a run that is ended, however it is ended, goes
on where it was, and what it measured of coverage is kept.

Loaded by ``-p tests.rings.notes``, before anything of the package is imported, with the folder of notes in the
environment variable :data:`FOLDER`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import coverage
import pytest

FOLDER = "DAPPER_NIGHTLY"
COLLECTED, PASSED, DONE_BEFORE, COVERAGE = "collected", "passed", "done_before", "coverage"
"""Files of the folder: node ids of all tests, of those that passed, of those that passed before this run began; and
the beginning of the names of what coverage measured."""
EVERY = 20
"""Tests between two writings: each takes some 50 ms."""


def lines_of(file: Path) -> set[str]:
    """What was noted in ``file``."""
    return set(file.read_text(encoding="utf-8").splitlines()) if file.exists() else set()


def note(file: Path, lines: Iterable[str]) -> None:
    """Add ``lines`` to a file of notes, which several processes may do at once."""
    with file.open("a", encoding="utf-8") as notes:
        notes.write("".join(f"{line}\n" for line in lines))


class Notes:
    """The plugin in a process that runs tests. It measures from the moment it is made."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fresh: list[str] = []
        self._failed: set[str] = set()
        self._coverage = coverage.Coverage(
            data_file=str(folder / COVERAGE), data_suffix=True, branch=True, source_pkgs=["fedml_dapper"]
        )
        self._coverage.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what passed before this run began: a list on which all its processes agree."""
        (self._folder / COLLECTED).write_text("".join(f"{item.nodeid}\n" for item in items), encoding="utf-8")
        done = lines_of(self._folder / DONE_BEFORE)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
        items[:] = [item for item in items if item.nodeid not in done]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        if report.when == "teardown" and report.nodeid not in self._failed:
            self._fresh.append(report.nodeid)
        if len(self._fresh) >= EVERY:
            self._write()

    def pytest_sessionfinish(self) -> None:
        self._write()

    def _write(self) -> None:
        self._coverage.save()
        note(self._folder / PASSED, self._fresh)
        self._fresh.clear()


RUNS_TESTS = FOLDER in os.environ and "PYTEST_XDIST_WORKER" in os.environ
NOTES = Notes(Path(os.environ[FOLDER])) if RUNS_TESTS else None  # at once: what is imported from here on is measured


def pytest_configure(config: pytest.Config) -> None:
    if NOTES is not None:
        config.pluginmanager.register(NOTES)
