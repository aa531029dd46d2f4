"""Who takes part, and at which capability level in which round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedml_dapper.config import Settings, read_silo_levels
from fedml_dapper.datasets import ClientData
from fedml_dapper.methods import ClientProfile, Method
from fedml_dapper.pruning import LEVEL_RULES, Device, Fleet, LevelRule, levels_by


class Roster:
    """The clients of an experiment as the server knows them.

    Levels are stated, by the silos' files, by ``data_args.clients`` or as a list, or a rule gives them. A rule of the
    user's own is asked before every round, a built-in one once. Raises :class:`ConfigError` for a rule that is not to
    be had or gives no levels.
    """

    def __init__(self, settings: Settings, method: Method[Any], clients: Sequence[ClientData]) -> None:
        args = settings.dapper_args.levels
        self._ratios, self._seed = args.ratios, settings.common_args.random_seed
        self._footprints = tuple(method.footprint(ratio) for ratio in args.ratios)
        self._devices = tuple(Device(client.client_id, client.domain, client.num_samples) for client in clients)
        self._name = args.assignment if isinstance(args.assignment, str) else ""
        self._rule: LevelRule | None = None
        stated = read_silo_levels(settings) or _stated(settings)
        if stated:
            self._first = self._profiles(stated)
            return
        rule = LEVEL_RULES.find(self._name)
        self._first = self._profiles(levels_by(rule, self._name, self._fleet(1)))
        if self._name not in LEVEL_RULES:
            self._rule = rule

    def profiles(self, round_: int) -> tuple[ClientProfile, ...]:
        """Everyone as of ``round_``, in client order."""
        if self._rule is None or round_ == 1:
            return self._first
        return self._profiles(levels_by(self._rule, self._name, self._fleet(round_)))

    def _fleet(self, round_: int) -> Fleet:
        return Fleet(round_, self._devices, self._footprints, self._seed)

    def _profiles(self, levels: Sequence[int]) -> tuple[ClientProfile, ...]:
        return tuple(
            ClientProfile(device.client_id, device.domain, level, self._ratios[level - 1], device.num_samples)
            for device, level in zip(self._devices, levels, strict=True)
        )


def _stated(settings: Settings) -> Sequence[int]:
    """The levels that the settings list client by client; empty where they do not."""
    assignment = settings.dapper_args.levels.assignment
    if not isinstance(assignment, str):
        return assignment
    return [client.level for client in settings.data_args.clients or () if client.level is not None]
