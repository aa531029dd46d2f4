"""Momentum at the server, by hand and against FedAvg."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import Settings
from fedml_dapper.federation import Server, build_experiment, simulate
from fedml_dapper.methods.contract.batchnorm import running_statistics

SettingsFactory = Callable[..., Settings]
FIVE = ("client_num_in_total=5", "client_num_per_round=5", "client_share=0.05", "epochs=1")


def test_velocity_by_hand(tiny_settings: SettingsFactory) -> None:
    """beta 0.5; the mean is always 1 above the model that was sent, in one bias and in the statistics."""
    params = "dapper_args.params.fedavgm={server_momentum: 0.5}"
    experiment = build_experiment(tiny_settings(*FIVE, "method=fedavgm", params))
    method, server = experiment.method, Server(experiment).state
    bias, statistic = "predictor.bias", "stem.1.running_mean"
    server.weights[bias] = torch.zeros(10)
    reached = []
    for _ in range(3):
        above = {name: server.weights[name].clone() for name in (bias, statistic)}
        above[bias][0] += 1
        above[statistic] += 1
        method.server_update(server, {**server.weights, **above})
        assert torch.equal(server.weights[statistic], above[statistic])
        reached.append(server.weights[bias].tolist()[:2])
    assert reached == [[1.0, 0.0], [2.5, 0.0], [4.25, 0.0]]  # steps 1, 1.5, 1.75; who stands still does not move
    method.server_update(server, dict(server.weights))
    assert server.weights[bias].tolist()[:2] == [5.125, 0.0]  # nobody held it: the velocity fades


@pytest.mark.long
@pytest.mark.parametrize("aggregation", ["mean", pytest.param("median", marks=pytest.mark.nightly)])
def test_without_momentum_it_is_fedavg_and_with_it_the_first_round_is(
    tiny_settings: SettingsFactory, aggregation: str
) -> None:
    def weights(method: str, rounds: int, beta: float = 0.0) -> dict[str, Tensor]:
        params = f"dapper_args.params.fedavgm={{server_momentum: {beta}}}"
        robust = f"dapper_args.defence.aggregation={aggregation}"
        settings = tiny_settings(*FIVE, f"method={method}", f"comm_round={rounds}", params, robust)
        return simulate(build_experiment(settings))[0].state.weights

    plain, none = weights("fedavg", 2), weights("fedavgm", 2)
    assert all(torch.equal(tensor, none[name]) for name, tensor in plain.items())
    first, carried = weights("fedavg", 1), weights("fedavgm", 1, 0.9)
    assert all(torch.allclose(tensor, carried[name], rtol=0, atol=1e-6) for name, tensor in first.items())
    second = weights("fedavgm", 2, 0.9)
    backbone = build_experiment(tiny_settings(*FIVE)).method.problem.backbone
    initial, statistics = backbone.state_dict(), running_statistics(backbone)
    for name in plain.keys() - statistics.keys():
        if plain[name].is_floating_point():
            expected = plain[name] + 0.9 * (first[name] - initial[name])
            torch.testing.assert_close(second[name], expected, rtol=0, atol=1e-5)
