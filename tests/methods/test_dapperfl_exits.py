"""Slim networks with early exits, by hand; what all networks with exits do alike is in ``test_early_exits``, and how
channels are dealt is in ``test_dealing``."""

from __future__ import annotations

from collections.abc import Callable
from math import log

import pytest
import torch

from fedml_dapper.config import PruningArgs, Settings, TrainArgs
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import Experiment, Server, build_experiment, simulate
from fedml_dapper.methods import ClientContext, Downlink, Problem, payload_bytes
from fedml_dapper.methods.catalogue.dapperfl_exits import DapperFLExits, DapperFLExitsParams
from fedml_dapper.models import example_image
from fedml_dapper.models.resnet import ResNet
from fedml_dapper.pruning import PruningPlan

from .own_clients import at_start, loss_of

SettingsFactory = Callable[..., Settings]
RATIOS = (0.0, 0.3, 0.6)


def exits(**values: float) -> DapperFLExits:
    problem = Problem(
        ResNet([1, 1, 1, 1], 4, 10, "standardised"), example_image(16), TrainArgs(), PruningArgs(),
        uniform_weights=False, seed=0, ratios=RATIOS,
    )  # fmt: skip
    return DapperFLExits(DapperFLExitsParams(**values), problem)


@pytest.mark.parametrize("client_id", [0, 1, 2])
def test_the_loss_is_every_classifiers_and_how_far_early_ones_are_from_the_mean(
    fedavg: Experiment, client_id: int
) -> None:
    loss, model, batch = loss_of(exits(distillation=3), fedavg.clients[0], client_id, 1)
    logits = [each.detach().double() for each in model.classify(batch.inputs)]
    answer = torch.stack(logits).mean(dim=0).softmax(dim=1).tolist()
    assert len(logits) == 4
    expected = 0.0
    for index, probabilities in enumerate(each.softmax(dim=1).tolist() for each in logits):
        for row, label in enumerate(batch.targets.tolist()):
            expected -= log(probabilities[row][label])
            if index < 3:
                pairs = zip(answer[row], probabilities[row], strict=True)
                expected += 3 * sum(p * log(p / q) for p, q in pairs)
    assert loss.item() == pytest.approx(expected / len(batch.targets), rel=1e-5)


def test_the_mean_that_teaches_learns_nothing_by_it(fedavg: Experiment) -> None:
    """The deepest classifier, which is in the mean and is taught by nobody, has the gradient of its own loss alone."""
    _, model, batch = loss_of(exits(), fedavg.clients[0], 1, 1)
    downlink = Downlink(1, 1, {}, PruningPlan({}))
    client = ClientContext(fedavg.profiles[0], fedavg.clients[0])
    found = []
    for strength in (3.0, 0.0):
        loss = exits(distillation=strength).objective(client, downlink)(model, batch)
        found.append(torch.autograd.grad(loss, [layer.weight for layer in model.classifiers]))
    (*early, deepest), (*alone, plain) = found
    assert torch.equal(deepest, plain)
    assert not any(torch.equal(*pair) for pair in zip(early, alone, strict=True))


@pytest.mark.long
def test_with_full_models_nothing_taught_and_no_momentum_it_is_depthfl_bit_for_bit(
    tiny_settings: SettingsFactory,
) -> None:
    full = ("ratios=[0.0]", "ratio_of=parameters")
    plain = {"server_momentum": 0.0, "distillation": 0.0}
    found = [
        simulate(build_experiment(tiny_settings(*full, f"method={method}", f"dapper_args.params.{method}={own}")))
        for method, own in (("dapperfl_exits", plain), ("depthfl", {"distillation": 0.0}))
    ]
    ours, theirs = (server.state.weights for server, _ in found)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_a_client_has_all_exits_and_no_more_than_its_level_allows(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("method=dapperfl_exits", "norm=standardised"))
    method, server = experiment.method, Server(experiment)
    server.round_clients()
    for profile in experiment.profiles:
        downlink, cost = server.downlink(profile.client_id), method.footprint(profile.ratio)
        sent = sum(tensor.numel() for tensor in downlink.weights.values())
        assert sent == cost.parameters <= (1.01 - profile.ratio) * method.footprint(0.0).parameters
        assert {f"exits.{index}.classifier.weight" for index in range(3)} < downlink.weights.keys()
        assert payload_bytes(downlink, method.problem.layout) == cost.bytes_down == cost.bytes_up


def test_a_round_leaves_no_channel_out(tiny_settings: SettingsFactory) -> None:
    """Nor one of those on an exit's way."""
    dealt = "dapper_args.params.dapperfl_exits={dealt: 1.0}"
    experiment = build_experiment(tiny_settings("method=dapperfl_exits", "ratios=[0.2, 0.4, 0.6, 0.8]", dealt))
    server = Server(experiment)
    plans = [server.downlink(client_id).plan for client_id in server.round_clients()]
    groups = experiment.method.problem.layout.groups
    assert len(groups) == 4 + 3
    for name, group in groups.items():
        assert set(torch.cat([plan.kept[name] for plan in plans]).tolist()) == set(range(group.channels))


def test_the_server_goes_on_in_the_direction_of_earlier_rounds() -> None:
    method = exits(server_momentum=0.5)
    state = at_start(method)
    before = dict(state.weights)
    for moved in (1.0, 3.0):
        method.server_update(state, {name: tensor + moved for name, tensor in state.weights.items()})
    for name in method.problem.layout.trainable:  # 1, then half of 1 and 3
        torch.testing.assert_close(state.weights[name], before[name] + 4.5)


@pytest.mark.parametrize("setting", [{"dealt": 2}, {"server_momentum": 1}, {"distillation": -1}, {"ramp_up": 0.1}])
def test_settings_out_of_range_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"settings of dapperfl_exits.*{next(iter(setting))}"):
        DapperFLExits.check_params(setting)
