"""Roster of an experiment's clients, with each one's capability level in every round."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fedml_dapper.config import Settings, read_silo_levels
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.fleet import DeviceProfile, FleetPlan, JoiningDevices
from fedml_dapper.methods import ClientProfile, Method
from fedml_dapper.pruning import LEVEL_RULES, Device, Fleet, levels_by

LOGGER = logging.getLogger(__name__)


class Roster:
    """The clients of an experiment as this process knows them, and their levels.

    Where all data follow from the settings, all clients are known from the start. Silos with data of their own join,
    and may come back with more; the server knows those that have joined, a silo only itself.

    A client's level comes from one of these:

    * it is stated: by the silo, by ``data_args.clients`` or by a list in the settings;
    * its device decides: that of the fleet's plan, or the one that the silo names when it joins;
    * a rule assigns it. A user's own rule is asked before every round, a built-in one once, for all possible clients.

    Raises:
        ConfigError: A rule does not exist or gives no valid levels.
    """

    def __init__(
        self, settings: Settings, method: Method[Any], known: Iterable[Device], fleet: FleetPlan | None = None
    ) -> None:
        args = settings.dapper_args.levels
        self._method = method.name
        self._size = settings.train_args.client_num_in_total
        self._ratios = args.ratios
        self._seed = settings.common_args.random_seed
        self._footprints = tuple(method.footprint(ratio) for ratio in args.ratios)
        self._devices = {device.client_id: device for device in known}
        self._joining = _joining(settings, method)
        self._name = args.assignment if isinstance(args.assignment, str) else ""
        self._stated = tuple(read_silo_levels(settings) or _stated(settings)) if fleet is None else fleet.levels
        self._left_out = frozenset(() if fleet is None else (one.client.client_id for one in fleet.left_out))
        self._rule = None if self._stated else LEVEL_RULES.find(self._name)
        if self._rule is not None and self._name in LEVEL_RULES:
            everyone = tuple(Device(client_id, "", 0) for client_id in range(self._size))
            self._stated = levels_by(self._rule, self._name, self._fleet(1, everyone))
            self._rule = None
        self.profiles(1)

    @property
    def joined(self) -> frozenset[int]:
        """Ids of the clients that have joined, or are known from the start."""
        return frozenset(self._devices)

    @property
    def available(self) -> frozenset[int]:
        """Ids of the known clients whose device can run some level."""
        return self.joined - self._left_out

    def is_available(self, client_id: int) -> bool:
        """Return whether the client is among the :attr:`available`."""
        return client_id in self._devices and client_id not in self._left_out

    @property
    def varies(self) -> bool:
        """Whether a client may have another level in another round."""
        return self._rule is not None

    def join(self, device: Device, profile: DeviceProfile | None = None) -> bool:
        """Note a silo that joins, or comes back, perhaps with other data.

        Args:
            device: What the silo holds.
            profile: Profile of its device, which then decides the silo's level: the largest that the device can run.

        Returns:
            Whether the silo is new or has said something new.

        Raises:
            ProtocolError: The device can run no level, or the experiment or the profile lacks what decides that.
        """
        if profile is not None:
            device = replace(device, level=self._level_on(device, profile))
        before = self._devices.get(device.client_id)
        self._devices[device.client_id] = device
        return device != before

    def relieve(self, client_id: int, level: int, seconds: float) -> bool:
        """Lower the level of a client whose training at ``level`` took longer than a round may take.

        Its new level is the one that its device can run in time, or the smallest.

        Returns:
            Whether the client has a smaller level from now on.
        """
        found = None if self._joining is None else self._joining.after(client_id, level, seconds)
        before = self._devices.get(client_id)
        if found is None or before is None or before.level is None:
            return False
        smaller = found.level or len(self._ratios)
        if smaller <= before.level:
            return False
        LOGGER.warning(
            "client %d trained for %.1f s, longer than a round may take; it has level %d from now on",
            client_id,
            seconds,
            smaller,
        )
        return self.join(replace(before, level=smaller))

    def _level_on(self, client: Device, profile: DeviceProfile) -> int:
        if self._joining is None:
            raise ProtocolError("it names a device, but the experiment has no dapper_args.fleet to choose a level by")
        try:
            found = self._joining.fit(client, profile)
        except ConfigError as error:
            raise ProtocolError(f"silo_args.device: the profile {error}") from error
        if found.level is None:
            raise ProtocolError(
                f"its device can run no level of `{self._method}`: the weakest needs {found.use.shortage}"
            )
        return found.level

    def profiles(self, round_: int) -> tuple[ClientProfile, ...]:
        """Return the profiles of all clients in ``round_``, in client order; unknown clients have no samples."""
        known = tuple(self._devices[client_id] for client_id in sorted(self._devices))
        levels = dict(enumerate(self._stated))
        if self._rule is not None and known:
            ruled = levels_by(self._rule, self._name, self._fleet(round_, known))
            levels = {device.client_id: level for device, level in zip(known, ruled, strict=True)}
        levels |= {device.client_id: device.level for device in known if device.level is not None}
        return tuple(
            self._profile(self._devices.get(client_id, Device(client_id, "", 0)), levels.get(client_id, 1))
            for client_id in range(self._size)
        )

    def profile_of(self, client_id: int, round_: int) -> ClientProfile:
        """Return the profile of one client in ``round_``, without making those of all where no rule decides anew."""
        if self._rule is not None:
            return self.profiles(round_)[client_id]
        device = self._devices.get(client_id, Device(client_id, "", 0))
        stated = self._stated[client_id] if client_id < len(self._stated) else 1
        return self._profile(device, stated if device.level is None else device.level)

    def _profile(self, device: Device, level: int) -> ClientProfile:
        return ClientProfile(device.client_id, device.domain, level, self._ratios[level - 1], device.num_samples)

    def _fleet(self, round_: int, devices: tuple[Device, ...]) -> Fleet:
        return Fleet(round_, devices, self._footprints, self._seed)


def _joining(settings: Settings, method: Method[Any]) -> JoiningDevices | None:
    """Return what chooses levels of silos that name their devices when they join; None where they cannot name any."""
    fleet = settings.dapper_args.fleet
    return None if fleet is None or fleet.devices is not None else JoiningDevices(fleet, method, settings.model_args)


def _stated(settings: Settings) -> Sequence[int]:
    """Return the levels that the settings list client by client; empty where they list none."""
    assignment = settings.dapper_args.levels.assignment
    if not isinstance(assignment, str):
        return assignment
    return [client.level for client in settings.data_args.clients or () if client.level is not None]
