"""Metrics by which results are compared: name, unit, and which of two values is better."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isnan


@dataclass(frozen=True)
class Metric:
    """A figure by which models are compared."""

    name: str
    unit: str = ""
    """``%`` for shares in percent, a unit of measurement, or nothing."""
    higher_is_better: bool = True

    @property
    def title(self) -> str:
        """Name with unit for axes and headings, e.g. ``mean IoU (%)``."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def number(self, value: float) -> str:
        """Return ``value`` as tables show it: percent to a tenth, all else to four significant digits."""
        return f"{value:.1f}" if self.unit == "%" else f"{value:.4g}"

    def text(self, value: float) -> str:
        """Return ``value`` with its unit, e.g. ``71.2 %``."""
        return f"{self.number(value)} {self.unit}".rstrip()

    def can_be(self, value: float) -> bool:
        """Return whether ``value`` is possible: shares in percent are from 0 to 100."""
        return self.unit != "%" or 0 <= value <= 100

    def merit(self, value: float) -> float:
        """Return a number that is larger for the better of two values; NaN is worse than any value."""
        return -inf if isnan(value) else value if self.higher_is_better else -value

    def best(self, values: Iterable[float]) -> float:
        """Return the best of ``values``, of equal ones the first."""
        return max(values, key=self.merit)

    def worst(self, values: Iterable[float]) -> float:
        """Return the worst of ``values``, of equal ones the first."""
        return min(values, key=self.merit)


TOP_1 = Metric("Top-1 accuracy", "%")
"""Metric of a run whose task names no other."""
