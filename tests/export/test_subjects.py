"""Whose model is exported, under methods of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.export import Exporter, adapt, calibrated, choose
from fedml_dapper.federation.run_folder.finished import FinishedRun, open_finished
from fedml_dapper.federation.run_folder.model_file import load_model
from fedml_dapper.methods import ClientContext

from ..grids import first_and_drawn
from .conftest import ROOT, finish, write_pictures

BRANCHING = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 24, 3), nn.Linear(24, num_classes)

    def forward(self, images):
        z = self.conv(images).relu().mean((2, 3))
        if z.sum() > 1e9:
            z = -z
        return self.fc(z.view({size}, 24))
"""
"""Without norms; what it does depends on values, and perhaps on the batch that it was traced with."""


@pytest.fixture
def shots(finished: FinishedRun, tmp_path: Path) -> Path:
    """A folder of pictures."""
    write_pictures(finished, tmp_path / "shots", 12)
    return tmp_path / "shots"


def test_a_method_that_does_not_slim_has_the_whole_model_only(tmp_path: Path) -> None:
    run = finish(tmp_path / "run", "width=8", "method=fedavg")
    assert choose(run).level is None
    assert choose(run, level=1).level == 1
    with pytest.raises(ConfigError, match="trains the full model on everyone and has none for devices of level 4"):
        choose(run, level=4)


@pytest.mark.long
def test_a_level_in_depth_that_no_widths_come_to_is_exported(tmp_path: Path) -> None:
    """A network whose narrowest channels have 11.7 % of all parameters, and whose first stages have fewer."""
    depth = ("method=depthfl", "model=resnet10", "width=8", "ratios=[0.0, 0.5, 0.9]", "ratio_of=parameters")
    run = finish(tmp_path / "run", *depth)
    subject = choose(run, level=3)
    card = Exporter(run, ("safetensors",)).export(subject, tmp_path / "out")
    assert card.about.parameters == sum(parameter.numel() for parameter in subject.model.parameters())


@pytest.mark.nightly
@pytest.mark.parametrize(
    "overrides",
    [
        ("method=fedper",),
        pytest.param(("method=fedbn",), marks=pytest.mark.nightly),
        pytest.param(("method=ditto",), marks=pytest.mark.nightly),
        pytest.param(("method=pfedsim",), marks=pytest.mark.nightly),
        pytest.param(("method=dapperfl_slim", "norm=standardised", "personal_layers=norms"), marks=pytest.mark.nightly),
    ],
)
def test_a_client_s_own_model_is_the_one_that_it_is_tested_with(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    run = finish(tmp_path / "run", "width=8", "comm_round=2", *overrides, "personal=true")
    subject = choose(run, client=3)
    assert subject.whose == "client 3's own model"
    assert run.experiment is not None
    context = ClientContext(run.state.profiles[3], run.experiment.clients[3], run.memories[3])
    expected = run.method.personal_model(context, run.method.downlink(run.state, 3)).eval()
    with torch.no_grad():
        images = torch.randn(4, 3, 16, 16)
        assert subject.model(images).equal(expected(images))
        others = choose(run, client=2).model(images)
    assert not others.equal(subject.model(images))
    if not run.method.has_global_model:
        with pytest.raises(ConfigError, match=r"has no global model.*name one by --client"):
            choose(run)
    with pytest.raises(ConfigError, match="own model is of level"):
        choose(run, level=1 + run.state.profiles[3].level % 5, client=3)
    card = Exporter(run, ("torchscript",)).export(subject, tmp_path / "out")
    assert "client 3's own" in card.tested


def test_a_client_s_own_model_takes_its_checkpoint(tmp_path: Path) -> None:
    run = finish(tmp_path / "run", "width=8", "method=fedbn")
    for file in (run.folder / "checkpoints").iterdir():
        file.unlink()
    with pytest.raises(DataError, match="client 3's own model is in no checkpoint of round 1"):
        choose(open_finished(run.folder), client=3)


def test_statistics_cannot_be_measured_where_there_are_none(tmp_path: Path, shots: Path) -> None:
    run = finish(tmp_path / "run", "width=8", "norm=standardised")
    with pytest.raises(ConfigError, match="--calibrate: ResNet has no BatchNorm"):
        calibrated(choose(run, level=4), run, shots)
    assert choose(run, client=3).changes == ()
    before, after = adapt(run, shots, level=4)
    assert not before.changes
    [change] = after.changes
    assert "information maximisation" in change
    pairs = zip(before.model.parameters(), after.model.parameters(), strict=True)
    assert all(ours.equal(theirs) for ours, theirs in pairs) == ("left as it is" in change)


def test_a_newcomer_gets_statistics_of_its_pictures(finished: FinishedRun, tmp_path: Path, shots: Path) -> None:
    before, after = adapt(finished, shots, level=4)
    assert after.changes == ("BatchNorm statistics measured on 12 pictures (shots), without labels",)
    assert (after.level, after.ratio) == (4, 0.6)
    expected = calibrated(choose(finished, level=4), finished, shots).model.state_dict()
    assert all(tensor.equal(expected[name]) for name, tensor in after.model.state_dict().items())
    card = Exporter(finished, ("torchscript",)).export(after, tmp_path / "out", before=before)
    assert card.before is not None
    assert card.before.keys() == card.tested.keys() == card.files[0].accuracy.keys()
    assert card.before != card.files[0].accuracy
    assert "| test set | before adapting | model.torchscript |" in card.markdown()


@pytest.mark.long
@pytest.mark.parametrize("method", first_and_drawn("fedbn", "fdse"))
def test_a_method_s_own_rule_for_newcomers_is_used(tmp_path: Path, shots: Path, method: str) -> None:
    run = finish(tmp_path / "run", "width=8", f"method={method}")
    _, after = adapt(run, shots)
    assert after.changes == (f"adapted to 12 pictures (shots) by {method}'s rule for newcomers",)
    card = Exporter(run, ("torchscript", "safetensors")).export(after, tmp_path / "out")
    assert [figures.format for figures in card.files] == ["torchscript", "safetensors"]
    with pytest.raises(ConfigError, match="has none for devices of level 4"):
        adapt(run, shots, level=4)


def test_who_cannot_adapt_is_told(tmp_path: Path, shots: Path) -> None:
    (tmp_path / "net.py").write_text(BRANCHING.replace("{size}", "-1"))
    plain = finish(tmp_path / "plain", f"model={tmp_path / 'net.py'}:Net", "width=null", "method=fedavg")
    with pytest.raises(ConfigError, match="Net cannot adapt without labels: it has no BatchNorm"):
        adapt(plain, shots)
    alone = finish(tmp_path / "alone", "width=8", "method=local")
    with pytest.raises(ConfigError, match="method `local` has no model for a client that never trained"):
        adapt(alone, shots)


@pytest.mark.nightly
def test_masks_are_exported_and_pictures_of_ones_own_are_not_for_them(tmp_path: Path, shots: Path) -> None:
    config = ROOT / "examples" / "segmentation" / "shapes.yaml"
    few = ("client_num_in_total=2", "client_num_per_round=2", "max_clients_per_domain=1", "image_size=null")
    run = finish(tmp_path / "run", *few, config=config)
    subject = choose(run, level=4)
    card = Exporter(run, ("torchscript",)).export(subject, tmp_path / "out")
    assert card.about.input.name == "inputs"
    assert card.about.output.shape == (None, 3, 32, 32)
    assert card.metric.name == "mean IoU"
    with pytest.raises(ConfigError, match="the run's data are no pictures that this package prepares"):
        calibrated(subject, run, shots)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        (
            "onnx",
            "-1",
            r"torch.export, which onnx and torch-export go by, cannot follow the network Net: .*torchscript",
        ),
        ("torchscript", "int(len(images))", "the network Net takes the number of inputs for one that never"),
        ("torchscript", "-1", ""),
    ],
)
def test_networks_that_a_format_cannot_hold_are_refused(tmp_path: Path, name: str, size: str, message: str) -> None:
    (tmp_path / "net.py").write_text(BRANCHING.replace("{size}", size))
    run = finish(tmp_path / "run", f"model={tmp_path / 'net.py'}:Net", "width=null", "method=fedavg", "ratios=[0]")
    exporter, out = Exporter(run, (name,)), tmp_path / "out"
    if not message:
        assert exporter.export(choose(run), out).files[0].difference is not None
        return
    with pytest.raises(ConfigError, match=message):
        exporter.export(choose(run), out)
    assert sorted(file.name for file in tmp_path.iterdir() if file.name not in ("net.py", "run", "__pycache__")) == []


@pytest.mark.long
def test_an_exported_file_tells_no_paths(tmp_path: Path) -> None:
    (tmp_path / "rule.py").write_text("def rule(fleet):\n    return [1 for _ in fleet.devices]\n")
    start = finish(tmp_path / "first", "width=8", "method=fedavg").folder / "global_model.safetensors"
    rule = f"dapper_args.levels.assignment={tmp_path / 'rule.py'}:rule"
    run = finish(tmp_path / "run", "width=8", "method=dapperfl", rule, f"model_args.weights={start}")
    Exporter(run, ("safetensors",)).export(choose(run), tmp_path / "out")
    assert str(tmp_path).encode() not in (tmp_path / "out" / "model.safetensors").read_bytes()
    assert load_model(tmp_path / "out" / "model.safetensors")
