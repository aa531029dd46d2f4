"""From a device and a budget to the largest level that it can run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedml_dapper.fleet.demand import Demand
from fedml_dapper.fleet.profiles import DeviceProfile, Speed

Limit = Literal["memory", "time", "network"]


@dataclass(frozen=True)
class Budget:
    """What a round may take."""

    round_s: float
    memory_share: float


@dataclass(frozen=True)
class Means:
    """What a client has for a round."""

    device: DeviceProfile
    speed: Speed
    downlink_mbps: float
    uplink_mbps: float
    num_samples: int
    """That it trains on in an epoch."""


@dataclass(frozen=True)
class Use:
    """What a level takes of a client, beside what there is."""

    memory_mb: float
    memory_limit_mb: float
    download_s: float
    training_s: float
    upload_s: float
    limit_s: float

    @property
    def network_s(self) -> float:
        """Download and upload."""
        return self.download_s + self.upload_s

    @property
    def seconds(self) -> float:
        """Download, training and upload."""
        return self.network_s + self.training_s

    @property
    def limits(self) -> tuple[Limit, ...]:
        """What there is too little of. A round that is too long is the network's fault where that takes most of it."""
        slower: Limit = "network" if self.network_s > self.training_s else "time"
        limits: list[tuple[Limit, bool]] = [
            ("memory", self.memory_mb > self.memory_limit_mb),
            (slower, self.seconds > self.limit_s),
        ]
        return tuple(name for name, exceeded in limits if exceeded)

    @property
    def shortage(self) -> str:
        """By how much, in words."""
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
    """Of that level; of the smallest where there is none."""
    limited_by: tuple[Limit, ...]
    """What keeps the client from the next larger level, or from all; empty at the largest."""


def fit(demands: Sequence[Demand], means: Means, budget: Budget, times_slower: float = 1.0) -> Fit:
    """The first of ``demands``, strongest level first, that ``means`` and ``budget`` allow, where training takes so
    many times as long as the device's speed says."""
    limited_by: tuple[Limit, ...] = ()
    for demand in demands:
        use = use_of(demand, means, budget, times_slower)
        if not use.limits:
            return Fit(demand.level, use, limited_by)
        limited_by = use.limits
    return Fit(None, use, limited_by)


def use_of(demand: Demand, means: Means, budget: Budget, times_slower: float = 1.0) -> Use:
    """What a level takes of a client."""
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
    """A round's local training on so many samples, every network of a step priced by its own size."""
    return num_samples * sum(work.epochs * sum(map(speed.seconds, work.macs)) for work in demand.work)
