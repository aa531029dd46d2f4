"""Where a test run's time went, by folder, and in which tests most of it. A plugin, asked for by --seconds."""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePosixPath

import pytest

from tests.grids import PARTS, commit, part_of_this_commit

SLOWEST = 10


class Seconds:
    """The plugin of the process that all tests report to."""

    def __init__(self) -> None:
        self._of_test: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._of_test[report.nodeid] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("seconds by folder")
        for line in table(self._of_test):
            terminalreporter.write_line(line)
        terminalreporter.write_line(
            f"grids: their representatives and part {part_of_this_commit() + 1} of {PARTS}, by commit {commit()[:7]}"
        )


def table(of_test: dict[str, float]) -> list[str]:
    """One line a folder and one a slow test, the longest first."""
    of_folder: defaultdict[str, list[float]] = defaultdict(list)
    for test, seconds in of_test.items():
        of_folder[str(PurePosixPath(test.partition("::")[0]).parent)].append(seconds)
    folders = sorted(of_folder.items(), key=lambda item: -sum(item[1]))
    slowest = sorted(of_test.items(), key=lambda item: -item[1])[:SLOWEST]
    return [
        *(f"{sum(seconds):8.1f} s  {len(seconds):5}  {folder}" for folder, seconds in folders),
        f"{sum(of_test.values()):8.1f} s  {len(of_test):5}  in all",
        f"the {len(slowest)} slowest:",
        *(f"{seconds:8.1f} s  {test}" for test, seconds in slowest),
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seconds", action="store_true", help="end with a table of seconds by folder")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--seconds") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Seconds())
