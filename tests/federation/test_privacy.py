"""Differential privacy of clients in whole rounds: what it leaves as it is, what it bounds, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isnan, sqrt
from pathlib import Path

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import ClientSide, Edge, Experiment, Server, build_experiment, read_ledger, simulate
from fedml_dapper.federation.privacy.accountant import epsilon
from fedml_dapper.federation.round.edges import EdgeOrder
from fedml_dapper.methods import TrainingMetrics, Upload
from fedml_dapper.pruning import Tensors

from ..grids import ADAPTED, ON_ANY_NETWORK, sampled
from .interruptions import run_until

SettingsFactory = Callable[..., Settings]
SMALL = (
    "client_share=0.05", "epochs=1", "client_num_in_total=5", "client_num_per_round=5", "frequency_of_the_test=2",
)  # fmt: skip
FREE_OF_NORMS = (
    *SMALL, "norm=group", "aggregation_weights=uniform", "dapper_args.params.heterofl={masked_loss: false}",
    "dapper_args.params.fedrolex={masked_loss: false}",
)  # fmt: skip
SILENT = "dapper_args.privacy={clip: null, noise_multiplier: 0}"
NOISY = "dapper_args.privacy={clip: 0.5, noise_multiplier: 0.8, delta: 1.0e-5}"
ALLOWED = [
    "dapperfl_slim",
    "fedavg",
    "fedavgm",
    "feddrop",
    "fedecover",
    "fedmp",
    "fedrolex",
    "fiarse",
    "fjord",
    "heterofl",
]


def build(tiny_settings: SettingsFactory, *overrides: str) -> Experiment:
    return build_experiment(tiny_settings(*FREE_OF_NORMS, *overrides))


def weights_after(experiment: Experiment) -> Tensors:
    return simulate(experiment)[0].state.weights


def same(left: Tensors, right: Tensors) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.long
@pytest.mark.parametrize("method", sampled(["heterofl", "dapperfl_slim", "fedavg", "fedecover"], always=("heterofl",)))
def test_without_clip_and_noise_a_run_is_the_plain_one_bit_for_bit(tiny_settings: SettingsFactory, method: str) -> None:
    plain = weights_after(build(tiny_settings, f"method={method}"))
    for where in ("server", "client"):
        private = f"dapper_args.privacy={{clip: null, noise_multiplier: 0, where: {where}}}"
        assert same(plain, weights_after(build(tiny_settings, f"method={method}", private)))
    assert not same(plain, weights_after(build(tiny_settings, f"method={method}", NOISY)))


def one_round(experiment: Experiment, change: Callable[[Upload], Upload | None]) -> Tensors:
    """The model after a round in which client 2 sends what ``change`` makes of an upload, or nothing, others what they
    were sent."""
    server, nothing = Server(experiment), TrainingMetrics(1.0, 1, 1.0)
    for client_id in server.round_clients():
        sent = server.downlink(client_id)
        upload = Upload(1, client_id, experiment.clients[client_id].num_samples, sent.weights, nothing, sent.plan)
        made = change(upload) if client_id == 2 else upload
        if made is None:
            server.give_up(client_id)
        else:
            server.receive(made)
    server.close_round()
    return server.state.weights


def moved_by(size: float) -> Callable[[Upload], Upload]:
    def change(upload: Upload) -> Upload:
        weights = {
            name: tensor + size if tensor.is_floating_point() else tensor for name, tensor in upload.weights.items()
        }
        return replace(upload, weights=weights)

    return change


@pytest.mark.parametrize("method", ALLOWED)
def test_a_client_moves_no_model_by_more_than_it_may_also_where_it_is_missing(
    tiny_settings: SettingsFactory, method: str
) -> None:
    experiment = build(tiny_settings, f"method={method}", NOISY, "dapper_args.params.dapperfl_slim={recovery: holders}")
    without = one_round(experiment, lambda upload: None)
    for size in (1e-2, 1e3, 1e30, float("nan")):
        found = one_round(experiment, moved_by(size))  # of the same noise, as it follows from the seed
        distance = sqrt(sum(float((found[n].double() - without[n].double()).square().sum()) for n in found))
        assert distance <= 0.5 + 1e-4, size  # clip / 1: of a coordinate's holders there may be no other
        assert distance > 0.05 or isnan(size), size  # clip / 5, less what too few hold: it does count


ADAPTERS = ("method=dapperfl_slim", *ADAPTED, "model_args.norm=null", "comm_round=1")
"""Clients whose adapters have rank 4 or 2."""
ONE_RANK = "dapper_args.levels=[{rank: 4}]"


def test_without_clip_and_noise_unequal_adapters_are_averaged_as_without_privacy(
    tiny_settings: SettingsFactory,
) -> None:
    plain = weights_after(build(tiny_settings, *ADAPTERS))
    assert same(plain, weights_after(build(tiny_settings, *ADAPTERS, SILENT)))
    assert not same(plain, weights_after(build(tiny_settings, *ADAPTERS, NOISY)))


def test_unequal_adapters_spend_the_epsilon_of_equal_ones(tiny_settings: SettingsFactory) -> None:
    [unequal], [equal] = (simulate(build(tiny_settings, *ADAPTERS, NOISY, *levels))[1] for levels in ((), (ONE_RANK,)))
    assert len({client.bytes_up for client in unequal.clients}) == 2 > len({c.bytes_up for c in equal.clients})
    assert unequal.privacy is not None
    assert unequal.privacy == equal.privacy
    assert 0 < unequal.privacy.epsilon < float("inf")


def test_a_client_moves_unequal_adapters_by_no_more_than_it_may(tiny_settings: SettingsFactory) -> None:
    experiment = build(tiny_settings, *ADAPTERS, NOISY)
    without = one_round(experiment, lambda upload: None)
    for size in (1e-2, 1e3):
        found = one_round(experiment, moved_by(size))
        distance = sqrt(sum(float((found[n].double() - without[n].double()).square().sum()) for n in found))
        assert 0.05 < distance <= 0.5 + 1e-4


def test_a_diverged_upload_counts_as_none(tiny_settings: SettingsFactory) -> None:
    experiment = build(tiny_settings, "method=fedavg", NOISY)
    assert same(one_round(experiment, moved_by(float("nan"))), one_round(experiment, lambda upload: None))


@pytest.mark.long
def test_epsilon_stands_in_the_ledger_and_a_resumed_run_has_the_same_noise(
    tiny_settings: SettingsFactory, tmp_path: Path
) -> None:
    asked = ("method=dapperfl_slim", NOISY, "comm_round=3", "client_num_per_round=3", "checkpoint_every=1")
    whole = build(tiny_settings, *asked)
    server, records = simulate(whole, run_dir=tmp_path / "whole")
    _, rounds = read_ledger(tmp_path / "whole" / "ledger.jsonl")
    assert [record.privacy for record in rounds] == [record.privacy for record in records]
    privacy = whole.method.problem.privacy
    assert privacy is not None
    most = 0
    for record in rounds:
        assert record.privacy is not None
        assert sum(record.privacy.rounds.values()) == 3 * record.round
        most = max(record.privacy.rounds.values())
        assert record.privacy.epsilon == epsilon(privacy, most)
    assert 1 < most <= 3

    simulate(build(tiny_settings, *asked, "comm_round=2"), run_dir=tmp_path / "parts")
    resumed, later = simulate(build(tiny_settings, *asked), run_dir=tmp_path / "parts", resume=True)
    assert same(server.state.weights, resumed.state.weights)
    assert [record.privacy for record in later] == [record.privacy for record in records]


@pytest.mark.long
def test_secret_noise_is_other_noise_and_every_round_is_kept(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    secret = NOISY.replace("}", ", noise_seed: secret}")
    asked = ("method=fedavg", secret, "checkpoint_every=5", "checkpoints_kept=5", "comm_round=3")
    first = simulate(build(tiny_settings, *asked), run_dir=tmp_path / "run")[0].state.weights
    assert not same(first, weights_after(build(tiny_settings, *asked)))
    assert len(list((tmp_path / "run" / "checkpoints").glob("*.safetensors"))) == 3


@pytest.mark.parametrize("damaged", [1, 2])
def test_rounds_that_are_run_again_with_other_noise_count_again(
    tiny_settings: SettingsFactory, tmp_path: Path, damaged: int
) -> None:
    asked = ("method=fedavg", NOISY.replace("}", ", noise_seed: secret}"))
    simulate(build(tiny_settings, *asked, "comm_round=2"), run_dir=tmp_path / "run")
    newest_first = sorted((tmp_path / "run" / "checkpoints").iterdir(), reverse=True)
    for path in newest_first[:damaged]:
        path.write_bytes(b"")
    _, records = simulate(build(tiny_settings, *asked, "comm_round=3"), run_dir=tmp_path / "run", resume=True)
    spent = records[-1].privacy
    assert spent is not None
    assert set(spent.rounds.values()) == {3 + damaged}
    if damaged == 1:  # what the ledger says until the next round closes
        assert records[0].privacy is not None
        assert set(records[0].privacy.rounds.values()) == {2}
    plain = simulate(build(tiny_settings, *asked, "comm_round=3"))[1][-1].privacy
    assert plain is not None
    assert spent.epsilon > plain.epsilon  # type: ignore[operator]


@pytest.mark.parametrize("damaged", [1, 2])
def test_a_stop_before_the_first_round_after_a_resume_loses_no_account(
    tiny_settings: SettingsFactory, tmp_path: Path, damaged: int
) -> None:
    run_dir = tmp_path / "run"
    asked = ("method=fedavg", NOISY.replace("}", ", noise_seed: secret}"), "comm_round=3")
    run_until(3, tiny_settings(*FREE_OF_NORMS, *asked), run_dir)
    newest_first = sorted((run_dir / "checkpoints").iterdir(), reverse=True)
    for path in newest_first[:damaged]:
        path.write_bytes(b"")
    run_until(3 - damaged, tiny_settings(*FREE_OF_NORMS, *asked), run_dir)
    _, records = simulate(build(tiny_settings, *asked), run_dir=run_dir, resume=True)
    spent = records[-1].privacy
    assert spent is not None
    assert set(spent.rounds.values()) == {3 + damaged}


@pytest.mark.nightly
def test_workers_and_one_process_give_the_same_private_run(tiny_settings: SettingsFactory) -> None:
    for where in ("server", "client"):
        asked = ("method=dapperfl_slim", NOISY.replace("}", f", where: {where}}}"), "comm_round=1")
        assert same(
            weights_after(build(tiny_settings, *asked)), weights_after(build(tiny_settings, *asked, "workers=2"))
        )


def test_an_edge_clips_and_the_server_adds_noise_once(tiny_settings: SettingsFactory) -> None:
    experiment = build(tiny_settings, "method=fedavg", NOISY, "comm_round=1")
    edge = Edge(experiment)
    server = Server(experiment)
    clients = server.round_clients()
    order = EdgeOrder(
        1, 6, tuple(clients), tuple(clients), server.state.profiles, server.state.weights, server.state.memory
    )
    edge.begin(order)
    for client_id in clients:
        sent = edge.downlink(client_id)
        count = experiment.clients[client_id].num_samples
        edge.receive(moved_by(1e3)(Upload(1, client_id, count, sent.weights, TrainingMetrics(1.0, 1, 1.0), sent.plan)))
    total = edge.close().sum
    assert total.total == 5
    changes = [
        float((total.sums[name][0].view_as(before) - 5 * before.double()).square().sum())
        for name, before in server.state.weights.items()
    ]
    assert sqrt(sum(changes)) == pytest.approx(5 * 0.5)  # all in one direction, and without noise


def test_a_client_that_trusts_nobody_sends_noise_and_nothing_it_measured(tiny_settings: SettingsFactory) -> None:
    local = "dapper_args.privacy={clip: 0.5, noise_multiplier: 0.8, delta: 1.0e-5, where: client}"
    experiment = build(tiny_settings, "method=dapperfl_slim", local)
    server, clients = Server(experiment), ClientSide(experiment)
    client_id = server.round_clients()[0]
    sent = server.downlink(client_id)
    upload = clients.update(sent, experiment.clients[client_id])
    assert isnan(upload.metrics.loss)
    assert upload.metrics.seconds == 0
    change = torch.cat([(upload.weights[n] - sent.weights[n]).flatten() for n in upload.weights])
    assert float(change.std()) == pytest.approx(0.4, rel=0.05)
    server.receive(upload)
    for other in server.round_clients()[1:]:
        server.give_up(other)
    record = server.close_round()
    assert record.privacy is not None
    assert record.privacy.epsilon == epsilon(experiment.method.problem.privacy, 1)  # type: ignore[arg-type]


def test_noise_for_a_target_reaches_it_in_the_last_round_and_forbids_more(
    tiny_settings: SettingsFactory, tmp_path: Path
) -> None:
    target = "dapper_args.privacy={target_epsilon: 4, delta: 1.0e-5}"
    _, records = simulate(build(tiny_settings, "method=fedavg", target), run_dir=tmp_path / "run")
    assert records[-1].privacy is not None
    assert records[-1].privacy.epsilon == pytest.approx(4, rel=1e-3)
    with pytest.raises(ConfigError, match=r"noise is chosen for dapper_args\.privacy\.target_epsilon"):
        simulate(build(tiny_settings, "method=fedavg", target, "comm_round=3"), run_dir=tmp_path / "run", resume=True)


REFUSED = {
    "dapperfl", "fdse", "fedap", "fedcmd", "feddyn", "fedfa", "fedfomo", "fedheal", "fpl", "nefl", "pfedsim", "scaffold"
}  # fmt: skip


@pytest.mark.parametrize("method", sorted(ON_ANY_NETWORK))
def test_methods_that_learn_more_than_sums_are_refused_and_no_others(
    tiny_settings: SettingsFactory, method: str
) -> None:
    asked = tiny_settings(
        *FREE_OF_NORMS,
        SILENT,
        f"method={method}",
        *(() if method == "nefl" else ("dapper_args.levels.ratios=[0.0, 0.2]",)),
    )
    if method in ("fdse", "fedbn", "fedfa", "fpl"):  # which refuse a network without BatchNorm first
        asked = tiny_settings(*FREE_OF_NORMS, SILENT, f"method={method}", "norm=batch")
    if method in REFUSED:
        with pytest.raises(
            ConfigError, match=f"`{method}` learns .*: noise, and masks, are for sums and hide no more"
        ) as refused:
            build_experiment(asked)
        assert "\n" not in str(refused.value)
    else:
        build_experiment(asked)


@pytest.mark.parametrize("params", ["heterofl={masked_loss: true}", "fedrolex={}", "fedmp={ratio: eucb}"])
def test_what_a_method_learns_depends_on_its_settings(tiny_settings: SettingsFactory, params: str) -> None:
    method = params.partition("=")[0]
    with pytest.raises(ConfigError, match=f"`{method}` learns"):
        build(tiny_settings, f"method={method}", SILENT, f"dapper_args.params.{params}")


def test_statistics_of_batchnorm_are_refused_unless_they_stay_at_home(tiny_settings: SettingsFactory) -> None:
    with pytest.raises(ConfigError, match="does not go with BatchNorm's statistics in uploads"):
        build(tiny_settings, "method=fedavg", "norm=batch", NOISY)
    server, _ = simulate(build(tiny_settings, "method=fedavg", "norm=batch", "personal_layers=statistics", NOISY))
    counters = [tensor for name, tensor in server.state.weights.items() if name.endswith("num_batches_tracked")]
    assert counters
    assert all(int(counter) == 0 for counter in counters)  # how many batches clients train on stays theirs
    build(tiny_settings, "method=fedbn", "norm=batch", NOISY)
