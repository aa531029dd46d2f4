"""What a level needs is counted: held against what torch itself counts in a real round, and against hand figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedml_dapper.config import ModelArgs, PruningArgs, Settings, TrainArgs
from fedml_dapper.federation import ClientSide, Server, build_experiment
from fedml_dapper.fleet import demands
from fedml_dapper.fleet.demand import network_memory
from fedml_dapper.methods import METHODS, Method, Pass, Problem
from fedml_dapper.models import build_backbone, example_image
from fedml_dapper.models.training_memory import forward_memory
from fedml_dapper.pruning import DENSE
from tests.grids import sampled

SettingsFactory = Callable[..., Settings]
RATIOS = (0.0, 0.4, 0.8)


def method_of(name: str, params: dict[str, Any] | None = None, **training: Any) -> Method[Any]:
    example = example_image(16)
    backbone = build_backbone(ModelArgs(model="resnet10", width=8), 10, 0, example)
    args = TrainArgs(batch_size=16, epochs=5, **training)
    problem = Problem(backbone, example, args, PruningArgs(), uniform_weights=False, seed=0, ratios=RATIOS)
    return METHODS[name](METHODS[name].check_params(params or {}), problem)


ROUNDS = (
    "fedprox", "dapperfl", "dapperfl_slim", "fjord", "heterofl", "moon", "ditto", "fedrep", "fedcmd", "partialfed"
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", sampled(ROUNDS, always=("dapperfl",)))
def test_a_round_s_work_is_what_a_client_really_runs(name: str, tiny_settings: SettingsFactory) -> None:
    """Relative to FedAvg's own round, since torch leaves out norms and the first layer's input gradient."""
    shares = {}
    for method in ("fedavg", name):
        experiment = build_experiment(
            tiny_settings(
                f"method={method}", "epochs=3", "ratios=[0, 0.4, 0.8]", "image_size=16", "batch_size=4",
                "assignment=[1, 2, 3, 1, 2, 3, 1, 2, 3, 2]", "client_share=0.1", "max_grad_norm=null",
                "dapper_args.params.partialfed.strategy=adaptive", "dapper_args.params.dapperfl_slim.teach_every=2",
            )
        )  # fmt: skip
        server, client = Server(experiment), ClientSide(experiment)
        server.round_clients()
        data = experiment.clients[1].take(torch.arange(48))
        if name in ("moon", "partialfed"):  # whose first round has no earlier model
            client.update(server.downlink(1), data)
        with FlopCounterMode(display=False) as counter:
            client.update(server.downlink(1), data)
        counted = next(one for one in demands(experiment.method) if one.level == 2)
        shares[method] = counter.get_total_flops(), counted.round_macs
    ran, said = (shares[name][place] / shares["fedavg"][place] for place in (0, 1))
    assert said == pytest.approx(ran, rel=0.1)


def test_dapperfl_s_weak_clients_need_the_dense_network_s_memory_and_slim_ones_do_not() -> None:
    dense, *others = (one.memory_bytes for one in demands(method_of("fedavg")))
    assert others == [dense, dense]
    assert [one.memory_bytes for one in demands(method_of("dapperfl"))] == [dense, dense, dense]
    strong, *_, weak = (one.memory_bytes for one in demands(method_of("dapperfl_slim")))
    assert weak < 0.8 * dense < dense < strong  # the strongest holds a weaker network besides
    alone = [one.memory_bytes for one in demands(method_of("dapperfl_slim", {"distillation": 0}))]
    assert alone[0] == dense > alone[1] > alone[2] == weak


def test_teaching_in_every_third_step_costs_a_third() -> None:
    settings: list[dict[str, Any]] = [{}, {"teach_every": 3}, {"distillation": 0}]
    always, third, never = ([one.round_macs for one in demands(method_of("dapperfl_slim", each))] for each in settings)
    for level in (0, 1):
        assert third[level] - never[level] == pytest.approx((always[level] - never[level]) / 3)
    assert always[2] == third[2] == never[2]  # the weakest teaches nobody


def test_levels_that_do_not_train_need_nothing() -> None:
    assert [one.level for one in demands(method_of("fedavg_strong"))] == [1]


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 1), ("adam", 2)])
def test_a_network_s_memory_is_made_of_its_parts(optimizer: str, copies: int) -> None:
    memory = network_memory(method_of("fedavg", client_optimizer=optimizer), Pass(DENSE))
    backbone = build_backbone(ModelArgs(model="resnet10", width=8), 10, 0, example_image(16))
    parameters = 4 * sum(parameter.numel() for parameter in backbone.parameters())
    assert memory.gradients == parameters
    assert memory.optimizer == pytest.approx(copies * parameters, rel=0.001)  # Adam counts its steps
    assert memory.weights == sum(tensor.numel() * tensor.element_size() for tensor in backbone.state_dict().values())


def test_saved_activations_are_those_of_a_network_counted_by_hand() -> None:
    class Two(torch.nn.Sequential):
        """A linear layer saves its input; ReLU and the loss their outputs; each storage counts once, weights not at
        all."""

        def __init__(self) -> None:
            super().__init__(torch.nn.Flatten(), torch.nn.Linear(12, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))

    memory = forward_memory(Two(), torch.zeros(3, 3, 2, 2))
    assert (memory.saved, memory.largest) == (4 * 3 * (12 + 5 + 2), 4 * 3 * 12)


def test_a_network_that_puts_out_a_number_an_example_is_counted() -> None:
    network = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    assert forward_memory(network, torch.zeros(3, 4)).saved > 0
