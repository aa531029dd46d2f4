"""BatchNorm of any dimensions, synchronised, lazy or of the user's own class is BatchNorm to whoever asks for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from fedml_dapper.config import load_settings
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import ClientSide, Experiment, Server, build_experiment, simulate
from fedml_dapper.methods import recalibrate, running_statistics

CODE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

def load(dims=3, size=8):
    def part(seed):
        drawn = torch.Generator().manual_seed(seed)
        labels = torch.arange(size) % 2
        signal = labels.view(-1, *[1] * (dims + 1))
        return TensorDataset(signal + torch.randn(size, 2, *[4] * dims, generator=drawn), labels)
    return {"day": (part(1), part(2)), "night": (part(3), part(4))}

class Loud(nn.BatchNorm3d):
    def __init__(self, channels, loudness):
        super().__init__(channels)
        self.loudness = loudness
    def forward(self, x):
        return super().forward(x) * self.loudness

NORMS = {
    "batch": nn.BatchNorm3d,
    "flat": nn.BatchNorm2d,
    "line": nn.BatchNorm1d,
    "sync": nn.SyncBatchNorm,
    "lazy": lambda channels: nn.LazyBatchNorm3d(),
    "own": lambda channels: Loud(channels, 2.0),
    "untracked": lambda channels: nn.BatchNorm3d(channels, track_running_stats=False),
    "bare": lambda channels: nn.BatchNorm3d(channels, affine=False, track_running_stats=False),
    "instance": lambda channels: nn.InstanceNorm3d(channels, affine=True, track_running_stats=True),
    "none": lambda channels: nn.Identity(),
}

class Net(nn.Module):
    def __init__(self, num_classes, norm, dims=3, groups=1):
        super().__init__()
        convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        self.conv, self.bn = convolution(2, 4, 3, padding=1), NORMS[norm](4)
        self.deep, self.head = convolution(4, 4, 1, groups=groups), nn.Linear(4, num_classes)
        self.last = NORMS[norm](4) if groups > 1 else nn.Identity()
    def forward(self, x):
        return self.head(self.last(self.deep(torch.relu(self.bn(self.conv(x))))).flatten(2).mean(2))
"""
OF_BATCHES = ("batch", "sync", "lazy", "own")
ENTRIES = {f"bn.{key}" for key in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}

Build = Callable[..., Experiment]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """An experiment of somebody's own volumes, on a network with the ``norm``."""
    file = tmp_path / "volumes.py"
    file.write_text(CODE)

    def build(norm: str, *overrides: str, dims: int = 3) -> Experiment:
        content = {
            "data_args": {"dataset": "volumes.py:load", "arguments": {"dims": dims}},
            "model_args": {"model": "volumes.py:Net", "arguments": {"norm": norm, "dims": dims}},
            "train_args": {
                "client_num_in_total": 4, "client_num_per_round": 4, "comm_round": 2, "epochs": 1, "batch_size": 4,
                "learning_rate": 0.1,
            },
            "dapper_args": {"method": "fedavg", "output_dir": str(tmp_path)},
            "device_args": {"workers": 1},
        }  # fmt: skip
        config = tmp_path / "experiment.yaml"
        config.write_text(yaml.safe_dump(content))
        return build_experiment(load_settings([config], overrides))

    return build


@pytest.mark.parametrize("norm", OF_BATCHES)
def test_fedbn_keeps_it_at_home(build: Build, norm: str) -> None:
    experiment = build(norm, "method=fedbn")
    assert experiment.method.personal == ENTRIES
    server, _ = simulate(experiment)
    initial = experiment.method.problem.backbone.state_dict()
    for name, tensor in server.state.weights.items():
        assert torch.equal(tensor, initial[name]) == (name in ENTRIES), name


@pytest.mark.parametrize(("dims", "norm"), [(1, "line"), (1, "sync"), (2, "flat"), (2, "sync")])
def test_of_fewer_dimensions_too(build: Build, dims: int, norm: str) -> None:
    assert build(norm, "method=fedbn", dims=dims).method.personal == ENTRIES


@pytest.mark.parametrize("norm", ["instance", "none", "bare"])
def test_fedbn_refuses_to_be_fedavg(build: Build, norm: str) -> None:
    refused = r"`fedbn` keeps BatchNorm at home, and Net has none, or none with gains or stat.* would be fedavg"
    with pytest.raises(ConfigError, match=refused):
        build(norm, "method=fedbn")


def test_partialfed_refuses_to_keep_nothing(build: Build) -> None:
    with pytest.raises(ConfigError, match=r"partialfed\.local: Net has no batchnorm, so that clients would keep noth"):
        build("none", "method=partialfed", "dapper_args.params.partialfed={local: [batchnorm]}")
    build("none", "method=partialfed", "dapper_args.params.partialfed={local: []}")


@pytest.mark.parametrize("norm", OF_BATCHES)
def test_at_home_finds_norms_and_statistics(build: Build, norm: str) -> None:
    assert build(norm, "personal_layers=norms").method.personal == ENTRIES
    statistics = {"bn.running_mean", "bn.running_var"}
    assert build(norm, "personal_layers=statistics").method.personal == statistics


def test_at_home_finds_norms_that_look_at_one_sample(build: Build) -> None:
    assert build("instance", "personal_layers=norms").method.personal == ENTRIES
    with pytest.raises(ConfigError, match="Net has no BatchNorm, so that no statistics can stay at home"):
        build("instance", "personal_layers=statistics")


def test_what_tracks_no_statistics_has_none(build: Build) -> None:
    assert build("untracked", "method=fedbn").method.personal == {"bn.weight", "bn.bias"}
    with pytest.raises(ConfigError, match="no statistics can stay at home"):
        build("untracked", "personal_layers=statistics")
    experiment = build("untracked", "evaluation.devices=true")
    assert not running_statistics(experiment.method.problem.backbone)
    simulate(experiment)


@pytest.mark.parametrize("norm", OF_BATCHES)
def test_devices_are_scored_with_statistics_of_their_own(build: Build, norm: str) -> None:
    _, records = simulate(build(norm, "evaluation.devices=true"))
    assert records[-1].devices is not None
    assert records[-1].devices.own_statistics is not None


@pytest.mark.parametrize("norm", OF_BATCHES)
def test_newcomers_measure_statistics(build: Build, norm: str) -> None:
    experiment = build(norm)
    model = experiment.method.problem.backbone
    measured = recalibrate(model, experiment.clients[0], experiment.device)
    assert measured.keys() == {"bn.running_mean", "bn.running_var"}
    features = [model.get_submodule("conv")(images) for images, _ in experiment.clients[0]]
    expected = torch.stack([each.mean(dim=(0, 2, 3, 4)) for each in features]).mean(dim=0)
    torch.testing.assert_close(measured["bn.running_mean"], expected)


@pytest.mark.parametrize("norm", [*OF_BATCHES, "instance"])
def test_negative_variances_are_refused(build: Build, norm: str) -> None:
    experiment = build(norm)
    server, clients = Server(experiment), ClientSide(experiment)
    client_id = server.round_clients()[0]
    upload = clients.update(server.downlink(client_id), experiment.clients[client_id])
    upload.weights["bn.running_var"].neg_()
    with pytest.raises(ProtocolError, match=r"`bn\.running_var` holds negative variances"):
        server.receive(upload)


@pytest.mark.parametrize("norm", ["batch", "untracked"])
def test_pieces_of_a_batch_are_refused(build: Build, norm: str) -> None:
    with pytest.raises(ConfigError, match=r"BatchNorm \(.*Net.* has it\): it would normalise by pieces of a batch"):
        build(norm, "micro_batch_size=2")


@pytest.mark.parametrize("norm", OF_BATCHES)
def test_privacy_refuses_statistics(build: Build, norm: str) -> None:
    with pytest.raises(ConfigError, match=r"BatchNorm's statistics in uploads .*Net.* sends them"):
        build(norm, "privacy={clip: 1.0, noise_multiplier: 1.0, delta: 1.0e-5}", "aggregation_weights=uniform")


@pytest.mark.parametrize(("norm", "dims"), [("line", 1), ("flat", 2), ("sync", 2), ("batch", 3), ("own", 3)])
def test_fdse_decomposes_layers_in_front_of_it(build: Build, norm: str, dims: int) -> None:
    experiment = build(norm, "method=fdse", dims=dims)
    assert any(name.startswith("conv.bn_dse.") for name in experiment.method.personal)
    assert experiment.method.problem.backbone.get_parameter("conv.dse.weight").shape == (2, 1, *[3] * dims)
    assert not [note for note in experiment.notes if "fdse" in note]
    simulate(experiment)


def test_fdse_refuses_where_no_layer_has_one(build: Build) -> None:
    with pytest.raises(ConfigError, match="fdse decomposes layers"):
        build("untracked", "method=fdse")


def test_fdse_says_which_layers_it_leaves_whole(build: Build) -> None:
    experiment = build("batch", "method=fdse", "model_args.arguments={norm: batch, groups: 2}")
    assert any(name.startswith("conv.bn_dse.") for name in experiment.method.personal)
    assert any(note.startswith("`deep` shared as a whole: fdse decomposes") for note in experiment.notes)
    simulate(experiment)


@pytest.mark.parametrize("dims", [1, 3])
def test_fedap_compares_convolutions_of_any_dimensions(build: Build, dims: int) -> None:
    experiment = build("line" if dims == 1 else "batch", "method=fedap", dims=dims)
    server, _ = simulate(experiment)
    assert server.state.memory.values


@pytest.mark.parametrize("candidates", ["linear", "all"])
def test_fedcmd_elects_from_convolutions_of_any_dimensions(build: Build, candidates: str) -> None:
    experiment = build("batch", "method=fedcmd", f"dapper_args.params.fedcmd={{candidates: {candidates}}}")
    assert experiment.method.candidates == (("conv", "deep", "head") if candidates == "all" else ("head",))  # type: ignore[attr-defined]
    simulate(experiment)


def test_the_official_masks_refuse_what_they_would_leave_as_it_is(build: Build) -> None:
    official = (
        "method=dapperfl",
        "scope=official_mask",
        "dapper_args.params.dapperfl={recovery: zero, bn_statistics: slim}",
    )
    with pytest.raises(ConfigError, match="convolutions of images behind the first to zero, and Net has none"):
        build("batch", *official)
    build("flat", *official, dims=2)


def test_fedper_counts_convolutions_of_any_dimensions(build: Build) -> None:
    personal = build("batch", "method=fedper", "dapper_args.params.fedper={num_personal_layers: 2}").method.personal
    assert personal == {"deep.weight", "deep.bias", "head.weight", "head.bias"}


@pytest.mark.parametrize("method", ["partialfed", "fedcmd", "fjord", "heterofl", "dapperfl", "dapperfl_slim"])
def test_other_methods_go_with_it(build: Build, method: str) -> None:
    _, records = simulate(build("batch", f"method={method}", "levels.ratios=[0, 0.5]"))
    assert records[-1].scores is not None
