"""What a run has spent by the end of each of its rounds: bytes, time, energy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from fedml_dapper.federation import RoundRecord, RunRecord

Kind = Literal["bytes", "wall clock", "virtual time", "energy"]
_LABELS: dict[Kind, str] = {
    "bytes": "{} both ways",
    "wall clock": "wall clock ({})",
    "virtual time": "virtual time ({})",
    "energy": "energy of training ({})",
}
_TIMES = ((48 * 3600, 3600, "h"), (600, 60, "min"), (0, 1, "s"))
_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (0.0, ""))


def spent(kind: Kind, rounds: Sequence[RoundRecord]) -> list[float] | None:
    """Return what was spent by the end of each round; None where some round does not say.

    Bytes are those both ways of the clients whose uploads counted, the wall clock is in real seconds, virtual time in
    seconds of the fleet's clock, and energy in the joules of its devices' training.
    """
    if kind == "bytes":
        return list(accumulate(sum(client.bytes_up + client.bytes_down for client in r.clients) for r in rounds))
    if kind == "wall clock":
        return list(accumulate(record.seconds.total for record in rounds))
    clocks = [record.clock for record in rounds]
    known = [clock.elapsed_s if kind == "virtual time" else clock.joules for clock in clocks if clock is not None]
    values = [value for value in known if value is not None]
    return values if rounds and len(values) == len(rounds) else None


def is_of_silos(run: RunRecord) -> bool:
    """Whether the clients were other machines, or stood for such, so that real time is a cost."""
    return bool(run.settings.get("common_args", {}).get("training_type") == "cross_silo")


def axis(kind: Kind, most: float) -> tuple[float, str]:
    """Return the divisor of values up to ``most`` on an axis, and the axis's label."""
    if kind in ("wall clock", "virtual time"):
        scale, unit = time_unit(most)
        return scale, _LABELS[kind].format(unit)
    least, prefix = next(found for found in _PREFIXES if most >= found[0])
    return least or 1.0, _LABELS[kind].format(f"{prefix}{'B' if kind == 'bytes' else 'J'}")


def time_unit(longest_s: float) -> tuple[int, str]:
    """Return the divisor and name of the unit in which times up to ``longest_s`` are drawn."""
    return next((scale, unit) for least, scale, unit in _TIMES if longest_s >= least)
