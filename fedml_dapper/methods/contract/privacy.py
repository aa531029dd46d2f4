"""Privacy of a run, ``dapper_args.privacy`` with nothing left open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedml_dapper.randomness.chacha20 import Noise
from fedml_dapper.secure_sum import FixedPoint, Rules


@dataclass(frozen=True)
class Privacy:
    """A Gaussian mechanism, of which every round is one use."""

    where: Literal["server", "client", "distributed"]
    clip: float | None
    """Largest l2 norm of a client's change; None for no limit."""
    noise_multiplier: float
    delta: float | None
    """Probability delta of the guarantee; None without noise, where nothing is promised."""
    is_secret: bool
    """Whether nobody can repeat the noise."""
    is_for_target: bool = False
    """Whether there is as much noise as the run's number of rounds asks for."""

    @property
    def std(self) -> float:
        """Standard deviation of the noise that counts, on a coordinate of a sum, or of an upload."""
        return 0.0 if self.clip is None else self.noise_multiplier * self.clip

    def noise(self, seed: int, *keys: int) -> Noise:
        """The noise of a round, and of a client where clients add it, by their numbers as ``keys``."""
        return Noise.secret() if self.is_secret else Noise.of_run(seed, *keys)


@dataclass(frozen=True)
class SecureSums:
    """Secure sums, by which a server learns sums of changes alone: ``dapper_args.privacy.secure_aggregation``."""

    rules: Rules
    code: FixedPoint
    """Fixed-point code in which changes are summed."""
    noise_std: int = 0
    """Standard deviation of the noise that each client adds, in steps of the code; 0 for none."""
