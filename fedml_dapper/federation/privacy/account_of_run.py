"""Mechanisms that ``dapper_args.privacy`` asks for, and the check that noise fits the numbers they sum in."""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, log2, prod, sqrt

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.privacy.accountant import epsilon, excess_of_sum, with_noise_for
from fedml_dapper.methods import Privacy, Problem, SecureSums
from fedml_dapper.process.extras import need
from fedml_dapper.pruning import rounding
from fedml_dapper.secure_sum import FixedPoint, Rules

_PLACE = "dapper_args.privacy"
_MOST_LOST = 0.1
"""Largest share of the clip that rounding to the steps of fixed-point numbers may take."""


def check_accountant(settings: Settings) -> None:
    """Check that what counts epsilon is installed, if ``settings`` need it.

    Raises:
        ConfigError: It is missing.
    """
    args = settings.dapper_args.privacy
    if args is not None and args.adds_noise and args.noise_multiplier != 0:
        need(_PLACE, "opacus", install="fedml-dapper[privacy]")


def settled_privacy(settings: Settings) -> Privacy | None:
    """Return the mechanism of differential privacy that ``settings`` ask for; None where they ask for no noise.

    Raises:
        ConfigError: No noise is enough for ``target_epsilon``, or what counts epsilon is not installed.
    """
    args = settings.dapper_args.privacy
    if args is None or not args.adds_noise:
        return None
    check_accountant(settings)
    by_default = "run" if settings.common_args.is_simulation else "secret"
    is_secret = (args.noise_seed or by_default) == "secret"
    privacy = Privacy(args.where, args.clip, args.noise_multiplier or 0.0, args.delta, is_secret)
    if args.target_epsilon is None:
        return privacy
    found = with_noise_for(privacy, args.target_epsilon, settings.train_args.comm_round)
    if found is None:
        raise ConfigError(
            f"{_PLACE}.target_epsilon: no noise is enough for {args.target_epsilon:g} with delta {args.delta:g} after"
            f" {settings.train_args.comm_round} rounds; choose a larger one"
        )
    return found


def settled_secure_sums(settings: Settings, privacy: Privacy | None) -> SecureSums | None:
    """Return rules and fixed-point code of the secure sums that ``settings`` ask for; None where they ask for none.

    A simulation sums in the same code without masks. Clients together add the noise of ``privacy``, each an equal share
    that is enough if the fewest clients of a sum are left, without those that may collude.
    """
    args = settings.dapper_args.privacy
    if args is None or args.secure_aggregation is None:
        return None
    secure = args.secure_aggregation
    clients = settings.train_args.client_num_per_round
    rules = Rules(secure.threshold, secure.fewest_holders, clients)
    largest = secure.largest_change
    if privacy is None:
        return SecureSums(rules, FixedPoint(largest, clients))
    share = privacy.std / sqrt(rules.min_holders - args.colluding)
    # If no client drops out, the sum has the noise of all of them, which the code needs room for.
    code = FixedPoint(largest if privacy.clip is None else min(largest, privacy.clip), clients, share * sqrt(clients))
    return SecureSums(rules, code, ceil(share * code.scale))


def check_steps(problem: Problem, personal: Collection[str]) -> None:
    """Raise :class:`ConfigError` where fixed-point numbers do not fit the noise that clients add together.

    Too much noise leaves room in 32 bits for coarse steps alone, to which changes are rounded; too little noise, in
    steps, is worse than Gaussian noise.
    """
    privacy = problem.privacy
    secure = problem.secure_sums
    if privacy is None or privacy.clip is None or secure is None:
        return
    tensors = problem.layout.tensors
    sent = [tensors[name] for name in problem.layout.travelling if name not in personal]
    weights = sum(prod(spec.shape) for spec in sent if spec.dtype.is_floating_point)
    step = f"2^-{round(log2(secure.code.scale))}"
    multiplier = f"{privacy.noise_multiplier:.4g}"
    lost = rounding(weights) / (privacy.clip * secure.code.scale)
    if lost > _MOST_LOST:
        raise ConfigError(
            f"{_PLACE}.noise_multiplier: noise of {multiplier} leaves room for steps of {step}, to which rounding"
            f" {weights:,} weights takes {100 * lost:.0f} % of the clip; choose a smaller one, or where: server"
        )
    if secure.noise_std and excess_of_sum(secure.noise_std, secure.rules.min_holders, weights):
        raise ConfigError(
            f"{_PLACE}.noise_multiplier: noise of {multiplier} is {secure.noise_std} steps of {step} a client, so few"
            " that a sum of such noise hides less than is counted; choose a larger one"
        )


def privacy_note(privacy: Privacy, comm_round: int) -> str:
    """Return the ledger's note on the privacy that a run of ``comm_round`` rounds promises."""
    after = epsilon(privacy, comm_round)
    promise = f"epsilon {after:.3g} with delta {privacy.delta:g}" if privacy.delta and after < float("inf") else "none"
    adds_noise = {"server": "the server", "client": "each client", "distributed": "clients together"}[privacy.where]
    seed = "secret noise" if privacy.is_secret else "noise that follows from the run's seed, which is for experiments"
    clip = "no clip" if privacy.clip is None else f"clip {privacy.clip:g}"
    return (
        f"differential privacy of a client in all {comm_round} rounds: {promise} (noise multiplier"
        f" {privacy.noise_multiplier:.4g}, {clip}, added by {adds_noise}; {seed})"
    )


def secure_sums_note(secure: SecureSums, is_simulation: bool) -> str:
    """Return the ledger's note on how a run sums securely."""
    rules = secure.rules
    code = secure.code
    how = "as a simulation, without masks: the same sums" if is_simulation else "under masks"
    return (
        f"secure aggregation, {how}: threshold {rules.threshold} clients, weights of fewer than {rules.min_holders}"
        f" holders stay as they were, changes up to {code.largest:g} to the nearest 2^{-round(log2(code.scale))}"
        f"{'' if is_simulation else f'; {describe_protection(rules, code.summands)}'}"
    )


def describe_protection(rules: Rules, silos: int) -> str:
    """Say in one line how many of the ``silos`` in a sum are hidden among each other by ``rules``."""
    allies = rules.allies(silos)
    helped = f" and {allies} of them help it, which leaves {rules.min_holders - allies} others" if allies else ""
    return f"a sum opens for at least {rules.min_holders} of {silos} silos, also if the server lies{helped}"
