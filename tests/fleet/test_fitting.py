"""From figures of a device to the level it runs, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedml_dapper.fleet.demand import Demand, Work
from fedml_dapper.fleet.fitting import Budget, Limit, Means, fit, use_of
from fedml_dapper.fleet.profiles import DeviceProfile, Figure, Source, Speed, StepTime

MARK = {"mark": "measured", "source": "trial"}
MB, GIGA = 1_000_000, 1_000_000_000


def figure(value: float) -> Figure:
    return Figure.model_validate({"value": value, **MARK})


def means(memory_mb: float = 1000, gmacs: float = 10, mbps: float = 8, **more: float) -> Means:
    speed = Speed.model_validate({"network": "x", "family": "convolutions", "gmacs_per_s": gmacs, **MARK})
    profile = DeviceProfile(
        description="a board", sources={"trial": Source(title="t", address="a")}, memory_mb=figure(memory_mb),
        speeds=(speed,), **{key: figure(value) for key, value in more.items()},
    )  # fmt: skip
    return Means(profile, speed, mbps, mbps, num_samples=10)


def demand(level: int, share: float) -> Demand:
    """A level of ``share`` of 500 MB, 10 GMACs a sample in each of 2 epochs, and 10 MB each way."""
    work = Work(2, (round(share * 10 * GIGA),))
    size = round(share * 10 * MB)
    return Demand(level, 1 - share, round(share * 500 * MB), (work,), size, size)


LEVELS = (demand(1, 1.0), demand(2, 0.5), demand(3, 0.25))


def test_a_round_is_download_training_and_upload() -> None:
    """20 MB at 8 Mbit/s are 20 s; 2 epochs x 10 samples x 10 GMACs at 10 GMAC/s are 20 s."""
    found = fit(LEVELS, means(), Budget(round_s=40, memory_share=0.5))
    assert (found.level, found.limited_by) == (1, ())
    assert (found.use.network_s, found.use.training_s) == pytest.approx((20, 20))
    assert (found.use.memory_mb, found.use.memory_limit_mb) == (500, 500)


def test_each_way_has_its_own_bytes_and_speed() -> None:
    """10 MB at 40 Mbit/s are 2 s, 4 MB at 8 Mbit/s 4 s."""
    asked = replace(demand(1, 1.0), bytes_up=4 * MB)
    found = use_of(asked, replace(means(), downlink_mbps=40, uplink_mbps=8), Budget(round_s=60, memory_share=1))
    assert (found.download_s, found.upload_s) == pytest.approx((2, 4))


@pytest.mark.parametrize(
    ("device", "round_s", "share", "level", "limits"),
    [
        (means(), 39, 1.0, 2, ("time",)),
        (means(), 19, 1.0, 3, ("time",)),
        (means(mbps=4), 59, 1.0, 2, ("network",)),
        (means(), 60, 0.4, 2, ("memory",)),
        (means(), 39, 0.4, 2, ("memory", "time")),
        (means(), 60, 0.1, None, ("memory",)),
        (means(gmacs=1), 30, 1.0, None, ("time",)),
        (means(runtime_mb=300), 60, 0.6, 2, ("memory",)),
        (means(memory_factor=1.3), 60, 0.6, 2, ("memory",)),
    ],
)
def test_the_largest_level_that_fits_and_what_keeps_from_the_next(
    device: Means, round_s: float, share: float, level: int | None, limits: tuple[Limit, ...]
) -> None:
    found = fit(LEVELS, device, Budget(round_s, share))
    assert (found.level, found.limited_by) == (level, limits)


def test_who_fits_nothing_is_told_by_how_much_the_smallest_misses() -> None:
    found = fit(LEVELS, means(gmacs=1, memory_mb=100), Budget(round_s=30, memory_share=0.5))
    assert found.use.shortage == "125 MB of 50 MB and 55.0 s of 30 s"
    slow = fit(LEVELS, means(mbps=0.5), Budget(round_s=30, memory_share=1))
    assert slow.use.shortage == "85.0 s, 80.0 of them on the network, of 30 s"


def test_times_at_several_sizes_are_joined_by_lines() -> None:
    points = (StepTime(mmacs=100, ms=20), StepTime(mmacs=200, ms=30))
    speed = Speed.model_validate({"network": "x", "family": "convolutions", "ms_per_sample": points, **MARK})
    sizes = (50, 100, 150, 200, 400)
    assert [speed.seconds(size * MB) for size in sizes] == pytest.approx([0.01, 0.02, 0.025, 0.03, 0.06])
