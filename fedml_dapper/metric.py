"""What results go by: a figure, its unit, and which of two values is the better one."""

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
        """For axes and headings: ``mean IoU (%)``."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def number(self, value: float) -> str:
        """``value`` as tables show it: percent to a tenth, all else to four significant digits."""
        return f"{value:.1f}" if self.unit == "%" else f"{value:.4g}"

    def text(self, value: float) -> str:
        """``value`` with its unit: ``71.2 %``."""
        return f"{self.number(value)} {self.unit}".rstrip()

    def can_be(self, value: float) -> bool:
        """Whether a stranger's ``value`` is possible: a share in percent is from 0 to 100."""
        return self.unit != "%" or 0 <= value <= 100

    def merit(self, value: float) -> float:
        """A number that is larger for the better of two values; a value that is not a number is worse than any."""
        return -inf if isnan(value) else value if self.higher_is_better else -value

    def best(self, values: Iterable[float]) -> float:
        """The best of ``values``, of equals the first."""
        return max(values, key=self.merit)

    def worst(self, values: Iterable[float]) -> float:
        """The worst of ``values``, of equals the first."""
        return min(values, key=self.merit)


TOP_1 = Metric("Top-1 accuracy", "%")
"""What a run goes by unless its task says otherwise."""
