"""Who is how strong: capability levels 1 (strongest) to L, by a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedml_dapper.errors import ConfigError
from fedml_dapper.pruning.footprint import Footprint
from fedml_dapper.registry import Registry
from fedml_dapper.seeding import Stream, numpy_generator


@dataclass(frozen=True)
class Device:
    """What is known of a client's device."""

    client_id: int
    domain: str
    num_samples: int
    """Samples it trains on."""
    level: int | None = None
    """As its owner states it, where nobody else decides."""


@dataclass(frozen=True)
class Fleet:
    """What a level rule decides on."""

    round: int
    """The round that is about to begin, from 1."""
    devices: tuple[Device, ...]
    """In client order."""
    footprints: tuple[Footprint, ...]
    """What a client of each level trains, gets and sends, strongest level first."""
    seed: int
    """The experiment's; two runs of one seed have the same levels."""


LevelRule = Callable[[Fleet], Sequence[int]]
"""Gives every device its level, from 1 to ``len(fleet.footprints)``, in client order; asked before every round."""


def balanced(fleet: Fleet) -> Sequence[int]:
    """Round-robin over a seeded shuffle of the clients, so that level and domain are independent."""
    levels = [0] * len(fleet.devices)
    order = numpy_generator(fleet.seed, Stream.LEVELS)
    for position, client in enumerate(order.permutation(len(fleet.devices)).tolist()):
        levels[client] = 1 + position % len(fleet.footprints)
    return levels


def index_mod(fleet: Fleet) -> Sequence[int]:
    """Client i has level i mod L, as in the public code."""
    return [1 + device.client_id % len(fleet.footprints) for device in fleet.devices]


def _fits(found: object) -> str:
    return "" if callable(found) else "no level rule; name a function of a Fleet that returns everyone's level"


LEVEL_RULES: Registry[LevelRule] = Registry(
    "dapper_args.levels.assignment", "level rule", {"balanced": balanced, "index_mod": index_mod}, _fits
)
"""What ``dapper_args.levels.assignment`` may name."""


def levels_by(rule: LevelRule, name: str, fleet: Fleet) -> tuple[int, ...]:
    """What ``rule``, called ``name`` in the settings, says; raises :class:`ConfigError` unless it is a level each."""
    try:
        levels = tuple(rule(fleet))
    except Exception as error:  # a user's rule may fail in any way
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
