"""Epsilon of the noise that ``dapper_args.privacy`` adds, by opacus' accountant of Rényi differential privacy.

A round is one use of the Gaussian mechanism on every client that is asked in it. Rounds compose, also where plans and
models depend on earlier rounds (Mironov, CSF 2017), and are converted to epsilon by Balle et al., AISTATS 2020.
Clients are sampled in a fixed number, without replacement. No amplification by sampling is counted, so the guarantee
holds even if it is known who was sampled: a client pays in full for every round in which it is asked, and nothing for
the others.

Neighbouring runs depend on who adds the noise; C is the clip:

* the server: runs with and without one client's uploads, at distance C;
* clients together: runs in which one client changes nothing or what it trained, at distance C;
* each client for itself: runs with any two data sets of that client, at distance 2 C.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import exp, inf, pi, sqrt
from warnings import catch_warnings, simplefilter

from fedml_dapper.federation.run_folder.records import PrivacySpent
from fedml_dapper.methods import Privacy

_ORDERS = (
    *(1 + tenth / 100 for tenth in range(1, 100)),
    *(2 + tenth / 10 for tenth in range(90)),
    *range(11, 512, 2),
    *(2**k for k in range(9, 21)),
)
"""Orders of the Rényi divergence, of which the one with the least epsilon counts: every order gives a valid bound."""
_MOST_NOISE = 1e6
"""Largest noise multiplier that :func:`with_noise_for` tries."""


def epsilon(privacy: Privacy, uses: int) -> float:
    """Return the epsilon of a client that was asked in ``uses`` rounds; infinite without noise."""
    if uses == 0:
        return 0.0
    if privacy.noise_multiplier == 0 or privacy.delta is None:
        return inf
    from opacus.accountants.analysis import rdp  # noqa: PLC0415  # an extra, and slow

    distance = 2 if privacy.where == "client" else 1  # in units of the clip
    spent = rdp.compute_rdp(q=1, noise_multiplier=privacy.noise_multiplier / distance, steps=uses, orders=list(_ORDERS))
    with catch_warnings():
        simplefilter("ignore", UserWarning)  # opacus warns where the best order is the largest; its bound holds
        found, _ = rdp.get_privacy_spent(orders=list(_ORDERS), rdp=spent, delta=privacy.delta)
    return max(0.0, float(found))


def with_noise_for(privacy: Privacy, target: float, uses: int) -> Privacy | None:
    """Return ``privacy`` with the least noise that meets a target.

    The noise multiplier is the smallest, to four digits, whose epsilon after ``uses`` rounds is at most ``target``.
    None where no multiplier is large enough.
    """
    low = 0.0
    high = _MOST_NOISE

    def with_multiplier(multiplier: float) -> Privacy:
        return replace(privacy, noise_multiplier=multiplier, is_for_target=True)

    if epsilon(with_multiplier(high), uses) > target:
        return None
    while high - low > 1e-4 * high:
        middle = (low + high) / 2 if low else high / 10  # powers of ten until the range is known, then bisection
        low, high = (low, middle) if epsilon(with_multiplier(middle), uses) <= target else (middle, high)
    return with_multiplier(high)


def excess_of_sum(std: int, summands: int, coordinates: int) -> float:
    """Return by how much a sum of discrete Gaussians is worse than a Gaussian of the same variance.

    For a distance D and a standard deviation S of the Gaussian, its divergence of order a is at most a/2 (D/S)^2, and
    that of the sum at most a/2 (D/S + excess)^2 (Kairouz, Liu and Steinke, ICML 2021, Proposition 14, where the excess
    is tau sqrt(d)). From ``std`` 9 on it is 0 in float64: then the sum has the Gaussian's epsilon. Noise of more
    clients than ``summands`` only makes the excess smaller.

    Args:
        std: Standard deviation of each summand, at least 1/2.
        summands: How many discrete Gaussians are added.
        coordinates: Dimension of the vector that the noise is added to.
    """
    total = sum(exp(-2 * (pi * std) ** 2 * k / (k + 1)) for k in range(1, summands))
    return 10 * total * sqrt(coordinates)


def spent(privacy: Privacy, before: PrivacySpent | None, uses: Mapping[int, int]) -> PrivacySpent:
    """Return what clients have spent after a round.

    Args:
        privacy: The mechanism.
        before: What was spent before the round; None in the first one.
        uses: How often the round used the mechanism on each client, by client id.
    """
    rounds = {} if before is None else dict(before.rounds)
    for client_id, times in sorted(uses.items()):
        rounds[client_id] = rounds.get(client_id, 0) + times
    found = epsilon(privacy, max(rounds.values(), default=0))
    return PrivacySpent(epsilon=None if found == inf else found, delta=privacy.delta, rounds=rounds)
