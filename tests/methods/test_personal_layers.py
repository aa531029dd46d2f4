"""Norms that stay at home: never in a message, in full size in the client's memory, and FedBN where nothing is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedml_dapper.benches.grid import folder_name
from fedml_dapper.config import PersonalLayers, Settings, load_settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import ClientSide, Experiment, Server, build_experiment, simulate
from fedml_dapper.federation.scoring.devices import measure_devices
from fedml_dapper.methods import METHODS, ClientContext, Downlink, Upload, payload_bytes
from fedml_dapper.models import Backbone
from fedml_dapper.models.norms import norm_tensors
from fedml_dapper.pruning import PruningPlan

from ..grids import ON_ADAPTERS, sampled

SettingsFactory = Callable[..., Settings]
DIGITS = Path(__file__).parents[2] / "config" / "digits_offline.yaml"
SLIMMING = (
    *("dapperfl", "dapperfl_slim", "heterofl", "fedrolex", "fjord", "feddrop", "fedmp", "fedecover", "fiarse"),
    *("dapperfl_exits", "depthfl", "scalefl"),
)
DENSE = ("fedavg", "fedavg_small", "fedavg_strong")
FEW = (
    "client_num_in_total=5",
    "client_num_per_round=5",
    "client_share=0.05",
    "epochs=2",
    "comm_round=2",
    "frequency_of_the_test=2",
)
PERSONAL_LAYERS = """
dapper_args:
  personal_layers: norms
  evaluation: {devices: true}
"""
"""As in docs/devices.md."""


def small(folder: Path, *overrides: str) -> Experiment:
    """Five clients; loaded once, with a method to be put in."""
    few = ["method=fedavg", "width=8", "image_size=16", "batch_size=16", *FEW, f"output_dir={folder}"]
    return build_experiment(load_settings([DIGITS], [*few, *overrides]))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Of five levels."""
    return small(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Where nothing is cut."""
    return small(tmp_path_factory.mktemp("runs"), "ratios=[0.0]")


@pytest.fixture(scope="module")
def fedbn(whole: Experiment) -> tuple[Server, ClientSide]:
    """After two rounds of FedBN."""
    return rounds(with_method(whole, "fedbn", "none"), 2)[:2]


def with_method(base: Experiment, name: str, personal_layers: PersonalLayers, **params: Any) -> Experiment:
    method = METHODS[name]
    problem = replace(base.method.problem, personal_layers=personal_layers)
    return replace(base, method=method(method.check_params(params), problem))


def level(experiment: Experiment, wanted: int) -> int:
    """A client of that level."""
    return next(profile.client_id for profile in experiment.profiles if profile.level == wanted)


def rounds(experiment: Experiment, count: int = 1) -> tuple[Server, ClientSide, list[Downlink], list[Upload]]:
    """Both sides at the end, with all that was sent in the last round."""
    server, clients = Server(experiment), ClientSide(experiment)
    for _ in range(count):
        downlinks = [server.downlink(client_id) for client_id in server.round_clients()]
        uploads = [clients.update(each, experiment.clients[each.client_id]) for each in downlinks]
        for upload in uploads:
            server.receive(upload)
        server.close_round()
    return server, clients, downlinks, uploads


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(tensor.equal(theirs[name]) for name, tensor in ours.items())


@pytest.mark.nightly
@pytest.mark.parametrize("method", sampled(["dapperfl", "fedrolex", "scalefl"], always=("dapperfl",)))
def test_an_experiment_file_switches_it_on(tiny_settings: SettingsFactory, tmp_path: Path, method: str) -> None:
    (tmp_path / "home.yaml").write_text(PERSONAL_LAYERS)
    experiment = build_experiment(tiny_settings(f"method={method}", *FEW, above=tmp_path / "home.yaml"))
    server, records = simulate(experiment)
    found, initial = records[-1].devices, experiment.method.problem.backbone.state_dict()
    assert found is not None
    assert found.own_statistics is not None
    home = norm_tensors(experiment.method.problem.backbone)
    assert all(server.state.weights[name].equal(initial[name]) == (name in home) for name in initial)
    for profile in experiment.profiles:
        data, memory = experiment.clients[profile.client_id], server.memories[profile.client_id]
        own = memory.recall("personal")
        assert {name: tensor.shape for name, tensor in own.items()} == {name: initial[name].shape for name in home}
        context = ClientContext(profile, data, memory)
        used = experiment.method.personal_model(context, server.downlink(profile.client_id))
        parameters = sum(parameter.numel() for parameter in used.parameters())
        assert parameters == experiment.method.footprint(profile.ratio).parameters
        assert found.sent.clients[profile.client_id] == accuracy(experiment, used, profile.domain)
    for figures in found.sent.levels:
        members = [profile for profile in experiment.profiles if profile.level == figures.level]
        assert figures.domain_accuracy == {each.domain: found.sent.clients[each.client_id] for each in members}


def accuracy(experiment: Experiment, model: Backbone, domain: str) -> float:
    """In percent, on the domain's test set."""
    test = next(test for test in experiment.tests if test.domain == domain)
    model.eval()
    right = sum(int((model(inputs).argmax(1) == targets).sum()) for inputs, targets in test.batches(experiment.device))
    return 100 * right / test.num_samples


@pytest.mark.parametrize("chosen", ["statistics", "norms"])
@pytest.mark.parametrize("method", sampled(SLIMMING, quick=("dapperfl", "heterofl")))
def test_it_is_in_no_message_and_in_no_footprint(base: Experiment, method: str, chosen: PersonalLayers) -> None:
    experiment, plain = (with_method(base, method, personal_layers) for personal_layers in (chosen, "none"))
    server = Server(experiment)
    server.round_clients()
    layout, home = experiment.method.problem.layout, experiment.method.personal
    assert all(name.endswith(("running_mean", "running_var")) for name in home) == (chosen == "statistics")
    for client_id in (level(experiment, 1), level(experiment, 4)):
        downlink = server.downlink(client_id)
        upload = ClientSide(experiment).update(downlink, experiment.clients[client_id])
        server.receive(upload)
        for message in (downlink, upload):
            assert not home & (message.weights.keys() | message.extras.keys())
            assert message.plan.omitted >= home
        ratio = experiment.profiles[upload.client_id].ratio
        cost, before = experiment.method.footprint(ratio), plain.method.footprint(ratio)
        assert (payload_bytes(upload, layout), payload_bytes(downlink, layout)) == (cost.bytes_up, cost.bytes_down)
        assert cost.bytes_up < before.bytes_up
        assert cost.bytes_down < before.bytes_down
        assert (cost.parameters, cost.macs) == (before.parameters, before.macs)
        assert experiment.method.model_size(upload.plan) == (cost.parameters, cost.macs)


@pytest.mark.parametrize("norm", ["batch", "group", "standardised"])
def test_what_a_norm_is(tiny_settings: SettingsFactory, norm: str) -> None:
    model = build_experiment(tiny_settings(f"norm={norm}", *FEW)).method.problem.backbone
    convolutions = {name for name, tensor in model.state_dict().items() if tensor.dim() == 4}
    shared = convolutions | {"predictor.weight", "predictor.bias"}
    assert norm_tensors(model) == model.state_dict().keys() - shared


def test_a_slim_round_writes_the_channels_that_it_trained(tiny_settings: SettingsFactory) -> None:
    """Channels 1 and 2 of four are held: their gains come from memory and go back there, the others stay."""
    experiment = build_experiment(tiny_settings("method=heterofl", "norm=standardised", "personal_layers=norms", *FEW))
    method, client_id = experiment.method, level(experiment, 3)
    group = next(iter(method.problem.layout.groups.values()))
    [gain] = [f"{producer.removesuffix('weight')}gain" for producer in group.producers]
    kept = torch.tensor([1, 2])
    plan = method.sendable(PruningPlan({group.name: kept}))
    weights = method.local_model(plan).state_dict()
    downlink = Downlink(1, client_id, {name: weights[name] for name in weights if name not in plan.omitted}, plan)
    client = ClientContext(experiment.profiles[client_id], experiment.clients[client_id])
    own = dict(method.problem.backbone.state_dict())
    own[gain] = torch.arange(10.0, 10.0 + group.channels)
    client.memory.keep("personal", {name: own[name] for name in method.personal})

    model = method.load(client, downlink)
    assert model.state_dict()[gain].tolist() == [11, 12]
    model.get_parameter(gain).data.copy_(torch.tensor([-1.0, -2.0]))
    method.keep_personal(client, model.state_dict(), plan)
    expected = own[gain].clone()
    expected[1:3] = torch.tensor([-1.0, -2.0])
    remembered = client.memory.recall("personal")
    assert remembered[gain].tolist() == expected.tolist()
    assert all(remembered[name].equal(own[name]) for name in method.personal if name != gain)


def test_a_client_s_first_round_leaves_what_it_lacks_at_the_initial_values(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("method=heterofl", "norm=standardised", "personal_layers=norms", *FEW))
    _, clients, downlinks, _ = rounds(experiment)
    weak = level(experiment, 5)
    own, plan = clients.memories[weak].recall("personal"), downlinks[weak].plan
    for name, kept in plan.kept.items():
        [gain] = [
            f"{name_.removesuffix('weight')}gain" for name_ in experiment.method.problem.layout.groups[name].producers
        ]
        cut = torch.ones(len(own[gain]), dtype=torch.bool)
        cut[kept] = False
        assert (own[gain][cut] == 1).all()
        assert (own[gain][kept] != 1).any()


@pytest.mark.parametrize("recovery", ["global", "zero", "holders"])
def test_the_server_s_own_stay_as_they_were(base: Experiment, recovery: str) -> None:
    params = {"recovery": recovery, "bn_statistics": "slim"}
    experiment = with_method(base, "dapperfl", "norms", **params)
    server, *_ = rounds(experiment)
    initial = experiment.method.problem.backbone.state_dict()
    assert all(server.state.weights[name].equal(initial[name]) for name in experiment.method.personal)
    assert list(server.state.weights) == list(initial)


def test_the_dense_epoch_of_dapperfl_renews_every_channel(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("method=dapperfl", "norm=standardised", "personal_layers=norms", *FEW))
    own = rounds(experiment)[1].memories[level(experiment, 5)].recall("personal")
    assert all((tensor != 1).all() for name, tensor in own.items() if name.endswith("gain"))


@pytest.mark.parametrize(
    ("method", "params"),
    sampled(
        [
            ("fedavg", {}),
            ("heterofl", {"masked_loss": False, "bn_statistics": "slim"}),
            ("fedmp", {}),
            ("fiarse", {"bn_statistics": "slim"}),
            ("dapperfl_slim", {"server_momentum": 0, "distillation": 0}),
            ("dapperfl", {"fusion": False, "gamma": 0}),
        ],
        quick=("heterofl",),
    ),
)
def test_where_nothing_is_cut_it_is_fedbn(
    whole: Experiment, fedbn: tuple[Server, ClientSide], method: str, params: dict[str, Any]
) -> None:
    server, clients, *_ = rounds(with_method(whole, method, "norms", **params), 2)
    assert same(server.state.weights, fedbn[0].state.weights)
    for client_id, memory in clients.memories.items():
        assert same(memory.recall("personal"), fedbn[1].memories[client_id].recall("personal"))


def test_it_is_tested_as_fedbn_is(tiny_settings: SettingsFactory) -> None:
    alike = ("ratios=[0.0]", "unseen_domain=fonts", *FEW, "epochs=1", "comm_round=1")
    _, ours = simulate(build_experiment(tiny_settings("method=fedavg", "personal_layers=norms", *alike)))
    _, fedbn = simulate(build_experiment(tiny_settings("method=fedbn", *alike)))
    assert ours[-1].scores is not None
    assert ours[-1].scores.unseen_accuracy is not None
    assert ours[-1].scores == fedbn[-1].scores


def test_by_default_all_is_sent_and_no_cell_gets_another_name(base: Experiment, tiny_settings: SettingsFactory) -> None:
    assert folder_name(tiny_settings("personal_layers=none")) == folder_name(tiny_settings())
    experiment = with_method(base, "heterofl", "none")
    server, _, downlinks, uploads = rounds(experiment)
    assert experiment.method.has_global_model
    for message in (*downlinks, *uploads):
        assert message.weights.keys() == server.state.weights.keys()
        assert not message.plan.omitted


@pytest.mark.parametrize("method", DENSE)
def test_full_models_keep_theirs_too(base: Experiment, method: str) -> None:
    experiment = with_method(base, method, "norms")
    server, clients, _, uploads = rounds(experiment)
    assert all(experiment.method.personal.isdisjoint(upload.weights) for upload in uploads)
    found = measure_devices(experiment, server.state, clients.memories)
    assert found is not None
    assert (found.sent.accuracy is None) == (method != "fedavg_small")
    assert measure_devices(experiment, server.state, None) is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("method=fedbn", "personal_layers=norms"),
            "none (norms) needs a method that does without what stays at the client (`fedbn` says",
        ),
        (
            ("method=nefl", "personal_layers=norms"),
            "(`nefl` needs all at its server): what it is about never reaches the server; set it to none, or",
        ),
        (
            ("method=scaffold", "personal_layers=statistics"),
            "none (statistics) needs a method that does without what stays at the client (`scaffold`",
        ),
        (
            ("method=fjord", "personal_layers=norms", "dapper_args.params.fjord={bn_statistics: dense}"),
            "fjord.bn_statistics: `dense` wants statistics at the server, and dapper_args.personal_layers `norms`",
        ),
        (
            ("norm=group", "personal_layers=statistics"),
            "has no BatchNorm, so that no statistics can stay at home; set it to",
        ),
        (
            ("personal_layers=norms", "norm=standardised", "importance=gains"),
            "does not go with gains that stay with clients (`dapperfl`): channels are compared by gains",
        ),
        (
            (
                "personal_layers=norms",
                "scope=official_mask",
                "dapper_args.params.dapperfl={recovery: zero, bn_statistics: slim}",
            ),
            "personal_layers other than none (norms) does not go with dapper_args.pruning.scope official_mask",
        ),
    ],
)
def test_what_cannot_stay_at_home_is_refused(
    tiny_settings: SettingsFactory, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        build_experiment(tiny_settings(*overrides))
    assert message in str(caught.value)


def test_every_method_takes_it_or_refuses(tiny_settings: SettingsFactory) -> None:
    assert {name for name in METHODS if METHODS[name].allows_personal_layers} == {
        *SLIMMING,
        *DENSE,
        *(name for name, _ in ON_ADAPTERS),
    }  # those for adapters are tried in tests/adapters
