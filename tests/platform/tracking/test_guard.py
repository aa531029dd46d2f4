from __future__ import annotations

from collections.abc import Callable

import pytest

from fedml_dapper.config import Settings
from fedml_dapper.federation import RoundRecord, RunObserver, RunRecord, build_experiment, simulate
from fedml_dapper.federation.run_folder.records import RoundSeconds

from ...grids import sampled

tracking = pytest.importorskip("fedml_dapper.platform.tracking", reason="fedml is not installed")

SettingsFactory = Callable[..., Settings]


NOTHING_HAPPENED = RoundRecord(
    round=1, scores=None, clients=(), seconds=RoundSeconds(total=1.0, evaluation=0.0)
)  # fmt: skip


class Failing(RunObserver):
    """Works until the hook ``where`` is called."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.heard: list[str] = []

    def __getattribute__(self, name: str) -> object:
        if name in ("run_started", "round_started", "client_stepped", "round_finished", "run_finished"):
            self.heard.append(name)
            if name == self.where:
                raise OSError("disk\nfull")
        return super().__getattribute__(name)


@pytest.mark.long
@pytest.mark.parametrize(
    ("where", "when"),
    sampled(
        [
            ("run_started", "at the start of the run"),
            ("round_started", "at the start of round 1"),
            ("client_stepped", "while client"),
            ("round_finished", "at the end of round 1"),
            ("run_finished", "at the end of the run"),
        ],
        always=("client_stepped", "run_finished"),
        quick=("client_stepped",),
    ),
)
def test_first_failure_is_one_line_and_training_goes_on_without_the_sink(
    where: str, when: str, tiny_settings: SettingsFactory, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Failing(where)
    guarded = tracking.GuardedSink("a tracker", lambda _: sink)
    _, rounds = simulate(build_experiment(tiny_settings("epochs=1")), [guarded])
    assert len(rounds) == 2
    [warning] = caplog.messages
    assert f"tracking with a tracker failed {when}" in warning
    assert "(OSError: disk full); training goes on without it" in warning
    assert sink.heard.count(where) == 1
    assert sink.heard[-1] == where


def test_a_sink_that_cannot_be_opened_is_reported_too(run_record: RunRecord, caplog: pytest.LogCaptureFixture) -> None:
    def cannot(_: RunRecord) -> RunObserver:
        raise ImportError("no such package")

    guarded = tracking.GuardedSink("a tracker", cannot)
    guarded.run_started(run_record)
    guarded.round_started(1, [0])
    guarded.run_finished()
    assert len(caplog.messages) == 1


def test_an_interrupt_is_not_a_failure(run_record: RunRecord) -> None:
    class Interrupted(RunObserver):
        def round_finished(self, record: RoundRecord) -> None:
            raise KeyboardInterrupt

    guarded = tracking.GuardedSink("a tracker", lambda _: Interrupted())
    guarded.run_started(run_record)
    with pytest.raises(KeyboardInterrupt):
        guarded.round_finished(NOTHING_HAPPENED)
