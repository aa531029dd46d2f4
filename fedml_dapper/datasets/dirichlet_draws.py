"""How many samples of each class every client gets: drawn until everyone has enough, or there is no hope of it."""

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
"""What every client holds at least."""
MAX_DRAWS = 500_000
"""Draws before it is given up; about a minute for ten classes and a hundred clients. MNIST with alpha 0.1 takes some
hundred; FedCMD's hardest case, OrganC with alpha 0.1, from 10,000 to more than this."""
AT_ONCE = 64
_JUDGED_AFTER = 1024
"""Draws that tell how many clients lack samples in one; of few draws a part has to do."""
_PARTS_TO_JUDGE = 8
_HOPELESS = 0.02
"""So few successes, expected of all draws, are none. The estimate is above what was found wherever both are known."""
_TOLD_EVERY = 50_000
_DRAWS_OF_A_PROPOSAL = 2048
"""An alpha that is proposed does with so many."""
_HIGHEST_ALPHA = 100.0


def draw_until_enough(class_sizes: Counts, num_clients: int, alpha: float, rng: np.random.Generator) -> Counts:
    """Samples per class and client, (classes, clients), the first draw in which everyone holds ``MIN_SAMPLES``.

    Raises :class:`ConfigError` where that does not come about, or is not to be expected, with the lowest alpha of two
    digits with which the same ``rng`` soon gives such a draw.
    """
    at_first = copy.deepcopy(rng)
    attempt = _attempt(class_sizes, num_clients, alpha, rng, MAX_DRAWS, _HOPELESS)
    if attempt.counts is not None:
        return attempt.counts
    proposal = _lowest_that_works(class_sizes, num_clients, alpha, at_first)
    raised = f"raise it to {proposal:g}, which works" if proposal is not None else "no higher one works soon either"
    raise ConfigError(
        f"data_args.dirichlet_alpha: in each of {attempt.draws:,} draws with {alpha:g} someone held less than"
        f" {MIN_SAMPLES} of {class_sizes.sum()} samples, {attempt.lacking:.2g} of {num_clients} clients on average;"
        f" {raised}, or lower train_args.client_num_in_total"
    )


@dataclass(frozen=True)
class _Attempt:
    """What came of some draws."""

    counts: Counts | None
    """The first draw with which everyone has enough; None where there was none."""
    draws: int
    lacking: float
    """Clients with too few samples, the mean over the draws."""


def _attempt(
    class_sizes: Counts, num_clients: int, alpha: float, rng: np.random.Generator, most: int, hopeless: float
) -> _Attempt:
    """Up to ``most`` draws; fewer where so many would bring less than ``hopeless`` successes."""
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
                " than %d samples", f"{draws:,}", f"{most:,}", num_clients, MIN_SAMPLES,
            )  # fmt: skip
    return _Attempt(None, draws, lacking / draws)


def _chance(lacking: float, num_clients: int) -> float:
    """Chance that nobody lacks samples in a draw, where ``lacking`` of all clients do on average, each by itself."""
    chance: float = (1 - lacking / num_clients) ** num_clients
    return chance


def _lowest_that_works(
    class_sizes: Counts, num_clients: int, alpha: float, at_first: np.random.Generator
) -> float | None:
    """The lowest alpha of two digits above ``alpha`` with which a generator like ``at_first`` soon succeeds."""
    steps = (digits * 10.0**power for power in range(-4, 1) for digits in range(10, 100))
    higher = [step for step in (*steps, _HIGHEST_ALPHA) if step > alpha]

    def works(candidate: float) -> bool:
        rng = copy.deepcopy(at_first)
        return _attempt(class_sizes, num_clients, candidate, rng, _DRAWS_OF_A_PROPOSAL, 0.1).counts is not None

    place = bisect_left(higher, True, key=works)
    return float(f"{higher[place]:.2g}") if place < len(higher) else None


def _draw(
    class_sizes: Counts, num_clients: int, alpha: float, rng: np.random.Generator
) -> tuple[Counts, NDArray[np.bool_]]:
    """Independent draws of the samples per class and client, (draws, classes, clients), and in which of them a class
    fell to full clients alone, so that they do not count."""
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
