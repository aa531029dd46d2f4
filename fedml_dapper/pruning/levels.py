"""Assignment of capability levels, from 1 (strongest) to L, to clients."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedml_dapper.errors import USER_CODE_ERRORS, ConfigError
from fedml_dapper.pruning.footprint import Footprint
from fedml_dapper.randomness.seeding import Stream, numpy_generator
from fedml_dapper.registry import Registry


@dataclass(frozen=True)
class Device:
    """A client's device, as far as the server knows it."""

    client_id: int
    domain: str
    num_samples: int
    """Training samples of the client."""
    level: int | None = None
    """Level that the device's owner states; None where the server decides."""


@dataclass(frozen=True)
class Fleet:
    """The clients of an experiment and the levels they may have: what a level rule decides on."""

    round: int
    """Number of the round that is about to begin, from 1."""
    devices: tuple[Device, ...]
    """One device per client, in client order."""
    footprints: tuple[Footprint, ...]
    """Cost of a client model of each level, strongest level first."""
    seed: int
    """Seed of the experiment; two runs of one seed get the same levels."""


LevelRule = Callable[[Fleet], Sequence[int]]
"""A function that returns every device's level, from 1 to ``len(fleet.footprints)``, in client order. Called before
every round."""


def balanced(fleet: Fleet) -> Sequence[int]:
    """Assign levels round-robin over a seeded shuffle of the clients, so that level and domain are independent."""
    levels = [0] * len(fleet.devices)
    order = numpy_generator(fleet.seed, Stream.LEVELS)
    for position, client in enumerate(order.permutation(len(fleet.devices)).tolist()):
        levels[client] = 1 + position % len(fleet.footprints)
    return levels


def index_mod(fleet: Fleet) -> Sequence[int]:
    """Give client i the level 1 + (i mod L), as the authors' public code does."""
    return [1 + device.client_id % len(fleet.footprints) for device in fleet.devices]


def _fits(found: object) -> str:
    return "" if callable(found) else "no level rule; name a function of a Fleet that returns everyone's level"


LEVEL_RULES: Registry[LevelRule] = Registry(
    "dapper_args.levels.assignment", "level rule", {"balanced": balanced, "index_mod": index_mod}, _fits
)
"""Level rules by the names that ``dapper_args.levels.assignment`` takes; other names are imported."""


def levels_by(rule: LevelRule, name: str, fleet: Fleet) -> tuple[int, ...]:
    """Return the levels that ``rule``, called ``name`` in the settings, assigns to the clients.

    Raises:
        ConfigError: The rule fails, or does not return one allowed level per client.
    """
    try:
        levels = tuple(map(operator.index, rule(fleet)))
    except USER_CODE_ERRORS as error:
        raise ConfigError(
            f"dapper_args.levels.assignment: `{name}` fails in round {fleet.round}: {type(error).__name__}: {error}"
        ) from error
    allowed = range(1, len(fleet.footprints) + 1)
    if len(levels) != len(fleet.devices) or not all(level in allowed for level in levels):
        raise ConfigError(
            f"dapper_args.levels.assignment: `{name}` gives {list(levels)} in round {fleet.round}; expected"
            f" {len(fleet.devices)} levels from 1 to {len(allowed)}"
        )
    return levels
