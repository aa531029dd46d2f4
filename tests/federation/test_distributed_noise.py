"""Noise that clients add together, each a share of it under masks: as much as is counted, whoever leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import Experiment, RoundRecord, build_experiment, read_ledger, simulate
from fedml_dapper.federation.privacy.accountant import epsilon, excess_of_sum
from fedml_dapper.federation.wire.sum_codec import Deal, Masked, Revealed
from fedml_dapper.methods import Privacy
from fedml_dapper.pruning import Tensors, encoded_changes, slim_tensors

from ..grids import first_and_drawn
from .silos_in_process import SECURE, Federation
from .test_privacy import FREE_OF_NORMS, NOISY, same

SettingsFactory = Callable[..., Settings]
CLIP, MULTIPLIER = 0.5, 0.8


def shared(noise: str = "noise_multiplier: 0.8, delta: 1.0e-5", sums: str = "threshold: 3", more: str = "") -> str:
    """Of five clients."""
    settings = f"where: distributed, clip: {CLIP}, {noise}, noise_seed: run{more}, secure_aggregation: {{{sums}}}"
    return f"dapper_args.privacy={{{settings}}}"


def build(tiny_settings: SettingsFactory, *overrides: str) -> Experiment:
    return build_experiment(tiny_settings(*FREE_OF_NORMS, *overrides))


def weights_after(experiment: Experiment) -> Tensors:
    return simulate(experiment)[0].state.weights


def noise_of_round(federation: Federation, gone: dict[type, set[int]]) -> tuple[RoundRecord, Tensor]:
    """A round without these, and what its sum holds besides the changes of the clients that it names."""
    before = dict(federation.server.state.weights)
    record = federation.round(gone)
    exchange = federation.sums._exchange
    assert exchange is not None
    assert exchange.opened is not None
    problem = federation.experiment.method.problem
    assert problem.secure_sums is not None
    left = {name: total.clone() for name, (total, _) in exchange.opened.partial.sums.items()}
    for client in (one.client for one in record.clients):
        plan, weights = federation.changes[client]
        share = problem.noise_share(record.round, client)
        assert share is not None
        own = slim_tensors(before, problem.layout, plan)
        for name, numbers in encoded_changes(weights, own, problem.secure_sums.code, replace(share, std=0)).items():
            left[name] -= torch.from_numpy(numbers).view_as(left[name])
    return record, torch.cat([each.flatten() for each in left.values()]) / problem.secure_sums.code.scale


@pytest.mark.parametrize(
    ("gone", "summands"), [({}, 5), ({Revealed: {0, 3}}, 5), ({Deal: {1}}, 4), ({Deal: {1}, Masked: {2}}, 3)]
)
def test_an_opened_sum_has_the_noise_that_is_counted_and_that_of_those_who_stayed_on_top(
    silos: Callable[..., Federation], gone: dict[type, set[int]], summands: int
) -> None:
    federation = silos("method=fedavg", shared())
    record, noise = noise_of_round(federation, gone)
    assert len(record.clients) == summands
    assert len(noise) > 20_000
    counted = MULTIPLIER * CLIP
    assert float(noise.std()) == pytest.approx(counted * sqrt(summands / 3), rel=0.02)
    assert float(noise.mean()) == pytest.approx(0, abs=4 * counted / sqrt(len(noise)))


def test_a_weight_with_fewer_holders_than_the_threshold_has_no_less(silos: Callable[..., Federation]) -> None:
    """At three clients left, of whom two are enough for a weight, each gives half of what counts."""
    federation = silos("method=fedavg", shared(sums="threshold: 3, min_holders: 2"))
    _, noise = noise_of_round(federation, {Deal: {1}, Masked: {2}})
    assert float(noise.std()) == pytest.approx(MULTIPLIER * CLIP * sqrt(3 / 2), rel=0.02)


def test_noise_that_an_attacker_knows_is_made_up_for(silos: Callable[..., Federation]) -> None:
    federation = silos("method=fedavg", shared(more=", colluding: 2"))
    _, noise = noise_of_round(federation, {Deal: {1}, Masked: {2}})
    assert float(noise.std()) == pytest.approx(MULTIPLIER * CLIP * sqrt(3), rel=0.02)  # one of three gives all


def test_epsilon_is_that_of_the_server_s_noise_at_the_same_multiplier(tiny_settings: SettingsFactory) -> None:
    asked = ("method=fedavg", "comm_round=2")
    found = [simulate(build(tiny_settings, *asked, privacy))[1][-1].privacy for privacy in (NOISY, shared())]
    assert found[0] is not None
    assert found[0].epsilon is not None
    assert found[0] == found[1]
    secure = build(tiny_settings, *asked, shared()).method.problem.secure_sums
    assert secure is not None
    assert secure.noise_std > 10**6  # steps
    assert excess_of_sum(secure.noise_std, 3, 10**12) == 0


def test_what_a_sum_of_discrete_gaussians_is_worse_by() -> None:
    assert excess_of_sum(1, 1, 10**6) == 0  # one is no sum
    assert excess_of_sum(1, 2, 100) == pytest.approx(100 * 5.1723e-5, rel=1e-3)  # 10 exp(-pi^2) sqrt(100)
    assert excess_of_sum(9, 4096, 10**12) == 0
    assert excess_of_sum(8, 2, 1) > 0


@pytest.mark.long
@pytest.mark.parametrize("method", first_and_drawn("heterofl", "fedavg", "fedrolex", "dapperfl_slim"))
def test_the_model_is_that_of_the_simulation_bit_for_bit(
    silos: Callable[..., Federation], tiny_settings: SettingsFactory, method: str
) -> None:
    asked = (f"method={method}", shared(sums="threshold: 3, min_holders: 2"), "comm_round=2")
    simulated, records = simulate(build(tiny_settings, *asked))
    federation = silos(*asked)
    assert [federation.round({}).privacy for _ in records] == [record.privacy for record in records]
    assert same(simulated.state.weights, federation.server.state.weights)
    quiet = weights_after(build(tiny_settings, f"method={method}", SECURE, "comm_round=2"))
    assert not same(quiet, simulated.state.weights)


def test_with_drop_outs_it_is_the_sum_of_those_that_the_ledger_names(silos: Callable[..., Federation]) -> None:
    federation = silos("method=fedavg", shared())
    before = dict(federation.server.state.weights)
    record = federation.round({Deal: {1}, Masked: {2}})
    federation.server.state.weights, after = before, federation.server.state.weights
    assert same(federation.plain_mean([client.client for client in record.clients]), after)


def test_without_clip_and_noise_it_is_the_plain_secure_sum_bit_for_bit(tiny_settings: SettingsFactory) -> None:
    nothing = shared("noise_multiplier: 0").replace(f"clip: {CLIP}", "clip: null")
    plain = weights_after(
        build(tiny_settings, "method=fedavg", "dapper_args.privacy={secure_aggregation: {threshold: 3}}")
    )
    assert same(plain, weights_after(build(tiny_settings, "method=fedavg", nothing)))


@pytest.mark.nightly
def test_workers_and_one_process_give_the_same_run(tiny_settings: SettingsFactory) -> None:
    asked = ("method=dapperfl_slim", shared(sums="threshold: 3, min_holders: 2"), "comm_round=1")
    assert same(weights_after(build(tiny_settings, *asked)), weights_after(build(tiny_settings, *asked, "workers=2")))


@pytest.mark.long
def test_a_resumed_run_has_the_same_noise_and_account(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    asked = ("method=fedavg", shared(), "comm_round=3", "checkpoint_every=1")
    server, records = simulate(build(tiny_settings, *asked), run_dir=tmp_path / "whole")
    simulate(build(tiny_settings, *asked, "comm_round=2"), run_dir=tmp_path / "parts")
    resumed, later = simulate(build(tiny_settings, *asked), run_dir=tmp_path / "parts", resume=True)
    assert same(server.state.weights, resumed.state.weights)
    assert [record.privacy for record in later] == [record.privacy for record in records]
    run, _ = read_ledger(tmp_path / "whole" / "ledger.jsonl")
    [note] = [note for note in run.notes if note.startswith("differential privacy")]
    assert "noise multiplier 0.8, clip 0.5, added by clients together" in note


@pytest.mark.nightly
def test_silos_draw_noise_that_nobody_can_repeat_unless_they_are_told(silos: Callable[..., Federation]) -> None:
    told, by_default = shared(), shared().replace(", noise_seed: run", "")
    found = []
    for privacy in (told, told, by_default, by_default):
        federation = silos("method=fedavg", privacy)
        federation.round({})
        found.append(federation.server.state.weights)
    assert same(found[0], found[1])
    assert not same(found[0], found[2])
    assert not same(found[2], found[3])


def test_noise_for_a_target_reaches_it(tiny_settings: SettingsFactory) -> None:
    _, records = simulate(build(tiny_settings, "method=fedavg", shared("target_epsilon: 4, delta: 1.0e-5")))
    assert records[-1].privacy is not None
    assert records[-1].privacy.epsilon == pytest.approx(4, rel=1e-3)


def test_a_void_round_is_counted_all_the_same(silos: Callable[..., Federation]) -> None:
    federation = silos("method=fedavg", shared())
    record = federation.round({Deal: {0, 1, 2}})
    assert record.rolled_back is not None
    assert record.privacy is not None
    assert record.privacy.epsilon == epsilon(Privacy("distributed", CLIP, MULTIPLIER, 1e-5, is_secret=False), 1)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        ("noise_multiplier: 1.0e-9, delta: 1.0e-5", "hides less than is counted; choose a larger one"),
        ("noise_multiplier: 1.0e6, delta: 1.0e-5", "% of the clip; choose a smaller one, or where: server"),
    ],
)
def test_noise_for_which_32_bits_do_not_do_is_refused(tiny_settings: SettingsFactory, noise: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        build(tiny_settings, "method=fedavg", shared(noise))
    assert "\n" not in str(refused.value)
