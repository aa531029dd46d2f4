"""NeFL, by hand or bit for bit."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.config import PruningArgs, Settings, TrainArgs, load_settings
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import ClientSide, Experiment, Server, build_experiment, simulate
from fedml_dapper.methods import (
    ClientContext,
    ClientProfile,
    Downlink,
    Problem,
    ServerState,
    TrainingMetrics,
    Upload,
    payload_bytes,
)
from fedml_dapper.methods.catalogue.nefl import NeFL, NeFLParams, leading_widths
from fedml_dapper.models import Backbone, example_image
from fedml_dapper.models.resnet import BasicBlock, ResNet
from fedml_dapper.pruning import DENSE, ChannelGroup, ChannelLayout, Tensors, trace_layout
from fedml_dapper.pruning.layout import Scope

from .sample_counts import say_that_clients_hold

SettingsFactory = Callable[..., Settings]
CONFIG = Path(__file__).parents[2] / "config"
THREE = ("dapper_args.params.nefl.sizes=[0.16, 0.36, 1.0]", "ratios=[0.0, 0.4, 0.6]")
SMALL = (
    "width=8", "comm_round=1", "epochs=1", "client_share=0.05", "client_num_in_total=4", "client_num_per_round=4",
)  # fmt: skip


def build(*overrides: str) -> Experiment:
    files = [CONFIG / "digits_offline.yaml", CONFIG / "methods" / "nefl.yaml"]
    return build_experiment(load_settings(files, [*SMALL, *THREE, *overrides]))


def nefl(backbone: Backbone, scope: Scope = "grouped", **values: Any) -> NeFL:
    """The method on a backbone of the test's own; five levels, so that the default sizes fit."""
    ratios = (0.0, 0.2, 0.4, 0.6, 0.8)
    problem = Problem(
        backbone, example_image(16), TrainArgs(), PruningArgs(scope=scope), uniform_weights=False, seed=0, ratios=ratios
    )
    return NeFL(NeFLParams(**values), problem)


def method_of(experiment: Experiment) -> NeFL:
    assert isinstance(experiment.method, NeFL)
    return experiment.method


def opened(experiment: Experiment) -> Server:
    server = Server(experiment)
    server.round_clients()
    return server


def answer(downlink: Downlink, weights: Tensors | None = None, num_samples: int = 1) -> Upload:
    metrics = TrainingMetrics(loss=0.0, steps=1, seconds=0.0)
    return Upload(1, downlink.client_id, num_samples, weights or downlink.weights, metrics, downlink.plan)


def filled(downlink: Downlink, value: float) -> dict[str, Tensor]:
    return {name: torch.full_like(tensor, value) for name, tensor in downlink.weights.items()}


def prefix(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    return tensor[tuple(slice(size) for size in shape)]


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return build()


def test_widths_by_hand() -> None:
    groups = {f"g{c}": ChannelGroup(f"g{c}", c, ()) for c in (64, 128, 256, 512)}
    widths = [leading_widths(ChannelLayout(groups, {}), size).values() for size in (0.04, 0.16, 0.36, 0.64)]
    expected = [[13, 26, 52, 103], [26, 52, 103, 205], [39, 77, 154, 308], [52, 103, 205, 410]]
    assert [list(row) for row in widths] == expected
    hundred = ChannelLayout({"g": ChannelGroup("g", 100, ())}, {})
    assert leading_widths(hundred, 0.3025) == {"g": 55}  # 100 * sqrt(0.3025) is 55.00000000000001
    assert leading_widths(hundred, 0.3025, round_to=8) == {"g": 56}
    assert leading_widths(hundred, 0.95, round_to=8) == leading_widths(hundred, 1.0) == {}


@pytest.mark.long
def test_one_full_submodel_with_frozen_steps_is_fedavg_bit_for_bit(tiny_settings: SettingsFactory) -> None:
    def weights(*overrides: str) -> dict[str, Tensor]:
        return simulate(build_experiment(tiny_settings(*SMALL, *overrides)))[0].state.weights

    two = ("client_share=0.03", "comm_round=2")
    one = (*two, "method=nefl", "scope=grouped", "ratios=[0.0]")
    frozen = weights(*one, "dapper_args.params.nefl={sizes: [1.0], learnable_steps: false}")
    fedavg = weights("method=fedavg", *two)
    steps = frozen.keys() - fedavg.keys()
    assert all(torch.equal(tensor, frozen[name]) for name, tensor in fedavg.items())
    assert steps == {f"stages.{stage}.0.step" for stage in range(4)}
    assert all(float(frozen[name]) == 1 for name in steps)
    learnt = weights(*one, "comm_round=1", "dapper_args.params.nefl={sizes: [1.0]}")
    assert all(float(learnt[name]) != 1 for name in steps)


@pytest.mark.parametrize("scope", ["internal", "grouped"])
def test_steps_leave_groups_and_axes_as_they_are(scope: Scope) -> None:
    plain = ResNet([1, 2, 1, 1], 4, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layout = nefl(plain, scope).problem.layout
    expected = trace_layout(plain, torch.zeros(1, 3, 16, 16), scope)
    assert layout.groups == expected.groups
    assert {name: layout.tensors[name] for name in expected.tensors} == dict(expected.tensors)
    added = {name: layout.tensors[name].shape for name in layout.tensors.keys() - expected.tensors.keys()}
    assert added == dict.fromkeys([f"stages.{block}.step" for block in ("0.0", "1.0", "1.1", "2.0", "3.0")], ())


def test_slices_are_prefixes_of_the_next_larger(experiment: Experiment) -> None:
    method, server = method_of(experiment), opened(experiment)
    models = [method.weights(server.state, k) for k in (1, 2, 3)]
    consistent = server.state.weights.keys() - method.inconsistent
    assert {name.rpartition(".")[2] for name in consistent} == {"weight", "bias"}
    for smaller, larger in pairwise(models):
        assert all(smaller[name].equal(prefix(larger[name], smaller[name].shape)) for name in consistent)
        assert smaller["stages.3.0.conv1.weight"].numel() < larger["stages.3.0.conv1.weight"].numel()
    assert all(models[-1][name].equal(tensor) for name, tensor in server.state.weights.items())


def test_inconsistent_tensors_are_found_by_layer_type(experiment: Experiment) -> None:
    method = method_of(experiment)
    convolutions = {
        f"{name}.{key}"
        for name, layer in method.problem.backbone.named_modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
        for key in layer.state_dict()
    }
    assert method.inconsistent == method.problem.backbone.state_dict().keys() - convolutions
    shared = replace(method.problem, backbone=ResNet([1, 1, 1, 1], 4, 10))
    params = method.params.model_copy(update={"share_bn": True})
    assert NeFL(params, shared).inconsistent == {f"stages.{stage}.0.step" for stage in range(4)}


def test_level_l_trains_submodel_k_plus_1_minus_l(experiment: Experiment) -> None:
    method, server = method_of(experiment), opened(experiment)
    stems = {1: 8, 2: 5, 3: 4}  # ceil of 8 * 1, 8 * 0.6, 8 * 0.4
    for profile in experiment.profiles:
        downlink = server.downlink(profile.client_id)
        assert len(downlink.weights["stem.0.weight"]) == stems[profile.level]
        assert method.choose(server.state, profile.client_id) == 4 - profile.level


@pytest.mark.parametrize(("choice", "counts"), [("samples", (3, 5, 2, 7)), ("uniform", (1, 1, 1, 1))])
def test_each_shell_is_the_mean_over_those_who_own_it(choice: str, counts: tuple[int, ...]) -> None:
    experiment = build(f"aggregation_weights={choice}")
    method, server = method_of(experiment), opened(experiment)
    indices = [method.choose(server.state, client_id) for client_id in range(4)]
    shapes = {
        k: {name: tensor.shape for name, tensor in method.weights(server.state, k).items()} for k in method.submodels
    }
    values, held = (1.0, 2.0, 4.0, 8.0), (3, 5, 2, 7)
    say_that_clients_hold(server, held)
    for client_id, sent in enumerate(held):
        downlink = server.downlink(client_id)
        server.receive(answer(downlink, filled(downlink, values[client_id]), sent))
    server.close_round()

    def mean(chosen: list[int]) -> float:
        return sum(values[i] * counts[i] for i in chosen) / sum(counts[i] for i in chosen)

    assert indices.count(3) >= 1
    assert len(set(indices)) == 3
    for name, tensor in server.state.weights.items():
        if name in method.inconsistent:
            continue
        expected = torch.empty_like(tensor)
        for k in (3, 2, 1):
            prefix(expected, shapes[k][name]).fill_(mean([i for i in range(4) if indices[i] >= k]))
        torch.testing.assert_close(tensor, expected, atol=0, rtol=1e-6)
    for k in (1, 2, 3):
        own = [i for i in range(4) if indices[i] == k]
        for name, tensor in method.private(server.state, k).items():
            expected_value = mean(own) if tensor.is_floating_point() else max(values[i] for i in own)
            assert tensor.dtype == server.state.weights[name].dtype
            torch.testing.assert_close(tensor.double(), torch.full_like(tensor.double(), expected_value))
            assert k < 3 or tensor.equal(server.state.weights[name])


def test_submodels_that_nobody_trained_keep_their_private_sets(experiment: Experiment) -> None:
    method, server = method_of(experiment), opened(experiment)
    before = {k: method.private(server.state, k) for k in (1, 2, 3)}
    stem = server.state.weights["stem.0.weight"]
    client = next(p.client_id for p in experiment.profiles if p.level == 3)
    say_that_clients_hold(server, (1, 1, 1, 1))
    server.receive(answer(server.downlink(client), filled(server.downlink(client), 9.0)))
    server.close_round()
    after = {k: method.private(server.state, k) for k in (1, 2, 3)}
    assert all(float(tensor.double().mean()) == 9 for tensor in after[1].values())
    assert all(tensor.equal(before[k][name]) for k in (2, 3) for name, tensor in after[k].items())
    assert server.state.weights["stem.0.weight"][4:].equal(stem[4:])  # the shells have no owner either
    assert bool((server.state.weights["stem.0.weight"][:4] == 9).all())
    assert float(server.state.weights["stages.0.0.step"]) == 1


def test_without_training_nothing_changes(experiment: Experiment) -> None:
    method, server = method_of(experiment), opened(experiment)
    before = {k: method.weights(server.state, k) for k in (1, 2, 3)}
    say_that_clients_hold(server, range(10, 14))
    for client_id in range(4):
        server.receive(answer(server.downlink(client_id), num_samples=10 + client_id))
    server.close_round()
    after = {k: method.weights(server.state, k) for k in (1, 2, 3)}
    assert all(torch.equal(tensor, before[k][name]) for k in (1, 2, 3) for name, tensor in after[k].items())


def test_sharing_batchnorm_averages_it_over_all_owners() -> None:
    experiment = build("dapper_args.params.nefl.share_bn=true")
    method, server = method_of(experiment), opened(experiment)
    say_that_clients_hold(server, (1, 1, 1, 1))
    for client_id in range(4):
        downlink = server.downlink(client_id)
        server.receive(answer(downlink, filled(downlink, float(method.choose(server.state, client_id)))))
    server.close_round()
    indices = [method.choose(server.state, client_id) for client_id in range(4)]
    variance = server.state.weights["stem.1.running_var"]
    assert float(variance[0]) == pytest.approx(sum(indices) / 4)
    assert float(variance[-1]) == 3
    assert {name.rpartition(".")[2] for name in server.state.memory.tensors} == {"step"}


# Depth


@pytest.fixture(scope="module")
def deep() -> NeFL:
    return nefl(ResNet([1, 3, 1, 2], 4, 10), mode="depth", sizes=(0.1, 0.51, 0.6, 0.9, 1.0))


def at_start(method: NeFL) -> ServerState:
    weights = {name: tensor.clone() for name, tensor in method.problem.backbone.state_dict().items()}
    profiles = tuple(ClientProfile(i, "d", 5 - i, 0.0, 1) for i in range(5))  # client i trains sub-model i + 1
    return ServerState(0, weights, profiles)


def test_deepest_blocks_are_left_out_first(deep: NeFL) -> None:
    dense = sum(parameter.numel() for parameter in deep.problem.backbone.parameters())
    blocks = ("3.1", "1.2", "1.1")  # neither the first of a stage nor one that changes the shape
    sizes = [2 * c * c * 9 + 4 * c + 1 for c in (32, 8, 8)]  # two conv, two BatchNorm, the step
    shares = [1 - sum(sizes[:count]) / dense for count in range(4)]
    assert shares == pytest.approx([1, 0.545, 0.516, 0.487], abs=1e-3)
    expected = {1: blocks, 2: blocks[:2], 3: blocks[:1], 4: (), 5: ()}  # closest to 0.1, 0.51, 0.6, 0.9, 1
    for k, plan in deep.submodels.items():
        assert plan.kept == {}
        assert {name.removeprefix("stages.")[:3] for name in plan.omitted} == set(expected[k])


def test_the_last_block_kept_absorbs_those_left_out(deep: NeFL) -> None:
    state = at_start(deep)
    steps = {
        k: {name[7:10]: float(tensor) for name, tensor in deep.private(state, k).items() if name.endswith("step")}
        for k in deep.submodels
    }
    assert steps[1] == {"0.0": 1, "1.0": 3, "2.0": 1, "3.0": 2}
    assert steps[2] == {"0.0": 1, "1.0": 1, "1.1": 2, "2.0": 1, "3.0": 2}
    assert steps[3] == {"0.0": 1, "1.0": 1, "1.1": 1, "1.2": 1, "2.0": 1, "3.0": 2}
    assert all(sum(of_k.values()) == 7 for of_k in steps.values())


def test_a_shallow_model_computes_its_equation(deep: NeFL) -> None:
    model = deep.local_model(deep.submodels[1]).eval()
    model.load_state_dict(deep.weights(at_start(deep), 1))
    full, images = copy.deepcopy(deep.problem.backbone).eval(), torch.randn(2, 3, 16, 16)
    assert isinstance(full, ResNet)
    y = full.stem(images)
    for name, step in {"0.0": 1, "1.0": 3, "2.0": 1, "3.0": 2}.items():
        block = full.get_submodule(f"stages.{name}")
        assert isinstance(block, BasicBlock)
        y = F.relu(block.shortcut(y) + step * block.residual(y))
    torch.testing.assert_close(model(images), full.predictor(y.mean(dim=(2, 3))))


def test_both_halves_the_work_between_width_and_depth() -> None:
    method = nefl(ResNet([1, 3, 1, 2], 20, 10), mode="both", sizes=(0.1, 0.25, 0.3, 0.36, 1.0))
    plan = method.submodels[4]  # sqrt(0.36) = 0.6 each: ceil(20 sqrt(0.6)) = ceil(15.49) channels, block 3.1 left out
    assert plan.widths["stem.0"] == 16
    assert {name[:10] for name in plan.omitted} == {"stages.3.1"}


def test_frozen_steps_stay_where_they_start() -> None:
    backbone = ResNet([1, 2, 1, 1], 4, 10)
    method = nefl(backbone, mode="depth", learnable_steps=False)
    model = method.local_model(method.submodels[1])
    model.load_state_dict(method.weights(at_start(method), 1))
    assert float(model.state_dict()["stages.1.0.step"]) == 2
    assert not any(name.endswith("step") for name, _ in model.named_parameters())


@pytest.mark.parametrize("mode", ["width", "depth", "both"])
def test_downlinks_cost_what_the_footprint_says(mode: str) -> None:
    method = nefl(ResNet([1, 2, 1, 2], 8, 10), mode=mode)
    state = at_start(method)
    for client_id, ratio in enumerate((0.8, 0.6, 0.4, 0.2, 0.0)):
        downlink, cost = method.downlink(state, client_id), method.footprint(ratio)
        model = method.local_model(downlink.plan)
        model.load_state_dict(downlink.weights)
        assert sum(parameter.numel() for parameter in model.parameters()) == cost.parameters
        assert method.model_size(downlink.plan) == (cost.parameters, cost.macs)
        assert payload_bytes(downlink, method.problem.layout) == cost.bytes_down == cost.bytes_up


def test_clients_are_evaluated_on_their_own_submodel(experiment: Experiment) -> None:
    method, server = method_of(experiment), opened(experiment)
    for client_id in range(4):
        client = ClientContext(experiment.profiles[client_id], experiment.clients[client_id])
        model = method.personal_model(client, server.downlink(client_id)).state_dict()
        sent = method.weights(server.state, 4 - client.profile.level)
        assert model.keys() == sent.keys()
        assert all(torch.equal(tensor, sent[name]) for name, tensor in model.items())
    largest = method.global_model(server.state).state_dict()
    assert all(torch.equal(tensor, largest[name]) for name, tensor in server.state.weights.items())


# A round


@pytest.mark.parametrize("reach", [1, 2])
def test_draws_are_uniform_over_the_neighbours_that_exist(reach: int) -> None:
    method = nefl(ResNet([1, 1, 1, 1], 4, 10), dynamic_range=reach)
    state = at_start(method)
    for client_id in range(5):
        k = client_id + 1
        drawn = [method.choose(replace(state, round=round_), client_id) for round_ in range(600)]
        assert drawn == [method.choose(replace(state, round=round_), client_id) for round_ in range(600)]
        expected = set(range(k - reach, k + reach + 1)) & {1, 2, 3, 4, 5}
        assert set(drawn) == expected
        assert all(abs(drawn.count(one) / 600 - 1 / len(expected)) < 0.07 for one in expected)
    plan = method.plan(state, 2)
    assert plan.equals(method.downlink(state, 2).plan)
    assert plan is method.submodels[method.choose(state, 2)]


def test_a_round_repeats_itself_and_does_not_depend_on_arrival() -> None:
    results = []
    for order in ((0, 1, 2, 3), (2, 0, 3, 1)):
        experiment = build("dapper_args.params.nefl.dynamic_range=1", "random_seed=3")
        server, clients = opened(experiment), ClientSide(experiment)
        for client_id in order:
            upload = clients.update(server.downlink(client_id), experiment.clients[client_id])
            assert upload.plan.equals(server.downlink(client_id).plan)
            server.receive(upload)
        server.close_round()
        assert server.state.memory.values == {}
        results.append({**server.state.weights, **server.state.memory.tensors})
    assert results[0].keys() == results[1].keys()
    assert all(torch.equal(tensor, results[1][name]) for name, tensor in results[0].items())
    counters = [tensor for name, tensor in results[0].items() if name.endswith("num_batches_tracked")]
    assert {counter.dtype for counter in counters} == {torch.int64}
    assert all(bool(tensor.isfinite().all()) for tensor in results[0].values())


def without(weights: Tensors, name: str) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in weights.items() if key != name}


BAD: dict[str, tuple[Callable[[Upload], Upload], str]] = {
    "another sub-model": (lambda u: replace(u, plan=DENSE), "was sent sub-model 1"),
    "no step": (lambda u: replace(u, weights=without(u.weights, "stages.0.0.step")), "stages.0.0.step"),
    "no conv": (lambda u: replace(u, weights=without(u.weights, "stem.0.weight")), "stem.0.weight"),
    "odd norm": (lambda u: replace(u, weights={**u.weights, "stem.1.bias": torch.zeros(8)}), "stem.1.bias"),
    "odd conv": (lambda u: replace(u, weights={**u.weights, "stem.0.weight": torch.zeros(8, 3, 3, 3)}), "stem.0"),
    "unknown": (lambda u: replace(u, weights={**u.weights, "more": torch.zeros(1)}), "more"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_bad_uploads_are_refused_and_change_nothing(experiment: Experiment, mistake: str) -> None:
    spoil, message = BAD[mistake]
    method, state = method_of(experiment), opened(experiment).state
    client = next(p.client_id for p in experiment.profiles if p.level == 3)
    downlink = method.downlink(state, client)
    upload = answer(downlink, filled(downlink, 5.0))
    aggregation = method.aggregation(state)
    with pytest.raises(ProtocolError, match=message):
        aggregation.add(spoil(upload))
    aggregation.add(answer(downlink))
    aggregation.close()
    assert all(torch.equal(tensor, downlink.weights[name]) for name, tensor in method.weights(state, 1).items())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("sizes=[0.5, 0.25, 1.0]",), "must rise strictly and end with 1"),
        (("sizes=[0.25, 0.5]",), "must rise strictly and end with 1"),
        (("sizes=[]",), "must rise strictly and end with 1"),
        (("sizes=[0.0, 1.0]",), "greater than 0"),
        (("sizes=[0.5, 1.0]",), "nefl.sizes has 2 sub-models, dapper_args.levels.ratios 3"),
        (("mode=depth",), "nefl.mode: `depth` skips residual blocks"),
        (("mode=both",), "nefl.mode: `both` skips residual blocks"),
        (("dynamic_range=-1",), "dynamic_range"),
    ],
)
def test_wrong_settings_are_named(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(*(f"dapper_args.params.nefl.{override}" for override in overrides))


def test_wrong_combinations_are_named() -> None:
    with pytest.raises(ConfigError, match=r"levels\.ratios: nefl needs a ratio of its own"):
        build("ratios=[0.0, 0.4, 0.4]")
    with pytest.raises(ConfigError, match="official_mask"):
        build("scope=official_mask")

    class Linear(Backbone):
        def __init__(self) -> None:
            super().__init__()
            self.predictor = nn.Linear(3, 10)

        def encode(self, images: Tensor) -> Tensor:
            return images.mean(dim=(2, 3))

    with pytest.raises(ConfigError, match="residual blocks"):
        nefl(Linear())


def test_a_level_s_model_and_needs_are_its_own_whatever_clients_draw() -> None:
    method = method_of(build("dapper_args.params.nefl.dynamic_range=1"))
    plain = method_of(build())
    state = ServerState(1, method.problem.starting_weights(), build().profiles)
    for level in range(1, 4):
        sizes = [sum(p.numel() for p in each.level_model(state, level).parameters()) for each in (method, plain)]
        assert sizes[0] == sizes[1]
        phases = method.local_phases(ClientProfile(0, "", level, method.problem.ratios[level - 1], 0))
        assert [phase.passes[0].plan for phase in phases] == [method.submodels[k] for k in method.reachable(level)]
        assert sum(phase.epochs for phase in phases) == pytest.approx(method.problem.training.epochs)
    assert [list(method.reachable(level)) for level in (1, 2, 3)] == [[2, 3], [1, 2, 3], [1, 2]]
