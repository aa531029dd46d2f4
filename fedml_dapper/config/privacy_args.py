"""``dapper_args.privacy``: what a run's models may give away of one client."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedml_dapper.config.limits import MAX_SECONDS
from fedml_dapper.config.section import Section


class SecureAggregationArgs(Section):
    """``dapper_args.privacy.secure_aggregation``: the server learns only sums over clients (docs/privacy.md)."""

    threshold: int = Field(ge=2)
    """Clients that have to stay to the end of a round, or it is void: nothing of it is opened, and the model stays as
    it was. More than half of ``client_num_per_round``."""
    min_holders: int | None = Field(default=None, ge=2)
    """Fewest clients over which a coordinate is opened; one with fewer stays as it was. ``threshold`` when absent. Slim
    models share some coordinates with few others: those would never be trained."""
    largest_change: float = Field(default=1.0, gt=0, le=1e6)
    """Largest change of one weight in one round; larger ones are cut down to it. It decides how finely sums are
    rounded."""
    step_timeout_s: float = Field(default=60, gt=0, le=MAX_SECONDS)
    """Seconds that clients have, after training, for each of the steps that sum up: shares, masked upload, opening."""

    @property
    def fewest_holders(self) -> int:
        """``min_holders``, or its default."""
        return self.threshold if self.min_holders is None else self.min_holders


class PrivacyArgs(Section):
    """``dapper_args.privacy``: differential privacy of clients, and secure sums (docs/privacy.md)."""

    where: Literal["server", "client", "distributed"] = "server"
    """Who adds the noise: the server, to the sum of all uploads, so that it has to be trusted with them; every client,
    to its own upload, which takes far more noise in all; or, ``distributed``, all clients together, each its share of
    what the server would add. That needs ``secure_aggregation``, or the server would see uploads with a share alone."""
    clip: float | None = Field(default=1.0, gt=0)
    """Largest l2 norm of what one client may change, over all coordinates that it sends; no limit when null, which goes
    with ``noise_multiplier: 0``."""
    noise_multiplier: float | None = Field(default=None, ge=0)
    """Standard deviation of the noise on each coordinate, in multiples of ``clip``. With 0 there is no noise, and no
    epsilon."""
    target_epsilon: float | None = Field(default=None, gt=0)
    """Instead of ``noise_multiplier``: epsilon of a client that takes part in all ``comm_round`` rounds, for which the
    least noise is chosen. Such a run cannot be extended."""
    delta: float | None = Field(default=None, gt=0, lt=1)
    """Delta of the guarantee (epsilon, delta); less than one over the number of clients."""
    noise_seed: Literal["run", "secret"] | None = None
    """``run``: the noise follows from ``random_seed``, so that a run repeats, and whoever knows the seed can take the
    noise off. ``secret``: it follows from the operating system's random numbers, and nobody can repeat it. When absent,
    ``run`` in simulation and ``secret`` across silos."""

    colluding: int = Field(default=0, ge=0)
    """Clients of a round that may tell an attacker which noise they added: where noise is ``distributed``, the others
    add as much more as makes up for it. A client that attacks others by the model it is sent is one of them."""

    secure_aggregation: SecureAggregationArgs | None = None
    """Sums under masks; uploads are seen by the server when absent."""

    @property
    def adds_noise(self) -> bool:
        """Whether updates are clipped and noise is added, even noise of size 0."""
        return self.secure_aggregation is None or self.where == "distributed"
