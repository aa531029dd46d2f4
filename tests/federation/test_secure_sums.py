"""Secure aggregation in whole rounds of a simulation, which sums without masks what silos sum under them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import Experiment, build_experiment, simulate
from fedml_dapper.federation.privacy.account_of_run import describe_protection
from fedml_dapper.pruning import Tensors
from fedml_dapper.secure_sum import Rules

from ..grids import ON_ANY_NETWORK, first_and_drawn, sampled
from .test_privacy import ALLOWED, FREE_OF_NORMS, REFUSED, same

SettingsFactory = Callable[..., Settings]
SECURE = "dapper_args.privacy={secure_aggregation: {threshold: 3, min_holders: 2}}"


def build(tiny_settings: SettingsFactory, *overrides: str) -> Experiment:
    return build_experiment(tiny_settings(*FREE_OF_NORMS, *overrides))


def weights_after(experiment: Experiment) -> Tensors:
    return simulate(experiment)[0].state.weights


@pytest.mark.parametrize(  # without feddrop, which draws plans at any level
    "method", sampled(sorted({*ALLOWED} - {"feddrop"}), quick=("fedavg", "heterofl"))
)
def test_the_model_is_the_plain_one_but_for_rounding_and_for_what_too_few_hold(
    tiny_settings: SettingsFactory, method: str
) -> None:
    everybody = "dapper_args.levels.ratios=[0.0]"  # so that all hold everything
    asked = (f"method={method}", "comm_round=1", everybody)
    plain, secure = (weights_after(build(tiny_settings, *asked, *more)) for more in ((), (SECURE,)))
    for name, tensor in plain.items():
        assert torch.allclose(tensor, secure[name], rtol=0, atol=1e-6), name
    assert not same(plain, secure)


@pytest.mark.long
@pytest.mark.parametrize("method", first_and_drawn("heterofl", "fedavg", "fedrolex", "dapperfl_slim"))
def test_one_process_and_workers_come_to_the_same_model_bit_for_bit(
    tiny_settings: SettingsFactory, method: str
) -> None:
    asked = (f"method={method}", SECURE, "comm_round=2")
    assert same(weights_after(build(tiny_settings, *asked)), weights_after(build(tiny_settings, *asked, "workers=2")))


def test_what_fewer_hold_than_the_threshold_stays_as_it_was(tiny_settings: SettingsFactory) -> None:
    asked = (
        "method=heterofl",
        "comm_round=1",
        "dapper_args.levels.ratios=[0.0, 0.8]",
        "dapper_args.levels.assignment=[1, 2, 2, 2, 2]",
    )
    experiment = build(tiny_settings, *asked, SECURE)
    before, after = experiment.method.problem.backbone.state_dict(), weights_after(experiment)
    plain = weights_after(build(tiny_settings, *asked))
    moved, moved_plainly = ({n: after_[n] != before[n] for n in before} for after_ in (after, plain))
    assert sum(int(changed.sum()) for changed in moved.values()) < 0.5 * sum(
        int(changed.sum()) for changed in moved_plainly.values()
    )
    assert any(changed.any() for changed in moved.values())


@pytest.mark.parametrize("method", sorted(ON_ANY_NETWORK))
def test_methods_that_learn_more_than_sums_are_refused_and_no_others(
    tiny_settings: SettingsFactory, method: str
) -> None:
    norm = "norm=batch" if method in ("fdse", "fedbn", "fedfa", "fpl") else "norm=group"
    ratios = () if method == "nefl" else ("dapper_args.levels.ratios=[0.0, 0.2]",)
    asked = tiny_settings(*FREE_OF_NORMS, SECURE, f"method={method}", norm, *ratios)
    if method in REFUSED:
        with pytest.raises(
            ConfigError, match=f"`{method}` learns .*: noise, and masks, are for sums and hide no more"
        ) as refused:
            build_experiment(asked)
        assert "\n" not in str(refused.value)
    else:
        build_experiment(asked)


def test_the_ledger_says_what_is_summed_how(tiny_settings: SettingsFactory) -> None:
    [note] = [note for note in build(tiny_settings, "method=fedavg", SECURE).record().notes if "secure" in note]
    assert note == (
        "secure aggregation, as a simulation, without masks: the same sums: threshold 3 clients, weights of fewer than"
        " 2 holders stay as they were, changes up to 1 to the nearest 2^-28"
    )


@pytest.mark.parametrize(
    ("rules", "silos", "told"),
    [
        (Rules(3, 3), 5, "3 of 5 silos, also if the server lies"),
        (Rules(4, 4), 6, "4 of 6 silos, also if the server lies and 1 of them help it, which leaves 3 others"),
        (Rules(9, 3), 10, "3 of 10 silos, also if the server lies and 1 of them help it, which leaves 2 others"),
        (Rules(9, 8), 10, "8 of 10 silos, also if the server lies and 6 of them help it, which leaves 2 others"),
    ],
)
def test_one_line_says_whom_the_rules_protect(rules: Rules, silos: int, told: str) -> None:
    assert describe_protection(rules, silos) == f"a sum opens for at least {told}"
