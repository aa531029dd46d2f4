"""A second try for a few failed tests, each alone in a process of its own. A plugin, asked for by --once-more N.

A run in which at most N tests failed, and all of these pass when nothing runs beside them, passes. Its last lines name
them under ``flaky:``, and they are to be mended before anything else.
"""

from __future__ import annotations

import subprocess
import sys

import pytest


class OnceMore:
    """The plugin of the process that all tests report to."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._failed: dict[str, None] = {}
        self._not_collected = False
        self._flaky: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._not_collected = self._not_collected or report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus != pytest.ExitCode.TESTS_FAILED or self._not_collected or len(self._failed) > self._most:
            return
        for test in self._failed:
            print(f"\nonce more, alone: {test}", flush=True)
            if subprocess.run([sys.executable, "-m", "pytest", "-m", "", test], check=False).returncode != 0:
                return
        self._flaky = list(self._failed)
        session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        if self._flaky:
            print("flaky:", *self._flaky, sep="\n  ", flush=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--once-more", type=int, default=0, metavar="N", help="try failed tests again, alone, if there are at most N"
    )


def pytest_configure(config: pytest.Config) -> None:
    if (most := config.getoption("--once-more")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(OnceMore(most))
