"""Networks with early exits, and what DepthFL and ScaleFL do alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedml_dapper.config import Norm, Settings, load_settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import Experiment, Server, build_experiment, simulate
from fedml_dapper.methods import METHODS, ClientContext, Downlink, Loss, Method, Problem
from fedml_dapper.methods.catalogue.depthfl import DepthFL
from fedml_dapper.methods.catalogue.scalefl import ScaleFL
from fedml_dapper.methods.parts.early_exits import EarlyExits, Exit, Prediction
from fedml_dapper.models import Backbone, example_image
from fedml_dapper.models.resnet import ResNet
from fedml_dapper.pruning import solve_widths, trace_layout, verify_layout
from fedml_dapper.pruning.layout import Scope

from ..grids import first_and_drawn

SettingsFactory = Callable[..., Settings]
DIGITS = Path(__file__).parents[2] / "config" / "digits_offline.yaml"
BOTH = ("depthfl", "scalefl")
IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
NAMES = ("stem.", "stages.0.", "stages.1.", "stages.2.", "stages.3.", "exits.0.", "exits.1.", "exits.2.", "predictor.")


def small(norm: Norm = "batch") -> ResNet:
    return ResNet([1, 1, 1, 1], 4, 10, norm)


def exits(prediction: Prediction = "ensemble", norm: Norm = "batch") -> EarlyExits:
    return EarlyExits(small(norm), prediction).eval()


def parts_of(model: Backbone) -> set[str]:
    """Which of the network's parts the model has."""
    return {part for part in NAMES if any(name.startswith(part) for name in model.state_dict())}


# The network


def test_the_networks_own_tensors_keep_names_and_values() -> None:
    plain = small().eval()
    model = EarlyExits(plain, "deepest").eval()
    added = model.state_dict().keys() - plain.state_dict().keys()
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in plain.state_dict().items())
    assert {name[:8] for name in added} == {"exits.0.", "exits.1.", "exits.2."}
    assert torch.equal(model(IMAGES), plain(IMAGES))
    assert torch.equal(model.predict(model.encode(IMAGES)), plain(IMAGES))
    assert model.predictor_name == "predictor"


def test_an_exit_pools_and_widens_its_way_past_every_later_stage() -> None:
    model = exits().train()
    leave = model.exits[1]
    assert isinstance(leave, Exit)
    features = model.stages[1](model.stages[0](model.stem(IMAGES)))
    passed = features
    for index, (narrow, wide) in zip((1, 5), ((8, 16), (16, 32)), strict=True):
        weight = leave.way[index].weight
        assert isinstance(weight, torch.Tensor)
        assert weight.shape == (wide, narrow, 1, 1)
        pooled = (passed[..., ::2, ::2] + passed[..., ::2, 1::2] + passed[..., 1::2, ::2] + passed[..., 1::2, 1::2]) / 4
        mixed = torch.einsum("oi,bihw->bohw", weight[:, :, 0, 0], pooled)
        passed = F.batch_norm(mixed, None, None, training=True).relu()
    logits = passed.mean(dim=(2, 3)) @ leave.classifier.weight.T + leave.classifier.bias
    torch.testing.assert_close(model.classify(IMAGES)[1], logits)


@pytest.mark.parametrize("prediction", ["ensemble", "deepest"])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_shallow_network_is_the_first_stages_with_their_classifiers(prediction: Prediction, depth: int) -> None:
    whole = exits(prediction)
    cut = whole.shallow(depth)
    lacking = whole.beyond(depth)
    assert cut.state_dict().keys() == whole.state_dict().keys() - lacking
    assert parts_of(cut) == {*NAMES[: 1 + depth], *NAMES[5 : 5 + depth]} - ({NAMES[8]} if depth < 4 else set())
    logits = whole.classify(IMAGES)[:depth]
    assert all(torch.equal(*pair) for pair in zip(cut.classify(IMAGES), logits, strict=True))
    answer = torch.stack(logits).mean(dim=0) if prediction == "ensemble" else logits[-1]
    assert torch.equal(cut(IMAGES), answer)
    assert torch.equal(cut.predict(cut.encode(IMAGES)), logits[-1])
    assert cut.predictor_name == ("predictor" if depth == 4 else f"exits.{depth - 1}.classifier")
    assert len(cut.head_tensors) == 2 * depth
    assert lacking == frozenset() or len(whole.state_dict()) > len(cut.state_dict())


def test_parameters_by_hand() -> None:
    whole = exits()
    counts = [sum(parameter.numel() for parameter in whole.shallow(depth).parameters()) for depth in (1, 2, 3, 4)]
    head = 32 * 10 + 10
    ways = [32 + 16, 128 + 32, 512 + 64]  # to 8, 16 and 32 channels: a 1x1 convolution and BatchNorm
    stem, stages = 108 + 8, [304, 944, 3680, 14528]
    expected = [stem + stages[0] + sum(ways) + head]
    expected.append(expected[0] + stages[1] + sum(ways[1:]) + head)
    expected.append(expected[1] + stages[2] + ways[2] + head)
    expected.append(expected[2] + stages[3] + head)
    assert counts == expected == [1534, 3544, 8130, 22988]


@pytest.mark.parametrize("norm", ["batch", "group", "standardised"])
@pytest.mark.parametrize("prediction", ["ensemble", "deepest"])
@pytest.mark.parametrize(("scope", "groups"), [("internal", 4 + 3), ("grouped", 4 + 4 + 6)])
def test_all_that_it_puts_out_is_traced(norm: Norm, prediction: Prediction, scope: Scope, groups: int) -> None:
    """No class is cut. Internal are each block's channels and what an exit has on its way, but not what it ends in."""
    model, image = EarlyExits(ResNet([1, 1, 1, 1], 8, 10, norm), prediction), example_image(16)
    layout = trace_layout(model, image, scope)
    assert len(layout.groups) == groups
    assert not layout.notes
    assert not any(axis.dim == 0 for name in model.head_tensors for axis in layout.tensors[name].axes)
    assert all(layout.tensors[name].macs_per_element == 1 for name in model.head_tensors if name.endswith("weight"))
    verify_layout(model, layout, {0.5: solve_widths(layout, 0.5, "parameters")}, image)


# The methods


class DeepestDepthFL(DepthFL):
    """DepthFL without the early classifiers' losses."""

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        return lambda model, batch: self.problem.task.loss(deepest(model, batch.inputs), batch.targets)


class DeepestScaleFL(ScaleFL):
    """ScaleFL without the early classifiers' losses."""

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        return lambda model, batch: self.problem.task.loss(deepest(model, batch.inputs), batch.targets)


def deepest(model: Backbone, images: torch.Tensor) -> torch.Tensor:
    assert isinstance(model, EarlyExits)
    return model.classify(images)[-1]


def with_method(experiment: Experiment, kind: type[Method[Any]], problem: Problem | None = None) -> Experiment:
    return replace(experiment, method=kind(kind.check_params({}), problem or experiment.method.problem))


@pytest.fixture(scope="module")
def full_models(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """FedAvg, and no client that would need less than the whole network. Nothing in it may change."""
    small = [
        "method=fedavg", "ratios=[0.0]", "width=8", "image_size=16", "client_num_in_total=4", "client_num_per_round=4",
        "client_share=0.04", "epochs=1", "batch_size=16", "comm_round=2", "frequency_of_the_test=9",
        f"output_dir={tmp_path_factory.mktemp('runs')}",
    ]  # fmt: skip
    return build_experiment(load_settings([DIGITS], small))


@pytest.mark.long
@pytest.mark.parametrize("kind", [DeepestDepthFL, DeepestScaleFL])
def test_full_models_without_the_early_losses_are_fedavg_bit_for_bit(
    full_models: Experiment, kind: type[Method[Any]]
) -> None:
    fedavg = simulate(full_models)[0].state.weights
    ours = simulate(with_method(full_models, kind))[0].state.weights
    assert all(torch.equal(tensor, ours[name]) for name, tensor in fedavg.items())


@pytest.mark.parametrize("name", BOTH)
def test_a_network_of_one_stage_is_left_with_fedavg_bit_for_bit(full_models: Experiment, name: str) -> None:
    problem = replace(full_models.method.problem, backbone=ResNet([2], 8, 10), slims=False)
    fedavg, ours = (
        simulate(with_method(full_models, METHODS[method], problem))[0].state.weights for method in ("fedavg", name)
    )
    assert fedavg.keys() == ours.keys()
    assert all(torch.equal(tensor, ours[key]) for key, tensor in fedavg.items())


@pytest.mark.long
@pytest.mark.parametrize("name", BOTH)
def test_early_losses_move_the_network(full_models: Experiment, name: str) -> None:
    fedavg = simulate(full_models)[0].state.weights
    ours = simulate(with_method(full_models, METHODS[name]))[0].state.weights
    assert not torch.equal(fedavg["stem.0.weight"], ours["stem.0.weight"])


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("norm", first_and_drawn("batch", "group", "standardised"))
def test_every_level_trains_and_runs_what_its_footprint_says(
    tiny_settings: SettingsFactory, name: str, norm: Norm
) -> None:
    few = ("client_num_in_total=5", "client_num_per_round=5", "client_share=0.03", "epochs=1", "comm_round=1")
    experiment = build_experiment(tiny_settings(*few, f"method={name}", f"norm={norm}", "scope=grouped"))
    method = experiment.method
    server, rounds = simulate(experiment)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in server.state.weights.values())
    for client in rounds[-1].clients:
        cost = method.footprint(experiment.profiles[client.client].ratio)
        assert (client.params, client.macs, client.bytes_up, client.bytes_down) == (
            cost.parameters, cost.macs, cost.bytes_up, cost.bytes_down,
        )  # fmt: skip
    for level, ratio in enumerate((0.0, 0.2, 0.4, 0.6, 0.8), start=1):
        model, cost = method.level_model(server.state, level).eval(), method.footprint(ratio)
        assert isinstance(model, EarlyExits)
        assert sum(parameter.numel() for parameter in model.parameters()) == cost.parameters
        assert model(IMAGES).shape == (3, 10)
        for key, tensor in model.state_dict().items():
            cut = tuple(slice(size) for size in tensor.shape)
            assert torch.equal(tensor, server.state.weights[key][cut]), key


@pytest.mark.parametrize(("name", "default"), [("depthfl", "ensemble"), ("scalefl", "deepest")])
def test_which_classifiers_answer_is_a_setting(full_models: Experiment, name: str, default: Prediction) -> None:
    problem, answers = full_models.method.problem, dict[Prediction | None, torch.Tensor]()
    for prediction in ("ensemble", "deepest", None):
        kind, values = METHODS[name], {} if prediction is None else {"prediction": prediction}
        method = kind(kind.check_params(values), problem)
        server = Server(replace(full_models, method=method))
        model = method.global_model(server.state).eval()
        answers[prediction] = model(IMAGES)
        assert isinstance(model, EarlyExits)
        assert torch.equal(answers["ensemble"], torch.stack(model.classify(IMAGES)).mean(dim=0))
    assert not torch.equal(answers["ensemble"], answers["deepest"])
    assert torch.equal(answers[None], answers[default])


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=lenet5", "width=6"], "a built-in ResNet, resnet10 or resnet18; LeNet5 is another network"),
        (["model=torchvision:resnet18", "model_args.width=null"], "resnet10 or resnet18; ResNet is another network"),
        (["ratio_of=channels"], r"pruning\.ratio_of: `channels` says nothing of depth, which `\w+` scales"),
        (["scope=official_mask"], r"pruning\.scope .*official_mask.* needs a method that slims so"),
    ],
)
def test_what_has_no_depth_is_refused(
    tiny_settings: SettingsFactory, name: str, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_experiment(tiny_settings(f"method={name}", *overrides))
    assert "\n" not in str(caught.value)
