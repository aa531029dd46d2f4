"""Ways to say what settings ask for, by their keys, and features of which several topics speak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedml_dapper.config.compatibility.row import Feature

if TYPE_CHECKING:
    from fedml_dapper.config.settings import Settings


def value_of(settings: Settings, key: str) -> Any:
    """What stands at a whole key; None where a section above it is absent."""
    found: Any = settings
    for step in key.split("."):
        if found is None:
            return None
        found = getattr(found, step)
    return found


def given(key: str) -> Feature:
    """Something stands at ``key``: neither null nor false."""
    return Feature(key, lambda s: _stands(value_of(s, key)), lambda s: _brief(value_of(s, key)))


def chosen(key: str, *values: object) -> Feature:
    """One of ``values`` stands at ``key``."""
    return Feature(
        f"{key} {enumerated(values)}", lambda s: value_of(s, key) in values, lambda s: _unlike(value_of(s, key), values)
    )


def enumerated(values: Sequence[object]) -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    *before, last = map(str, values)
    return f"{', '.join(before)} or {last}" if before else last


def other_than(key: str, *values: object) -> Feature:
    """Something else than ``values`` stands at ``key``."""
    label = f"{key} other than {enumerated(values)}"
    return Feature(label, lambda s: value_of(s, key) not in (None, *values), lambda s: value_of(s, key))


def as_many(key: str, as_key: str) -> Feature:
    """The number at ``key`` is no smaller than that at ``as_key``."""
    return Feature(
        f"{key} of as many or more",
        lambda s: value_of(s, key) >= value_of(s, as_key),
        lambda s: f"it is {value_of(s, key)}",
    )


def _stands(value: object) -> bool:
    return value is not None and value is not False  # by identity, as 0 equals false


def _brief(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""


def _unlike(value: object, values: tuple[object, ...]) -> str:
    return "" if (value,) == values else f"it is {value}"


SIMULATION = Feature("common_args.training_type simulation", lambda s: s.common_args.is_simulation)
CROSS_SILO = chosen("common_args.training_type", "cross_silo")
CROSS_DEVICE = chosen("common_args.training_type", "cross_device")
BUFFER = given("dapper_args.buffer_size")
EDGES = Feature("comm_args.dapper_grpc.edges", lambda s: bool(s.comm_args.edges))
OWN_DATA = chosen("data_args.partition", "own")
FLEET = given("dapper_args.fleet")
CLOCK = given("dapper_args.fleet.clock")
LATE_KEPT = chosen("dapper_args.fleet.clock.late", "kept")
PRIVACY = given("dapper_args.privacy")
SECURE_SUMS = given("dapper_args.privacy.secure_aggregation")
PERSONAL = Feature("dapper_args.evaluation.personal", lambda s: bool(s.dapper_args.evaluation.personal))
UNSEEN = given("dapper_args.evaluation.unseen_domain")
ROBUST_MEAN = other_than("dapper_args.defence.aggregation", "mean")

SILOS = {
    "common_args.training_type": "cross_silo",
    "comm_args.backend": "DAPPER_GRPC",
    "comm_args.dapper_grpc.server_address": "localhost:8890",
    "comm_args.dapper_grpc.certificates": "certs",
}
"""For examples."""
DEVICES = {**SILOS, "common_args.training_type": "cross_device"}
EDGE = {"rank": 11, "silos": [1, 2], "server_address": "localhost:8891"}
FLEET_OF_ONE = {"dapper_args.fleet.devices": ["raspberry_pi_4"], "dapper_args.fleet.round_s": 600}
PRIVATE = {
    "dapper_args.aggregation_weights": "uniform",
    "dapper_args.privacy.noise_multiplier": 1.0,
    "dapper_args.privacy.delta": 1e-5,
}
SECURE = {"dapper_args.aggregation_weights": "uniform", "dapper_args.privacy.secure_aggregation.threshold": 6}
