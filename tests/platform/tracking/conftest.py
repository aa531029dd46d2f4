from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedml_dapper.config import Settings
from fedml_dapper.federation import RoundRecord, RunRecord, build_experiment, read_ledger

from ..conftest import OfflineProcess

SettingsFactory = Callable[..., Settings]


@pytest.fixture
def run_record(tiny_settings: SettingsFactory) -> RunRecord:
    return build_experiment(tiny_settings()).record()


class TrackedRun:
    """A tiny run through FedML in a process of its own, without a network and without keys."""

    def __init__(self, offline: OfflineProcess, settings: Settings) -> None:
        file = offline.folder / "tracked.yaml"
        file.write_text(settings.as_yaml())
        finished = offline.run("-m", "fedml_dapper", "--cf", file)
        assert finished.returncode == 0, finished.stderr
        self.output = finished.stdout + finished.stderr
        self.network_attempts = offline.network_attempts()
        [ledger] = offline.folder.glob("digits_offline-*/ledger.jsonl")
        self.folder: Path = ledger.parent
        self.rounds: list[RoundRecord] = read_ledger(ledger)[1]


@pytest.fixture
def tracked_run(offline: OfflineProcess, tiny_settings: SettingsFactory) -> Callable[..., TrackedRun]:
    return lambda *overrides: TrackedRun(offline, tiny_settings("epochs=1", *overrides))
