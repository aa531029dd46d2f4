"""Plan of a fleet: devices dealt out to the clients, and each client's level under a method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedml_dapper.config import FleetArgs, ModelArgs, did_you_mean, short_name
from fedml_dapper.errors import ConfigError
from fedml_dapper.fleet.demand import Demand, demands
from fedml_dapper.fleet.families import Family, family_of
from fedml_dapper.fleet.fitting import Budget, Fit, Means, fit
from fedml_dapper.fleet.profiles import DeviceProfile, Network, Speed, Stretch, find_device, find_network
from fedml_dapper.inputs import described
from fedml_dapper.methods import ClientProfile, Method
from fedml_dapper.pruning import Device
from fedml_dapper.randomness.seeding import Stream, numpy_generator


@dataclass(frozen=True)
class ClientFit:
    """A client, its device, and the level that this can run."""

    client: Device
    profile: str
    """Name of the device's profile."""
    fit: Fit
    speed: Speed
    """Speed of the device that the times were computed with."""
    stretch: Stretch
    """Whether that speed was measured on another network."""
    device: DeviceProfile


@dataclass(frozen=True)
class FleetPlan:
    """What every client can run under one method, in client order."""

    method: str
    network: str
    """Label of the experiment's network, as in profiles."""
    family: Family
    demands: tuple[Demand, ...]
    clients: tuple[ClientFit, ...]

    @property
    def left_out(self) -> tuple[ClientFit, ...]:
        """Clients that can run no level."""
        return tuple(client for client in self.clients if client.fit.level is None)

    @property
    def lost_domains(self) -> tuple[str, ...]:
        """Domains none of whose clients can run a level."""
        kept = {client.client.domain for client in self.clients if client.fit.level is not None}
        return tuple(sorted({client.client.domain for client in self.left_out} - kept))

    @property
    def levels(self) -> tuple[int, ...]:
        """Everyone's level; clients that can run none have the weakest, which they do not train."""
        return tuple(client.fit.level or self.demands[-1].level for client in self.clients)

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence on each client that is left out, with the reason, and on each domain without clients."""
        weakest = self.demands[-1].level
        notes = [
            f"client {one.client.client_id} ({one.client.domain}, {one.profile}) is left out: level {weakest} of"
            f" {self.method} needs {one.fit.use.shortage}"
            for one in self.left_out
        ]
        return (*notes, *(f"no client of domain {domain} takes part" for domain in self.lost_domains))

    def check(self) -> None:
        """Check that some client can run a level.

        Raises:
            ConfigError: None can; the message says which client comes nearest, and what it lacks.
        """
        if len(self.left_out) < len(self.clients):
            return
        nearest = min(
            self.clients,
            key=lambda one: max(
                one.fit.use.seconds / one.fit.use.limit_s, one.fit.use.memory_mb / one.fit.use.memory_limit_mb
            ),
        )
        raise ConfigError(
            f"dapper_args.fleet: no client can run any level of `{self.method}`; nearest is client"
            f" {nearest.client.client_id} ({nearest.profile}), whose level {self.demands[-1].level} needs"
            f" {nearest.fit.use.shortage}. Raise round_s or memory_share, or choose other devices, levels or method"
        )


def plan_fleet(fleet: FleetArgs, method: Method[Any], model: ModelArgs, clients: Sequence[Device]) -> FleetPlan:
    """Find the largest level that each of ``clients``, in client order, can run under ``method``.

    Raises:
        ConfigError: A profile does not exist, or a device has no network speed.
    """
    needs = demands(method)
    budget = Budget(fleet.round_s, fleet.memory_share)
    equipped = equip(fleet, method, model, clients)
    label = network_label(model, method)
    family = family_of(method.problem.backbone)
    planned = tuple(
        ClientFit(
            one.client, one.profile, fit(needs, one.means, budget), one.means.speed, one.stretch, one.means.device
        )
        for one in equipped
    )
    return FleetPlan(method.name, label, family, needs, planned)


@dataclass(frozen=True)
class Equipped:
    """A client and what it has for a round."""

    client: Device
    profile: str
    means: Means
    stretch: Stretch


def equip(fleet: FleetArgs, method: Method[Any], model: ModelArgs, clients: Sequence[Device]) -> list[Equipped]:
    """Return what each of ``clients`` has for a round; raises :class:`ConfigError` as :func:`plan_fleet` does."""
    names = deal_devices(fleet, clients, method.problem.seed)
    profiles = {name: find_device(name) for name in names}
    network = None if fleet.network is None else find_network(fleet.network)
    label = network_label(model, method)
    family = family_of(method.problem.backbone)
    equipped = []
    for client, name in zip(clients, names, strict=True):
        try:
            means, stretch = means_of(profiles[name], network, label, family, method, client)
        except ConfigError as error:
            raise ConfigError(f"dapper_args.fleet.devices: `{shown(name)}` {error}") from error
        equipped.append(Equipped(client, shown(name), means, stretch))
    return equipped


def deal_devices(fleet: FleetArgs, clients: Sequence[Device], seed: int) -> tuple[str, ...]:
    """Return the name of every client's profile.

    Devices are stated per domain or per client, or dealt round-robin over a seeded shuffle of the clients.
    """
    devices = fleet.devices if isinstance(fleet.devices, dict) else fleet.names
    count = len(clients)
    if isinstance(devices, dict):
        domains = {client.domain for client in clients}
        for domain in devices:
            if domain not in domains:
                raise ConfigError(f"dapper_args.fleet.devices: no domain `{domain}`{did_you_mean(domain, domains)}")
        for client in clients:
            if client.domain not in devices:
                raise ConfigError(f"dapper_args.fleet.devices: no device for domain `{client.domain}`; name one")
        return tuple(devices[client.domain] for client in clients)
    if len(devices) > count:
        raise ConfigError(f"dapper_args.fleet.devices lists {len(devices)} devices for {count} clients")
    if len(devices) == count:
        return devices
    dealt = [""] * count
    for position, client in enumerate(numpy_generator(seed, Stream.LEVELS).permutation(count).tolist()):
        dealt[client] = devices[position % len(devices)]
    return tuple(dealt)


def network_label(model: ModelArgs, method: Method[Any]) -> str:
    """Return how profiles call the network of an experiment: its name, width, norm and input size."""
    width = "" if model.width is None else f" of width {model.width}"
    norm = "" if model.norm in (None, "batch") else f", {model.norm}"
    example = method.problem.example
    has_channels = isinstance(example, Tensor) and example.dim() > 2
    first = 2 if has_channels else 1  # one tensor's channels, those of images, are left out
    size = described(example, lambda part: "x".join(map(str, part.shape[first:])) or "1")
    return f"{short_name(model.model)}{width}{norm} at {size}"


def shown(name: str) -> str:
    """Return a profile's name without folders."""
    return Path(name).stem if name.endswith(".yaml") else name


def _trained(method: Method[Any], client: Device) -> int:
    return method.trained_samples(ClientProfile(client.client_id, client.domain, 1, 0.0, client.num_samples))


def means_of(
    device: DeviceProfile, network: Network | None, label: str, family: Family, method: Method[Any], client: Device
) -> tuple[Means, Stretch]:
    """Return what ``client`` has for a round of ``method`` on ``device``, and whether its speed is that of ``label``.

    Raises:
        ConfigError: Neither ``device`` nor ``network`` says how fast the connection is.
    """
    if network is None:
        down, up = device.downlink_mbps, device.uplink_mbps
    else:
        down, up = network.downlink_mbps, network.uplink_mbps
    if down is None or up is None:
        raise ConfigError(
            "does not say how fast its network is; add downlink_mbps and uplink_mbps to the profile, or name a network"
            " for all, e.g. dapper_args.fleet.network: flash_p50"
        )
    speed, stretch = device.speed_for(label, family)
    return Means(device, speed, down.value, up.value, _trained(method, client)), stretch
