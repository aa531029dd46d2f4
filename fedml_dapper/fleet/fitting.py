"""The largest level that a device can run within a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedml_dapper.fleet.demand import Demand
from fedml_dapper.fleet.profiles import DeviceProfile, Speed

Limit = Literal["memory", "time", "network"]


@dataclass(frozen=True)
class Budget:
    """Limits of a round."""

    round_s: float
    memory_share: float
    """Share of the device's memory."""


@dataclass(frozen=True)
class Means:
    """What a client has for a round: its device, its connection and its samples."""

    device: DeviceProfile
    speed: Speed
    downlink_mbps: float
    uplink_mbps: float
    num_samples: int
    """Samples that it trains on in an epoch."""


@dataclass(frozen=True)
class Use:
    """What a level takes of a client, and the limits on it."""

    memory_mb: float
    memory_limit_mb: float
    download_s: float
    training_s: float
    upload_s: float
    limit_s: float

    @property
    def network_s(self) -> float:
        """Seconds of download and upload."""
        return self.download_s + self.upload_s

    @property
    def seconds(self) -> float:
        """Seconds of download, training and upload."""
        return self.network_s + self.training_s

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits that are exceeded. A round that is too long is blamed on whatever takes most of its time."""
        slower: Limit = "network" if self.network_s > self.training_s else "time"
        limits: list[tuple[Limit, bool]] = [
            ("memory", self.memory_mb > self.memory_limit_mb),
            (slower, self.seconds > self.limit_s),
        ]
        return tuple(name for name, exceeded in limits if exceeded)

    @property
    def shortage(self) -> str:
        """How much is needed of how much, for each exceeded limit, in words."""
        texts = {
            "memory": f"{self.memory_mb:.0f} MB of {self.memory_limit_mb:.0f} MB",
            "time": f"{self.seconds:.1f} s of {self.limit_s:g} s",
            "network": f"{self.seconds:.1f} s, {self.network_s:.1f} of them on the network, of {self.limit_s:g} s",
        }
        return " and ".join(texts[limit] for limit in self.limits)


@dataclass(frozen=True)
class Fit:
    """The largest level that a client can run; None where it can run none."""

    level: int | None
    use: Use
    """What that level takes; what the smallest takes where none can be run."""
    limited_by: tuple[Limit, ...]
    """Limits that the next larger level would exceed; empty at the largest level."""


def fit(demands: Sequence[Demand], means: Means, budget: Budget, times_slower: float = 1.0) -> Fit:
    """Return the first of ``demands``, strongest level first, that ``means`` and ``budget`` allow.

    Training takes ``times_slower`` times as long as the device's speed says.
    """
    limited_by: tuple[Limit, ...] = ()
    for demand in demands:
        use = use_of(demand, means, budget, times_slower)
        if not use.limits:
            return Fit(demand.level, use, limited_by)
        limited_by = use.limits
    return Fit(None, use, limited_by)


def use_of(demand: Demand, means: Means, budget: Budget, times_slower: float = 1.0) -> Use:
    """Return what a level takes of a client."""
    device = means.device
    runtime = 0.0 if device.runtime_mb is None else device.runtime_mb.value
    factor = 1.0 if device.memory_factor is None else device.memory_factor.value
    megabits_down = 8e-6 * demand.bytes_down
    megabits_up = 8e-6 * demand.bytes_up
    return Use(
        memory_mb=runtime + factor * demand.memory_bytes / 1e6,
        memory_limit_mb=budget.memory_share * device.memory_mb.value,
        download_s=megabits_down / means.downlink_mbps,
        training_s=times_slower * training_seconds(demand, means.speed, means.num_samples),
        upload_s=megabits_up / means.uplink_mbps,
        limit_s=budget.round_s,
    )


def training_seconds(demand: Demand, speed: Speed, num_samples: int) -> float:
    """Return the seconds of a round's local training, with every network of a step timed by its own size."""
    return num_samples * sum(work.epochs * sum(map(speed.seconds, work.macs)) for work in demand.work)
