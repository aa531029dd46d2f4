"""Levels of silos that name their devices when they join: the largest that fits, or less where rounds take too long."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedml_dapper.config import FleetArgs, ModelArgs
from fedml_dapper.fleet.demand import Demand, demands
from fedml_dapper.fleet.families import family_of
from fedml_dapper.fleet.fitting import Budget, Fit, Means, fit, use_of
from fedml_dapper.fleet.planning import means_of, network_label
from fedml_dapper.fleet.profiles import DeviceProfile, find_network
from fedml_dapper.methods import Method
from fedml_dapper.pruning import Device


@dataclass(frozen=True)
class _Joined:
    means: Means
    times_slower: float = 1.0
    """Training time over that of the profile."""


class JoiningDevices:
    """The levels that the devices of silos can run under one method, as far as they are known."""

    def __init__(self, fleet: FleetArgs, method: Method[Any], model: ModelArgs) -> None:
        self._method = method
        self._model = model
        self._network = None if fleet.network is None else find_network(fleet.network)
        self._budget = Budget(fleet.round_s, fleet.memory_share)
        self._joined: dict[int, _Joined] = {}

    def fit(self, client: Device, profile: DeviceProfile) -> Fit:
        """Return the largest level that ``client`` can run on the device of ``profile``.

        The device counts as being as slow as it has proved to be in earlier rounds.

        Raises:
            ConfigError: The profile does not say how fast its network is, and the fleet names none.
        """
        label = network_label(self._model, self._method)
        family = family_of(self._method.problem.backbone)
        means, _ = means_of(profile, self._network, label, family, self._method, client)
        before = self._joined.get(client.client_id)
        slower = before.times_slower if before is not None and before.means.device == profile else 1.0
        self._joined[client.client_id] = _Joined(means, slower)
        return self._fit(self._joined[client.client_id])

    def after(self, client_id: int, level: int, seconds: float) -> Fit | None:
        """Return what a silo can run whose training at ``level`` took so long.

        None where it is done within the round's time, as planned, or where its device is not known, or where it was
        planned to take no time at all, so that nothing can be said of how much slower it is.
        """
        joined = self._joined.get(client_id)
        demand = next((one for one in self._demands if one.level == level), None)
        if joined is None or demand is None:
            return None
        use = use_of(demand, joined.means, self._budget)
        if use.network_s + seconds <= self._budget.round_s or use.training_s <= 0:
            return None
        slower = max(joined.times_slower, seconds / use.training_s)
        self._joined[client_id] = _Joined(joined.means, slower)
        return self._fit(self._joined[client_id])

    def _fit(self, joined: _Joined) -> Fit:
        return fit(self._demands, joined.means, self._budget, joined.times_slower)

    @cached_property
    def _demands(self) -> tuple[Demand, ...]:
        return demands(self._method)
