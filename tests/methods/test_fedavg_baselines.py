"""FedAvg on the weakest level's network for all, and among the strong clients alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import ClientSide, Server, build_experiment, simulate

SettingsFactory = Callable[..., Settings]
FIVE = ("client_num_in_total=5", "client_num_per_round=5")


@pytest.mark.nightly
def test_the_smallest_network_is_everybody_s(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings(*FIVE, "method=fedavg_small", "devices=true"))
    dapperfl = build_experiment(tiny_settings(*FIVE)).method
    full, weakest = dapperfl.problem, dapperfl.footprint(0.8)
    server, rounds = simulate(experiment)
    assert {client.params for client in rounds[-1].clients} == {weakest.parameters}
    assert {client.macs for client in rounds[-1].clients} == {weakest.macs}
    assert {client.bytes_down for client in rounds[-1].clients} == {rounds[-1].clients[0].bytes_up}
    assert rounds[-1].clients[0].bytes_down < 0.25 * dapperfl.footprint(0).bytes_down
    devices = rounds[-1].devices
    assert devices is not None
    assert rounds[-1].scores is not None
    assert {level.accuracy for level in devices.sent.levels} == {rounds[-1].scores.global_accuracy}
    kept = full.widths(0.8)
    name = next(iter(kept))
    initial, dense = experiment.method.problem.backbone.state_dict(), full.backbone.state_dict()
    assert torch.equal(initial[f"{name}.weight"], dense[f"{name}.weight"][: kept[name]])
    assert server.state.weights.keys() == dense.keys()


def test_at_the_full_size_it_is_fedavg_bit_for_bit(tiny_settings: SettingsFactory) -> None:
    few = (*FIVE, "dapper_args.levels.ratios=[0.0]")
    small, plain = (
        simulate(build_experiment(tiny_settings(*few, f"method={name}")))[0].state.weights
        for name in ("fedavg_small", "fedavg")
    )
    assert all(torch.equal(tensor, plain[name]) for name, tensor in small.items())


def test_only_strong_clients_train(tiny_settings: SettingsFactory) -> None:
    levels = "dapper_args.levels.assignment=[1, 3, 5, 1, 2]"
    experiment = build_experiment(tiny_settings(*FIVE, levels, "method=fedavg_strong"))
    _, rounds = simulate(experiment)
    assert all([client.client for client in record.clients] == [0, 3] and not record.absent for record in rounds)
    fedavg = build_experiment(tiny_settings(*FIVE, levels, "method=fedavg", "comm_round=1"))
    alone, clients = Server(fedavg), ClientSide(fedavg)
    alone.round_clients()
    uploads = {name: clients.update(alone.downlink(name), fedavg.clients[name]) for name in (0, 3)}
    total = sum(upload.num_samples for upload in uploads.values())
    one_round = simulate(build_experiment(tiny_settings(*FIVE, levels, "method=fedavg_strong", "comm_round=1")))[0]
    for name, tensor in one_round.state.weights.items():
        if tensor.is_floating_point():
            mean = sum(upload.num_samples * upload.weights[name].double() for upload in uploads.values()) / total
            torch.testing.assert_close(tensor.double(), mean, atol=1e-6, rtol=1e-6)


def test_without_strong_clients_there_is_nobody_to_train(tiny_settings: SettingsFactory) -> None:
    levels = "dapper_args.levels.assignment=[2, 3, 5, 4, 2]"
    with pytest.raises(ConfigError, match=r"no client of a level that `fedavg_strong` trains; .*levels"):
        build_experiment(tiny_settings(*FIVE, levels, "method=fedavg_strong"))


def test_nobody_trains_more_than_its_level_can_carry(tiny_settings: SettingsFactory) -> None:
    for method in ("fedavg_small", "fedavg_strong"):
        build_experiment(tiny_settings(*FIVE, "dapper_args.levels.strict=true", f"method={method}"))
    with pytest.raises(ConfigError, match=r"levels\.strict"):
        build_experiment(tiny_settings(*FIVE, "dapper_args.levels.strict=true", "method=fedavg"))


def test_under_masks_there_is_no_smallest_network(tiny_settings: SettingsFactory) -> None:
    with pytest.raises(ConfigError, match="official_mask removes nothing"):
        build_experiment(tiny_settings(*FIVE, "method=fedavg_small", "scope=official_mask"))
