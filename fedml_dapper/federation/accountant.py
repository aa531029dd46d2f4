"""What the noise of ``dapper_args.privacy`` promises: epsilon by opacus' accountant of Rényi differential privacy.

A round is one use of the Gaussian mechanism on every client that is asked in it. Rounds compose (Mironov, CSF 2017, for
plans and models that follow from earlier rounds as for any), and are converted by Balle et al., AISTATS 2020. Clients
are drawn in numbers that are fixed, without replacement; for that no amplification is counted, nor is it needed that
nobody knows who was drawn: a client pays in full for every round in which it is asked, and nothing for the others.

Neighbours, where the server adds noise, are runs with and without one client's uploads, whose distance is the clip C.
Where clients add it together, that client's change is nothing in one of the runs, at the same distance. Where a client
adds it for itself, its data may be any other, and two of its uploads are up to 2 C apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import exp, inf, pi, sqrt
from warnings import catch_warnings, simplefilter

from fedml_dapper.federation.records import PrivacySpent
from fedml_dapper.methods import Privacy

_ORDERS = (
    *(1 + tenth / 100 for tenth in range(1, 100)),
    *(2 + tenth / 10 for tenth in range(90)),
    *range(11, 512, 2),
    *(2**k for k in range(9, 21)),
)
"""Of Rényi divergences, among which the best is taken: any will do, and more cost nothing."""
_MOST_NOISE = 1e6


def epsilon(privacy: Privacy, uses: int) -> float:
    """Of a client that was asked in ``uses`` rounds; infinite without noise."""
    if uses == 0:
        return 0.0
    if privacy.noise_multiplier == 0 or privacy.delta is None:
        return inf
    from opacus.accountants.analysis import rdp  # noqa: PLC0415  # an extra, and slow

    distance = 2 if privacy.where == "client" else 1
    spent = rdp.compute_rdp(q=1, noise_multiplier=privacy.noise_multiplier / distance, steps=uses, orders=list(_ORDERS))
    with catch_warnings():
        simplefilter("ignore", UserWarning)  # it wants more orders where the best is the largest; its bound holds
        found, _ = rdp.get_privacy_spent(orders=list(_ORDERS), rdp=spent, delta=privacy.delta)
    return max(0.0, float(found))


def with_noise_for(privacy: Privacy, target: float, uses: int) -> Privacy | None:
    """``privacy`` with the smallest noise multiplier, to four digits, whose epsilon after ``uses`` rounds is at most
    ``target``; None where none is large enough."""
    low = 0.0
    high = _MOST_NOISE

    def of(multiplier: float) -> Privacy:
        return replace(privacy, noise_multiplier=multiplier, is_for_target=True)

    if epsilon(of(high), uses) > target:
        return None
    while high - low > 1e-4 * high:
        middle = (low + high) / 2 if low else high / 10
        low, high = (low, middle) if epsilon(of(middle), uses) <= target else (middle, high)
    return of(high)


def excess_of_sum(std: int, summands: int, coordinates: int) -> float:
    """By how much a sum of that many discrete Gaussians of ``std`` is worse than a Gaussian of the same variance.

    For a distance of D and standard deviations S of that Gaussian, divergence of order a is at most a/2 (D/S)^2 for the
    Gaussian, and a/2 (D/S + excess)^2 for the sum (Kairouz, Liu and Steinke, ICML 2021, Proposition 14, where it is tau
    sqrt(d); ``std`` is at least 1/2). From 9 on it is 0 to float64: then the sum has the Gaussian's epsilon. More noise
    on top of it, from clients that need not have stayed, only makes that smaller.
    """
    total = sum(exp(-2 * (pi * std) ** 2 * k / (k + 1)) for k in range(1, summands))
    return 10 * total * sqrt(coordinates)


def spent(privacy: Privacy, before: PrivacySpent | None, uses: Mapping[int, int]) -> PrivacySpent:
    """What clients have spent after a round with so many ``uses`` of the mechanism, by client id."""
    rounds = {} if before is None else dict(before.rounds)
    for client_id, times in sorted(uses.items()):
        rounds[client_id] = rounds.get(client_id, 0) + times
    found = epsilon(privacy, max(rounds.values(), default=0))
    return PrivacySpent(epsilon=None if found == inf else found, delta=privacy.delta, rounds=rounds)
