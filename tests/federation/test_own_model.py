"""Runs on networks of the user's own: every method on one, resumed runs, other code refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from torch import nn
from torch.nn import functional as F

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import RoundRecord, RunObserver, build_experiment, simulate
from fedml_dapper.models.adopt import AdoptedBackbone
from fedml_dapper.randomness.seeding import Stream, seeded_layers
from tests.pruning.networks import build

from ..grids import ON_ANY_NETWORK, sampled

SettingsFactory = Callable[..., Settings]
SMALL = (
    "width=null", "image_size=16", "client_num_in_total=4", "client_num_per_round=4", "client_share=0.05", "epochs=2",
    "batch_size=16", "comm_round=2", "frequency_of_the_test=2",
)  # fmt: skip
CODE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, channels=48, behind=None, dropout=0.0):
        super().__init__()
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(channels, num_classes))  # called last
        self.features = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(4),
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, channels), nn.ReLU(),
        )
        self.behind = behind

    def forward(self, x):
        logits = self.classifier(self.features(x))
        return logits if self.behind is None else logits * self.behind
"""
OWN_PARAMETERS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, channels=16):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4),
            nn.Conv2d(channels, channels, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(1))
        self.head = nn.Linear(channels, num_classes)

    def forward(self, x):
        if self.training:
            self.seen += 1
        return self.head(self.features(x) * self.scale)
"""
REFUSED = {
    "dapperfl_exits": "dapperfl_exits needs the stages of a built-in ResNet",
    "depthfl": "depthfl needs the stages of a built-in ResNet",
    "fedfa": "augments what comes out of convolutional stages, and Net marks none",
    "nefl": "nefl needs a network of residual blocks",
    "profl": "Net has no stages or blocks to train one after another; name modules of it in dapper_args.params.profl",
    "scalefl": "scalefl needs the stages of a built-in ResNet",
}
NEED_REPRESENTATIONS = ("dapperfl", "moon", "fpl", "fedsr", "pfedsim")


class Stopper(RunObserver):
    """Ctrl-C after the first round."""

    def round_finished(self, record: RoundRecord) -> None:
        raise KeyboardInterrupt


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(CODE)
    return path


@pytest.fixture
def own(tiny_settings: SettingsFactory, file: Path) -> SettingsFactory:
    return lambda *overrides: tiny_settings(f"model={file}:Net", *SMALL, *overrides)


@pytest.mark.parametrize("method", sampled(sorted(ON_ANY_NETWORK), quick=("dapperfl", "fdse")))
def test_every_method_runs_on_it_or_says_why_not(own: SettingsFactory, method: str) -> None:
    settings = own(f"method={method}", "round_to=2")
    if method in REFUSED:
        with pytest.raises(ConfigError, match=REFUSED[method]):
            build_experiment(settings)
        return
    server, records = simulate(build_experiment(settings))
    assert records[-1].scores is not None
    assert all(bool(torch.isfinite(tensor).all()) for tensor in server.state.weights.values())


@pytest.mark.parametrize("method", ["fedavg", "dapperfl", "dapperfl_slim"])
def test_what_the_network_s_own_class_holds_beside_layers_is_trained(
    tiny_settings: SettingsFactory, tmp_path: Path, method: str
) -> None:
    """A temperature, learned positions, a count: parameters and buffers of the outermost module."""
    (tmp_path / "own.py").write_text(OWN_PARAMETERS)
    settings = tiny_settings(f"model={tmp_path / 'own.py'}:Net", *SMALL, f"method={method}")
    server, _ = simulate(build_experiment(settings))
    assert server.state.weights["scale"] != 1
    assert server.state.weights["seen"] > 0


@pytest.mark.parametrize("method", ["fedrep", "fedbabu", "fedper"])
def test_the_head_is_the_layer_that_is_called_last(own: SettingsFactory, method: str) -> None:
    personal = build_experiment(own(f"method={method}")).method.personal
    assert personal == {"classifier.1.weight", "classifier.1.bias"}


@pytest.mark.parametrize("method", NEED_REPRESENTATIONS)
def test_representations_that_cannot_be_told_apart_are_one_line(own: SettingsFactory, method: str) -> None:
    with pytest.raises(
        ConfigError, match=f"works on representations .`{method}`. needs .*Net.* does not have"
    ) as caught:
        build_experiment(own(f"method={method}", "model_args.arguments={behind: 2.0}"))
    assert "\n" not in str(caught.value)
    without_dar = ("method=dapperfl", "dapper_args.params.dapperfl={gamma: 0}", "round_to=2")
    assert build_experiment(own(*without_dar, "model_args.arguments={behind: 2.0}")).method.name == "dapperfl"


@pytest.mark.parametrize("method", ["fedrep", "fedbabu"])
def test_a_network_without_head_is_one_line(tiny_settings: SettingsFactory, method: str) -> None:
    settings = tiny_settings("model=torchvision:squeezenet1_1", *SMALL, "image_size=32", f"method={method}")
    with pytest.raises(ConfigError, match="the last linear layer apart, and in front of the network's output there is"):
        build_experiment(settings)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet18"])
def test_torchvision_s_networks_train(tiny_settings: SettingsFactory, name: str) -> None:
    few = ("image_size=32", "client_share=0.02", "epochs=1", "comm_round=1", "method=fedavg")
    server, [record] = simulate(build_experiment(tiny_settings(f"model=torchvision:{name}", *SMALL, *few)))
    assert record.scores is not None
    assert [client.params for client in record.clients] == [
        sum(
            tensor.numel()
            for key, tensor in server.state.weights.items()
            if "running" not in key and "num_b" not in key
        )
    ] * 4


def test_fedavg_on_it_is_fedavg_written_by_hand_bit_for_bit(own: SettingsFactory) -> None:
    settings = own("method=fedavg")
    server, _ = simulate(build_experiment(settings))
    experiment, train = build_experiment(settings), settings.train_args
    model = experiment.method.problem.backbone
    assert isinstance(model, AdoptedBackbone)
    module = model.module
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    total = sum(client.num_samples for client in experiment.clients)
    for round_ in (1, 2):
        sums = {name: torch.zeros(tensor.shape, dtype=torch.float64) for name, tensor in weights.items()}
        for client in experiment.clients:
            module.load_state_dict(weights)
            module.train()
            optimizer = torch.optim.SGD(
                module.parameters(), train.learning_rate, train.momentum, weight_decay=train.weight_decay
            )
            for epoch in (1, 2):
                for images, labels in client.batches(round_, epoch):
                    optimizer.zero_grad()
                    F.cross_entropy(module(images), labels).backward()
                    optimizer.step()
            for name, tensor in module.state_dict().items():
                sums[name] += client.num_samples * tensor.double()
        weights = {name: (sums[name] / total).to(weights[name].dtype) for name in sums}
    assert all(torch.equal(tensor, server.state.weights[name]) for name, tensor in weights.items())


@pytest.mark.nightly
def test_dropout_follows_from_the_seed_and_a_resumed_run_goes_on_bit_for_bit(
    own: SettingsFactory, tmp_path: Path
) -> None:
    dropout = ("method=fedavg", "model_args.arguments={dropout: 0.5}", "checkpoint_every=1", "comm_round=3")
    whole, rounds = simulate(build_experiment(own(*dropout)), run_dir=tmp_path / "whole")
    torch.manual_seed(99)
    experiment = build_experiment(own(*dropout))
    with pytest.raises(KeyboardInterrupt):
        simulate(experiment, [Stopper()], tmp_path / "cut")
    resumed, later = simulate(build_experiment(own(*dropout)), run_dir=tmp_path / "cut", resume=True)
    assert all(torch.equal(tensor, resumed.state.weights[name]) for name, tensor in whole.state.weights.items())
    assert [record.scores for record in later] == [record.scores for record in rounds]


def test_other_code_is_refused_by_name_when_a_run_is_resumed(own: SettingsFactory, file: Path, tmp_path: Path) -> None:
    settings = own("method=fedavg", "comm_round=1")
    simulate(build_experiment(settings), run_dir=tmp_path / "run")
    file.write_text(CODE + "# another\n")
    with pytest.raises(
        ConfigError, match=r"model_args.model is nets.py:Net \(source .*\) there and nets.py:Net \(sourc"
    ):
        simulate(build_experiment(settings), run_dir=tmp_path / "run", resume=True)


# Networks that a program passes

SMALL_NETWORKS = ("densenet", "vision_transformer", "group_norm_resnet", "norm_free_resnet")
LARGE_NETWORKS = ("mobilenet_v2", "mobilenet_v3_small", "resnet50")


def networks_and_methods() -> list[ParameterSet]:
    """All methods on one network and one method on all small ones; of the product the rest is nightly."""
    of_every_change = {
        *product(SMALL_NETWORKS[:1], ("fedavg", "dapperfl", "heterofl")), *product(SMALL_NETWORKS, ("dapperfl",))
    }  # fmt: skip
    return [
        pytest.param(*cell, marks=() if cell in of_every_change else pytest.mark.nightly)
        for cell in product((*SMALL_NETWORKS, *LARGE_NETWORKS), ("fedavg", "dapperfl", "heterofl"))
    ]


@pytest.mark.parametrize(("name", "method"), networks_and_methods())
def test_a_round_on_every_kind_of_network(tiny_settings: SettingsFactory, name: str, method: str) -> None:
    few = (
        "image_size=32", "client_share=0.02", "epochs=2", "comm_round=1", "learning_rate=0.02",
        "dapper_args.levels.ratios=[0,0.3,0.6]", "dapper_args.levels.assignment=[1,2,3,3]",
    )  # fmt: skip
    experiment = build_experiment(tiny_settings(*SMALL, *few, "model=null", f"method={method}"), build(name))
    before = {key: tensor.clone() for key, tensor in experiment.method.problem.backbone.state_dict().items()}
    server, [record] = simulate(experiment)
    after = server.state.weights
    assert all(bool(torch.isfinite(tensor).all()) for tensor in after.values())
    trained = [key for key in before if not torch.equal(before[key], after[key])]
    assert len(trained) > 0.9 * len([key for key in before if "num_batches" not in key])
    sizes = [client.params for client in record.clients]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == (1 if method == "fedavg" else 3)


def passed_net() -> nn.Module:
    with seeded_layers(5, Stream.INITIALISATION):
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 12), nn.ReLU(), nn.Linear(12, 10))


def test_a_passed_network_is_trained_from_its_present_weights(tiny_settings: SettingsFactory) -> None:
    settings = tiny_settings(*SMALL, "model=null", "method=fedavg")
    net = passed_net()
    experiment = build_experiment(settings, net)
    assert all(torch.equal(experiment.method.problem.backbone.state_dict()[n], t) for n, t in net.state_dict().items())
    assert experiment.record().sources["model_args.model"].startswith("Sequential (source ")
    narrower = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 11), nn.ReLU(), nn.Linear(11, 10))
    other = build_experiment(settings, narrower).record().sources
    assert other["model_args.model"] != experiment.record().sources["model_args.model"]


def test_a_passed_network_that_contradicts_the_settings_is_refused(own: SettingsFactory) -> None:
    settings = own("method=fedavg")
    with pytest.raises(
        ConfigError, match=r"names `.*nets.py:Net` \(Net\), and the program passes another network \(Seq"
    ):
        build_experiment(settings, passed_net())
    same = build_experiment(settings).method.problem.backbone
    assert isinstance(same, AdoptedBackbone)
    weights = {name: torch.ones_like(tensor) for name, tensor in same.state_dict().items()}
    same.module.load_state_dict(weights)
    taken = build_experiment(settings, same.module).method.problem.backbone
    assert all(torch.equal(tensor, weights[name]) for name, tensor in taken.state_dict().items())
    with pytest.raises(ConfigError, match=r"another network \(Net\), e.g. in `classifier.1.weight`"):
        build_experiment(own("method=fedavg", "model_args.arguments={channels: 32}"), same.module)


class Tied(nn.Module):
    """A network two of whose layers share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3 * 8 * 8, 16)
        self.middle = nn.Linear(16, 16)
        self.again = nn.Linear(16, 16)
        self.again.weight = self.middle.weight
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.first(F.adaptive_avg_pool2d(x, 8).flatten(1)).relu()
        return self.head(self.again(self.middle(z).relu()).relu())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("fedavgm", "fedavgm={server_momentum: 0.9}"), ("feddyn", "feddyn={alpha: 0.1}"),
        ("scaffold", "scaffold={eta_g: 0.5}"), ("fedecover", "fedecover={gamma: 0.5, decay_interval: 1}"),
    ],
)  # fmt: skip
def test_what_the_server_does_to_a_shared_weight_reaches_clients(
    tiny_settings: SettingsFactory, method: str, params: str
) -> None:
    settings = tiny_settings(*SMALL, "model=null", "scope=grouped", f"method={method}", f"dapper_args.params.{params}")
    experiment = build_experiment(settings, model=Tied())
    server, _ = simulate(experiment)
    weights = server.state.weights
    by_server = weights["middle.weight"]
    assert torch.equal(weights["again.weight"], by_server)
    model = experiment.method.problem.backbone
    model.load_state_dict(weights)
    assert torch.equal(model.get_parameter("middle.weight"), by_server)
