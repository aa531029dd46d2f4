"""Profiles of devices and networks: files of figures, each with its source.

Shipped profiles are ``config/devices/*.yaml`` and ``config/networks/*.yaml``; a user's own are files of the same form.
Megabytes are 10^6 bytes, Mbit/s 10^6 bits a second, GMACs 10^9 multiply-accumulates. Speeds count those of forward and
backward pass, with two times the forward pass for the latter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, Field

from fedml_dapper.config import SHIPPED, Section, check, did_you_mean, read_yaml, rule
from fedml_dapper.errors import ConfigError
from fedml_dapper.fleet.families import Family

Mark = Literal["measured", "derived", "data_sheet"]
Stretch = Literal["none", "to another network", "to another family"]

_SMALLEST, _LARGEST = 1e-9, 1e9
"""Bounds of figures, far beyond any device: silos send profiles, and what is computed from them has to be finite."""


class Source(Section):
    """Source of figures."""

    title: str = Field(min_length=1)
    address: str = Field(min_length=1)


class Stated(Section):
    """A known quantity, and how it is known."""

    mark: Mark
    """``measured``, ``data_sheet``, or ``derived`` from such figures as ``how`` says."""
    source: str
    """Short name of one of the profile's ``sources``."""
    how: str | None = None
    """How a derived figure was derived."""

    @rule
    def _derived_somehow(self) -> Iterator[str]:
        if self.mark == "derived" and self.how is None:
            yield "a derived figure needs `how`: what it was derived from, and how"


class Figure(Stated):
    """A known number."""

    value: float = Field(ge=_SMALLEST, le=_LARGEST)


class StepTime(Section):
    """Training time per sample at one size of network."""

    mmacs: float = Field(ge=_SMALLEST, le=_LARGEST)
    """Millions of multiply-accumulates of a sample, backward pass included."""
    ms: float = Field(ge=_SMALLEST, le=_LARGEST)


class Speed(Stated):
    """Speed at which a device trains networks of one family."""

    network: str
    """Network that it was measured on."""
    family: Family
    """Kind of layers of that network; multiply-accumulates do not predict time from one kind to another."""
    gmacs_per_s: float | None = Field(default=None, ge=_SMALLEST, le=_LARGEST)
    """Sustained speed, in GMACs per second."""
    ms_per_sample: tuple[StepTime, ...] | None = Field(default=None, min_length=1)
    """Instead of ``gmacs_per_s``: milliseconds at several sizes, ascending; in proportion below the smallest and above
    the largest, linear between two."""

    @rule
    def _one_of_them(self) -> Iterator[str]:
        if (self.gmacs_per_s is None) == (self.ms_per_sample is None):
            yield "give either gmacs_per_s or ms_per_sample"
        sizes = [point.mmacs for point in self.ms_per_sample or ()]
        if sizes != sorted(set(sizes)):
            yield "ms_per_sample has to ascend in mmacs"

    def seconds(self, macs: float) -> float:
        """Return the seconds for ``macs`` multiply-accumulates of one sample, forward and backward."""
        if self.gmacs_per_s is not None:
            return macs / (1e9 * self.gmacs_per_s)
        points = self.ms_per_sample or ()
        mmacs = macs / 1e6
        for below, above in pairwise(points):
            if below.mmacs <= mmacs <= above.mmacs:
                share = (mmacs - below.mmacs) / (above.mmacs - below.mmacs)
                return (below.ms + share * (above.ms - below.ms)) / 1e3
        nearest = points[0] if mmacs < points[0].mmacs else points[-1]
        return nearest.ms / 1e3 * mmacs / nearest.mmacs


class Profile(Section):
    """Base of all profiles: what it describes, and sources by a short name."""

    description: str = Field(min_length=1)
    sources: dict[str, Source]

    @rule
    def _every_source_is_known(self) -> Iterator[str]:
        for stated in _stated(self):
            if stated.source not in self.sources:
                yield f"no source `{stated.source}`{did_you_mean(stated.source, self.sources)}"


class Network(Profile):
    """Speed of a client's connection to the server."""

    downlink_mbps: Figure
    uplink_mbps: Figure


class Availability(Stated):
    """When a device can take part: by chance, or by the clock."""

    share: float | None = Field(default=None, gt=0, le=1)
    """Share of the rounds at whose beginning the device is on, drawn round by round."""
    period_s: float | None = Field(default=None, ge=_SMALLEST, le=_LARGEST)
    """Instead of ``share``: seconds after which ``on_s`` repeats itself, e.g. 86400 for a day."""
    on_s: tuple[tuple[float, float], ...] | None = Field(default=None, min_length=1)
    """Times at which it goes on and off, in seconds of the period, ascending. The run begins at second 0."""

    @rule
    def _one_way(self) -> Iterator[str]:
        stated = self.share is not None, self.period_s is not None, self.on_s is not None
        if stated not in ((True, False, False), (False, True, True)):
            yield "give either share, or period_s and on_s"
        seconds = [0.0, *(second for span in self.on_s or () for second in span), self.period_s or 0.0]
        inner = seconds[1:-1]
        if inner and (seconds != sorted(seconds) or len(set(inner)) < len(inner)):
            yield "on_s has to ascend between 0 and period_s, spans apart: e.g. [[0, 600], [900, 1200]]"

    def stays_s(self, at_s: float) -> float:
        """Return how long a device with a trace stays on from second ``at_s`` of the run; 0 where it is off."""
        assert self.period_s is not None, "it comes and goes by chance"
        spans = self.on_s or ()
        (first, until) = spans[0]
        now = at_s % self.period_s
        if (first, until) == (0.0, self.period_s):
            return math.inf
        for begins, ends in spans:
            if begins <= now < ends:
                # a span that reaches the period's end goes on with the first one, if that begins at 0
                return ends - now + (until if ends == self.period_s and first == 0 else 0.0)
        return 0.0


class DeviceProfile(Profile):
    """Memory, speeds and connection of a device."""

    memory_mb: Figure
    """All memory of the device."""
    speeds: tuple[Speed, ...] = Field(min_length=1)
    downlink_mbps: Figure | None = None
    uplink_mbps: Figure | None = None
    runtime_mb: Figure | None = None
    """Memory of interpreter and libraries before anything is trained."""
    memory_factor: Figure | None = None
    """Measured peak of training over the counted one; 1 when absent."""
    watts: Figure | None = None
    """Power while it trains, without radio."""
    availability: Availability | None = None
    """When it can take part, on a virtual clock; always when absent."""

    def speed_for(self, network: str, family: Family) -> tuple[Speed, Stretch]:
        """Return the speed measured nearest to ``network``, and how far that is from it."""
        for speed in self.speeds:
            if speed.network == network:
                return speed, "none"
        for speed in self.speeds:
            if speed.family == family:
                return speed, "to another network"
        return self.speeds[0], "to another family"


ProfileT = TypeVar("ProfileT", bound=Profile)
_FOLDERS: dict[type[Profile], str] = {DeviceProfile: "devices", Network: "networks"}


def find_device(name: str, key: str = "dapper_args.fleet.devices") -> DeviceProfile:
    """Return the shipped profile of that name, or the one in a file.

    Raises:
        ConfigError: There is none; the message blames the setting ``key``.
    """
    return _found(DeviceProfile, name, key)


def find_network(name: str) -> Network:
    """Return the network profile of that name, as :func:`find_device` does."""
    return _found(Network, name, "dapper_args.fleet.network")


def shipped_names(kind: type[Profile] = DeviceProfile) -> list[str]:
    """Return the names of the shipped profiles of that kind."""
    return sorted(file.stem for file in (SHIPPED / _FOLDERS[kind]).glob("*.yaml"))


def _found(kind: type[ProfileT], name: str, key: str) -> ProfileT:
    if name.endswith(".yaml"):
        file = Path(name)
    elif name in shipped_names(kind):
        file = SHIPPED / _FOLDERS[kind] / f"{name}.yaml"
    else:
        hint = did_you_mean(name, shipped_names(kind))
        raise ConfigError(f"{key}: no profile `{name}`{hint}; a file of your own ends in .yaml")
    return check(kind, read_yaml(file), where=str(file))


def _stated(value: object) -> Iterator[Stated]:
    """Yield every figure inside ``value``."""
    if isinstance(value, Stated):
        yield value
    elif isinstance(value, BaseModel):
        for _, inner in value:
            yield from _stated(inner)
    elif isinstance(value, tuple):
        for inner in value:
            yield from _stated(inner)
