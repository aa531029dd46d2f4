"""``dapper_args.privacy``: what a run's models may give away of one client."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from fedml_dapper.config.section import Section


class PrivacyArgs(Section):
    """``dapper_args.privacy``: differential privacy of clients (docs/privacy.md)."""

    where: Literal["server", "client"] = "server"
    """Who adds the noise: the server, to the sum of all uploads, so that it has to be trusted with them; or every
    client, to its own upload, which takes far more noise in all."""
    clip: float | None = Field(default=1.0, gt=0)
    """Largest l2 norm of what one client may change, over all coordinates that it sends; no limit when null, which goes
    with ``noise_multiplier: 0``."""
    noise_multiplier: float | None = Field(default=None, ge=0)
    """Standard deviation of the noise on each coordinate, in multiples of ``clip``. With 0 there is no noise, and no
    epsilon."""
    target_epsilon: float | None = Field(default=None, gt=0)
    """In place of ``noise_multiplier``: the smallest one with which a client that takes part in all ``comm_round``
    rounds has this epsilon. Such a run cannot be extended."""
    delta: float | None = Field(default=None, gt=0, lt=1)
    """Of the guarantee (epsilon, delta); less than one over the number of clients."""
    noise_seed: Literal["run", "secret"] | None = None
    """``run``: the noise follows from ``random_seed``, so that a run repeats, and whoever knows the seed can take the
    noise off. ``secret``: it follows from the operating system's random numbers, and nobody can repeat it. When absent,
    ``run`` in simulation and ``secret`` across silos."""

    @model_validator(mode="before")
    @classmethod
    def _one_kind_of_noise_and_a_delta(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        given = [key for key in ("noise_multiplier", "target_epsilon") if values.get(key) is not None]
        if len(given) != 1:
            raise ValueError(
                "give noise_multiplier, e.g. 1.1, or target_epsilon, e.g. 8; "
                + ("both are there" if given else "neither is there")
            )
        if values.get("delta") is None and values[given[0]] != 0:
            raise ValueError(f"{given[0]} needs delta: an epsilon holds but for a probability of that; give e.g. 1e-5")
        return values

    @model_validator(mode="after")
    def _noise_is_measured_by_the_clip(self) -> PrivacyArgs:
        if self.clip is None and self.noise_multiplier != 0:
            raise ValueError("clip is null, and noise is measured by it; give one, e.g. 1.0")
        return self
