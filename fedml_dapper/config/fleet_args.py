"""``dapper_args.fleet``: which devices the clients have, and what a round may take of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, field_validator

from fedml_dapper.config.rules import rule
from fedml_dapper.config.section import Section


class ClockArgs(Section):
    """``dapper_args.fleet.clock``: virtual time of a simulation's rounds on the fleet's devices.

    By default a round waits for every client.
    """

    jitter: float = Field(default=0.0, ge=0)
    """Variation of a client's times from round to round: the standard deviation of the logarithm of the factors, one
    for training and one for the network, whose median is 1."""
    deadline_s: float | None = Field(default=None, gt=0)
    """Seconds after a round's beginning; uploads that arrive later do not count in it."""
    over_selection: float = Field(default=1.0, ge=1)
    """Factor on ``client_num_per_round`` for the clients that train; a round closes with the
    ``client_num_per_round``-th upload (Bonawitz et al., 2019, who choose 1.3)."""
    late: Literal["dropped", "kept"] = "dropped"
    """What becomes of uploads that do not count in their round. Kept, they count in the round in which they arrive, and
    their clients begin nothing else until then. What training changed is then added to the global model of that round,
    times (1 + rounds passed)^-1/2. With ``over_selection`` these are the buffered rounds of FedBuff (Nguyen et al.,
    AISTATS 2022)."""

    @rule
    def _somebody_can_be_late(self) -> Iterator[str]:
        if self.late == "kept" and self.deadline_s is None and self.over_selection == 1:
            yield ("late: kept is for rounds that do not wait for everyone; set deadline_s or over_selection as well")


class FleetArgs(Section):
    """``dapper_args.fleet``: every client gets the largest level that its device can run (docs/fleet.md)."""

    devices: tuple[str, ...] | dict[str, str] | None = None
    """Profiles, by the names of shipped ones or as files: one for each client in client order; or fewer, dealt in turn
    to the clients in shuffled order; or one for each domain, by the domain's name. Absent with
    ``data_args.partition: own``, where each silo names its own (``silo_args.device``)."""
    round_s: float = Field(gt=0)
    """Seconds that download, training and upload of a round may take together."""
    memory_share: float = Field(default=0.8, gt=0, le=1)
    """Share of a device's memory that training may take."""
    continuous: bool = False
    """Give every client the largest model that its device can run, of any ratio between the first and the last of
    ``levels.ratios``, in hundredths. The levels are then those ratios; otherwise the largest that fits of those set."""
    network: str | None = None
    """Network of all clients, the name of a shipped one or a file; each device's own when absent."""
    clock: ClockArgs | None = None
    """Virtual time of a simulation; none when absent."""

    @rule
    def _deadline_leaves_time(self) -> Iterator[str]:
        deadline = None if self.clock is None else self.clock.deadline_s
        if deadline is not None and deadline > self.round_s:
            yield (
                f"clock.deadline_s ({deadline:g}) is later than round_s ({self.round_s:g}), for which levels are"
                " chosen; lower it"
            )

    @field_validator("devices")
    @classmethod
    def _not_empty(cls, devices: tuple[str, ...] | dict[str, str] | None) -> tuple[str, ...] | dict[str, str] | None:
        if devices is not None and not devices:
            raise ValueError("needs at least one device, e.g. [raspberry_pi_4]")
        return devices

    @property
    def names(self) -> tuple[str, ...]:
        """Every profile that is named, in order."""
        return tuple(self.devices.values()) if isinstance(self.devices, dict) else self.devices or ()
