from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.evaluation import round_profile
from fedml_dapper.evaluation.round_profile import PROFILE_NAME, RoundProfiler, RunProfile
from fedml_dapper.federation import build_experiment, simulate
from fedml_dapper.process import profiling
from fedml_dapper.process.profiling import Profiler, fetching, part

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The profiler's: it moves by what a test does, which takes no time of its own."""
    made = SimpleNamespace(now=0.0, perf_counter=lambda: made.now)
    monkeypatch.setattr(profiling, "time", made)
    return made


def test_time_belongs_to_the_innermost_part(clock: SimpleNamespace) -> None:
    profiler = Profiler(CPU)
    with profiler.active(), part("aggregation"):
        clock.now += 2
        with part("pruning"):
            clock.now += 5
        clock.now += 1
    assert (profiler.seconds["aggregation"], profiler.seconds["pruning"], profiler.seconds["data"]) == (3, 5, 0)


def test_nothing_is_counted_outside_or_in_other_threads(clock: SimpleNamespace) -> None:
    profiler = Profiler(CPU)

    @part("wire")
    def work() -> None:
        clock.now += 1

    work()
    with profiler.active():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert profiler.seconds["wire"] == 0
        work()
    assert profiler.seconds["wire"] == 1


def test_fetching_counts_the_source_and_not_its_user(clock: SimpleNamespace) -> None:
    def source() -> Iterator[int]:
        for number in range(2):
            clock.now += 1
            yield number

    profiler = Profiler(CPU)
    with profiler.active():
        for _ in fetching("data", source()):
            clock.now += 10
    assert profiler.seconds["data"] == 2


def test_torch_s_profiler_shows_the_parts() -> None:
    here = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=here) as profile, part("aggregation"), part("pruning"):
        torch.ones(2).sum()
    with part("wire"):
        pass
    seen = {event.key: event for event in profile.key_averages()}
    assert seen["aggregation"].cpu_time_total >= seen["pruning"].cpu_time_total >= seen["aten::sum"].cpu_time_total
    assert "wire" not in seen


def test_a_part_that_raises_is_left(clock: SimpleNamespace) -> None:
    profiler = Profiler(CPU)
    with profiler.active():
        with pytest.raises(ValueError, match="here"), part("data"):
            raise ValueError("here")
        clock.now += 1
        with part("wire"):
            pass
    assert profiler.seconds["data"] == 0


@pytest.mark.nightly
def test_the_parts_of_a_round_add_up(
    tmp_path: Path, tiny_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    own_time = SimpleNamespace(perf_counter=time.process_time)  # in which other processes take no part
    for module in (profiling, round_profile):
        monkeypatch.setattr(module, "time", own_time)
    profiler = Profiler(CPU)
    watcher = RoundProfiler(profiler, "fp32")
    with profiler.active():
        simulate(build_experiment(tiny_settings()), [watcher])
    profile = watcher.profile()
    assert profile is not None
    assert len(profile.rounds) == 2
    for one in profile.rounds:
        assert sum(one.parts.values()) == pytest.approx(one.total)
        assert all(one.parts[name] > 0 for name in ("forward/backward", "optimizer", "data", "pruning", "aggregation"))
    second = profile.rounds[1].parts  # the first one also imports what it needs
    assert max(second, key=second.__getitem__) == "forward/backward"
    profile.save(tmp_path / PROFILE_NAME)
    assert RunProfile.model_validate_json((tmp_path / PROFILE_NAME).read_bytes()) == profile
