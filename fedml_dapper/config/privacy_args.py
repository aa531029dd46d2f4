"""``dapper_args.privacy``: what a run's models may give away of one client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from fedml_dapper.config.limits import MAX_SECONDS
from fedml_dapper.config.rules import rule
from fedml_dapper.config.section import Section

_OF_NOISE: dict[str, Any] = {
    "where": "server",
    "noise_multiplier": None,
    "target_epsilon": None,
    "delta": None,
    "noise_seed": None,
    "clip": 1.0,
}
"""Settings that are about noise, and their defaults."""


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

    @rule
    def _noise_has_somewhere_to_hide(self) -> Iterator[str]:
        if self.where == "distributed" and self.secure_aggregation is None:
            yield (
                "where: distributed hides shares of noise in sums under masks; give secure_aggregation, e.g."
                " {threshold: 6}, or set where to server or client"
            )

    @rule
    def _nothing_is_said_of_noise_that_is_not_added(self) -> Iterator[str]:
        if self.adds_noise:
            return
        idle = [key for key, default in _OF_NOISE.items() if getattr(self, key) not in (None, default)]
        if idle:
            yield (
                f"secure_aggregation alone adds no noise, and leaves {idle[0]} without effect: set where to"
                f" distributed, and clients add noise together; or leave {idle[0]} out"
            )

    @rule
    def _one_size_of_noise_and_a_delta(self) -> Iterator[str]:
        if not self.adds_noise:
            return
        sizes = {"noise_multiplier": self.noise_multiplier, "target_epsilon": self.target_epsilon}
        given = [key for key, size in sizes.items() if size is not None]
        if len(given) != 1:
            yield (
                "give noise_multiplier, e.g. 1.1, or target_epsilon, e.g. 8; "
                + ("both are there" if given else "neither is there")
            )
        elif self.delta is None and sizes[given[0]] != 0:
            yield f"{given[0]} needs delta: an epsilon holds but for a probability of that; give e.g. 1e-5"

    @rule
    def _noise_is_measured_by_the_clip(self) -> Iterator[str]:
        if self.clip is None and self.noise_multiplier != 0 and self.adds_noise:
            yield "clip is null, and noise is measured by it; give one, e.g. 1.0"

    @rule
    def _some_noise_counts(self) -> Iterator[str]:
        if self.colluding and self.where != "distributed":
            yield f"colluding is about noise of where: distributed, which is {self.where}; leave it out"
        secure = self.secure_aggregation
        if secure is not None and self.colluding >= secure.fewest_holders:
            yield (
                f"colluding is {self.colluding}, and a weight may have {secure.fewest_holders} holders"
                " (secure_aggregation.min_holders), so that none is left whose noise counts; lower it"
            )

    @property
    def adds_noise(self) -> bool:
        """Whether updates are clipped and noise is added, even noise of size 0."""
        return self.secure_aggregation is None or self.where == "distributed"
