"""Draws of how many samples of each class every client gets, repeated until every client has enough."""

from __future__ import annotations

import copy
import logging
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedml_dapper.errors import ConfigError

Counts = NDArray[np.int64]

LOGGER = logging.getLogger(__name__)
MIN_SAMPLES = 40
"""Least number of samples of every client."""
MAX_DRAWS = 500_000
"""Draws before giving up; about a minute for ten classes and a hundred clients. MNIST with alpha 0.1 takes some
hundred; FedCMD's hardest case, OrganC with alpha 0.1, from 10,000 to more than this."""
AT_ONCE = 64
"""Draws made together as one array."""
_JUDGED_AFTER = 1024
"""Draws after which the chance of success is first estimated, from how many clients lack samples on average."""
_PARTS_TO_JUDGE = 8
"""Divisor of a small limit of draws, after which the chance of success is estimated."""
_HOPELESS = 0.02
"""Successes expected of all draws, below which they are given up. The estimate was above the true rate wherever both
are known."""
_TOLD_EVERY = 50_000
"""Draws between two progress messages."""
_DRAWS_OF_A_PROPOSAL = 2048
"""Limit of draws for an alpha that is tried as a proposal."""
_HIGHEST_ALPHA = 100.0


def draw_until_enough(class_sizes: Counts, num_clients: int, alpha: float, rng: np.random.Generator) -> Counts:
    """Return the samples per class and client, (classes, clients), of the first draw with ``MIN_SAMPLES`` for everyone.

    Raises:
        ConfigError: No draw is, or can be expected to be, such; the message proposes the lowest alpha of two digits
            with which the same ``rng`` soon succeeds.
    """
    initial_rng = copy.deepcopy(rng)
    attempt = _attempt(class_sizes, num_clients, alpha, rng, MAX_DRAWS, _HOPELESS)
    if attempt.counts is not None:
        return attempt.counts
    proposal = _lowest_that_works(class_sizes, num_clients, alpha, initial_rng)
    fewer = "lower train_args.client_num_in_total"
    remedy = f"no higher one works soon either; {fewer}"
    if proposal is not None:
        remedy = f"raise it to {proposal:g}, which works, or {fewer}"
    raise ConfigError(
        f"data_args.dirichlet_alpha: in each of {attempt.draws:,} draws with {alpha:g} someone held less than"
        f" {MIN_SAMPLES} of {class_sizes.sum()} samples, {attempt.lacking:.2g} of {num_clients} clients on average;"
        f" {remedy}"
    )


@dataclass(frozen=True)
class _Attempt:
    """Result of a series of draws."""

    counts: Counts | None
    """The first draw with which everyone has enough; None without one."""
    draws: int
    lacking: float
    """Mean number of clients with too few samples, per draw."""


def _attempt(
    class_sizes: Counts, num_clients: int, alpha: float, rng: np.random.Generator, most: int, hopeless: float
) -> _Attempt:
    """Draw up to ``most`` times, or stop early once fewer than ``hopeless`` successes can be expected of all these."""
    lacking = 0
    draws = 0
    while draws < most:
        drawn, stuck = _draw(class_sizes, num_clients, alpha, rng)
        short = (drawn.sum(axis=1) < MIN_SAMPLES).sum(axis=1)
        before = draws
        draws = draws + len(drawn)
        lacking = lacking + int(short.sum())
        good = (short == 0) & ~stuck
        if good.any():
            return _Attempt(drawn[good.argmax()], draws, lacking / draws)
        if (
            draws >= min(_JUDGED_AFTER, most // _PARTS_TO_JUDGE)
            and most * _chance(lacking / draws, num_clients) < hopeless
        ):
            break
        if draws // _TOLD_EVERY > before // _TOLD_EVERY:
            LOGGER.warning(
                "data_args.dirichlet_alpha: drawn %s times of at most %s so far; someone of %d clients always held less"
                " than %d samples",
                f"{draws:,}",
                f"{most:,}",
                num_clients,
                MIN_SAMPLES,
            )
    return _Attempt(None, draws, lacking / draws)


def _chance(lacking: float, num_clients: int) -> float:
    """Chance that no client lacks samples in a draw, where ``lacking`` clients do on average, independently."""
    chance: float = (1 - lacking / num_clients) ** num_clients
    return chance


def _lowest_that_works(
    class_sizes: Counts, num_clients: int, alpha: float, initial_rng: np.random.Generator
) -> float | None:
    """The lowest alpha of two digits above ``alpha`` with which a copy of ``initial_rng`` soon succeeds."""
    steps = (digits * 10.0**power for power in range(-4, 1) for digits in range(10, 100))
    higher = [step for step in (*steps, _HIGHEST_ALPHA) if step > alpha]

    def works(candidate: float) -> bool:
        rng = copy.deepcopy(initial_rng)
        return _attempt(class_sizes, num_clients, candidate, rng, _DRAWS_OF_A_PROPOSAL, 0.1).counts is not None

    place = bisect_left(higher, True, key=works)
    return float(f"{higher[place]:.2g}") if place < len(higher) else None


def _draw(
    class_sizes: Counts, num_clients: int, alpha: float, rng: np.random.Generator
) -> tuple[Counts, NDArray[np.bool_]]:
    """Draw samples per class and client several times over, (draws, classes, clients).

    Also returns which draws are void, as all clients with a positive proportion of a class already held their even
    share.
    """
    draws = AT_ONCE
    counts = np.zeros((draws, len(class_sizes), num_clients), dtype=np.int64)
    held = np.zeros((draws, num_clients), dtype=np.int64)
    stuck = np.zeros(draws, dtype=np.bool_)
    for label, size in enumerate(class_sizes):
        proportions = rng.dirichlet(np.full(num_clients, alpha), draws) * (held < class_sizes.sum() / num_clients)
        total = proportions.sum(axis=1, keepdims=True)
        stuck |= ~(total[:, 0] > 0)
        ends = (np.cumsum(proportions / np.where(total > 0, total, 1), axis=1) * size).astype(np.int64)
        ends[:, -1] = size
        counts[:, label] = np.diff(ends, axis=1, prepend=0)
        held += counts[:, label]
    return counts, stuck
