"""Effective movement of parameters: how much of their way over some rounds has led them anywhere (ProFL).

Parameters that move U_k in round k have the effective movement |sum_k U_k| / sum_k |U_k| over the last rounds, where
norms are sums over all entries. It is 1 while each entry keeps its direction, and falls towards 0 as they oscillate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import linear_regression
from typing import Any

from torch import Tensor

from fedml_dapper.pruning import Tensors


def way(before: Tensors, after: Tensors) -> float:
    """Return the l1 distance between two states of the same parameters."""
    return sum(_l1(after[name], before[name]) for name in before)


def effective_movement(moved: float, ways: Sequence[float]) -> float:
    """Return the share of the ways of single rounds by which parameters ``moved`` in all of them; 0 if they rested."""
    total = sum(ways)
    return moved / total if total > 0 else 0.0


def slope(values: Sequence[float]) -> float:
    """Return the slope of the least-squares line through ``values`` at 0, 1, 2 and so on; there are two at least."""
    return float(linear_regression(range(len(values)), values).slope)


@dataclass(frozen=True)
class Pace:
    """Progress of parameters that are trained until their effective movement no longer changes."""

    rounds: int = 0
    """Rounds of training so far."""
    ways: list[float] = field(default_factory=list)
    """Ways of the last rounds, a window's at most."""
    movements: list[float] = field(default_factory=list)
    """Effective movements after the last rounds, a window's at most."""
    flat: int = 0
    """Rounds in a row after which the line through the movements was flat."""

    @classmethod
    def of(cls, values: Any) -> Pace:
        """Return what :meth:`values` wrote; the beginning where that is None."""
        return cls() if values is None else cls(**values)

    def values(self) -> dict[str, Any]:
        """Return plain values, for a method's memory."""
        return asdict(self)

    def after_round(self, length: float, moved: float | None, window: int, threshold: float) -> Pace:
        """Return the pace after one more round.

        Args:
            length: Way of the round.
            moved: Distance from where the parameters were ``window`` rounds ago; None where it is not as long yet.
            window: Number of rounds that are looked back on, both for a movement and for the line through movements.
            threshold: Slope from which on a line is not flat, in either direction.
        """
        ways = [*self.ways, length][-window:]
        found = [] if moved is None else [effective_movement(moved, ways)]
        movements = [*self.movements, *found][-window:]
        is_flat = len(movements) == window and abs(slope(movements)) < threshold
        return replace(
            self, rounds=self.rounds + 1, ways=ways, movements=movements, flat=self.flat + 1 if is_flat else 0
        )


def _l1(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().sum())
