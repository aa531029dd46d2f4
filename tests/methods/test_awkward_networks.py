"""Networks with a layer that runs twice, a norm of two layers, or one tensor of two names: trained, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedml_dapper.config import load_settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import build_experiment, simulate
from fedml_dapper.methods.catalogue.fdse import FDSE
from fedml_dapper.methods.parts.decomposition import decomposed_layers

from ..brought import brought, load_of

TWICE = """
class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.again, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.left, self.right, self.both = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.last = nn.Linear(4, num_classes)

    def forward(self, x):
        x = self.first(x)
        for _ in range(2):
            x = torch.relu(self.norm(self.again(x)))
        x = self.both(self.left(x)) + self.both(self.right(x))
        return self.last(x.mean((2, 3))) * 2
"""
TIED = """
class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.reduce = nn.Conv2d(3, 4, 3, stride=4)
        self.inner, self.last = nn.Linear(16, 4), nn.Linear(16, num_classes)
        self.last.weight = self.inner.weight

    def forward(self, x):
        x = torch.relu(self.reduce(x)).flatten(1)
        return self.last(x + self.inner(x).repeat(1, 4))
"""
FROZEN = """
class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.reduce, self.norm = nn.Conv2d(3, 4, 3, stride=4), nn.BatchNorm2d(4)
        self.inner, self.last = nn.Linear(16, 16), nn.Linear(16, num_classes)
        for layer in (self.reduce, self.norm, self.inner):
            layer.requires_grad_(False)

    def forward(self, x):
        return self.last(torch.relu(self.inner(self.norm(self.reduce(x)).flatten(1))))
"""
TWO_DOMAINS = 'return {"a": (TensorDataset(x[:16], y[:16]),) * 2, "b": (TensorDataset(x[16:], y[16:]),) * 2}'


def test_fdse_leaves_layers_whole_that_run_twice_and_meets_an_unseen_domain(tmp_path: Path) -> None:
    stranger = brought(tmp_path, load_of(TWO_DOMAINS), TWICE)
    asked = ["method=fdse", "evaluation.unseen_domain=b", "comm_round=2", "client_num_in_total=2"]
    experiment = build_experiment(load_settings([stranger.experiment], asked))
    assert isinstance(experiment.method, FDSE)
    assert list(decomposed_layers(experiment.method.problem.backbone)) == ["first.0"]
    [note] = [note for note in experiment.method.notes if "decomposes" in note]
    assert "again" in note
    _, rounds = simulate(experiment)
    assert rounds[-1].model_is_finite
    assert rounds[-1].scores is not None
    assert rounds[-1].scores.unseen_accuracy is not None


@pytest.mark.parametrize(
    "method",
    ["fedper", "fedrep", "fedbabu", "lg_fedavg", "partialfed", "dapper_args.params.partialfed={strategy: adaptive}"],
)
def test_a_tensor_is_not_kept_under_one_name_and_shared_under_another(tmp_path: Path, method: str) -> None:
    stranger = brought(tmp_path, load_of(), TIED)
    asked = ["method=partialfed", method] if "=" in method else [f"method={method}"]
    with pytest.raises(ConfigError, match=r"keep one of (last|inner).weight and .* which in .* are one tensor; untie"):
        build_experiment(load_settings([stranger.experiment], asked))


@pytest.mark.parametrize("method", ["fedavg", "local", "fedavgm"])
def test_tied_weights_are_trained_where_clients_keep_all_or_nothing(tmp_path: Path, method: str) -> None:
    stranger = brought(tmp_path, load_of(), TIED)
    _, [record] = simulate(build_experiment(load_settings([stranger.experiment], [f"method={method}"])))
    assert record.model_is_finite


@pytest.mark.parametrize("candidates", ["linear", "all"])
def test_fedcmd_elects_a_layer_that_clients_train(tmp_path: Path, candidates: str) -> None:
    stranger = brought(tmp_path, load_of(), FROZEN)
    params = f"dapper_args.params.fedcmd={{candidates: {candidates}}}"
    experiment = build_experiment(load_settings([stranger.experiment], ["method=fedcmd", params, "comm_round=3"]))
    _, rounds = simulate(experiment)
    assert rounds[-1].notes["personal_layer"] == "last"
