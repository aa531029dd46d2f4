"""Federations that train adapters: every method that slims, privacy and secure sums, model files, exports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.export.exporting import Exporter
from fedml_dapper.export.subjects import choose
from fedml_dapper.federation import (
    Agreement,
    ClientSide,
    Codec,
    Experiment,
    Server,
    build_experiment,
    simulate,
)
from fedml_dapper.federation.run_folder.finished import open_finished
from fedml_dapper.federation.run_folder.model_file import load_model
from fedml_dapper.methods import METHODS
from fedml_dapper.models.adapters import AdaptedLinear

from ..grids import sampled
from .vit import NETWORK, small_vit

SettingsFactory = Callable[..., Settings]
Build = Callable[..., Experiment]
LEVELS = """
dapper_args:
  levels: [{rank: 4}, {rank: 2, base: 0.2}, {rank: 1, base: 0.4}]
"""
SLIMMING = sorted(
    name
    for name, method in METHODS.items()
    if method.slims and name not in ("dapperfl_exits", "depthfl", "nefl", "scalefl", "flora")
)
"""Without those that need stages or blocks of their own, and the one that moves the base."""


@pytest.fixture
def build(tiny_settings: SettingsFactory, tmp_path: Path) -> Build:
    """A vision transformer with adapters of rank 4, and three levels of clients."""
    (tmp_path / "levels.yaml").write_text(LEVELS)
    adapter = ("model_args.adapter={rank: 4, alpha: 8}", "learning_rate=0.1")

    def built(*overrides: str) -> Experiment:
        return build_experiment(tiny_settings(*NETWORK, *adapter, *overrides, above=tmp_path / "levels.yaml"))

    return built


@pytest.mark.parametrize("method", sampled(SLIMMING))
def test_methods_that_slim_train_components_and_leave_the_base(build: Build, method: str) -> None:
    experiment = build(f"method={method}")
    layout = experiment.method.problem.layout
    before = experiment.method.problem.backbone.state_dict()
    server = Server(experiment)
    clients = ClientSide(experiment)
    ranks = set[int]()
    for client_id in server.round_clients():
        upload = clients.update(server.downlink(client_id), experiment.clients[client_id])
        assert not [name for name in upload.weights if layout.tensors[name].frozen]
        ranks.add(len(upload.weights["blocks.0.up.lora_a"]))
        server.receive(upload)
    server.close_round()
    whole = server.whole_model()
    moved = {name.rpartition(".")[2] for name in before if not whole[name].equal(before[name])}
    assert {"lora_a", "lora_b"} <= moved
    assert all(whole[name].equal(before[name]) for name, spec in layout.tensors.items() if spec.frozen)
    assert len(ranks) > 1 or method in ("feddrop", "fjord", "fedmp")  # which draw or learn what a client trains
    for level in range(1, 4):
        assert experiment.method.has_level_model(level)
        assert torch.isfinite(
            experiment.method.level_model(server.state, level).eval()(torch.zeros(2, 3, 16, 16))
        ).all()


def test_of_full_rank_and_base_it_is_fedavg_bit_for_bit(build: Build) -> None:
    plain = ("params.dapperfl.gamma=0", "params.dapperfl.fusion=false")
    everyone = "dapper_args.levels=[{rank: 4}]"
    ours = simulate(build("method=dapperfl", *plain, everyone))[0].whole_model()
    theirs = simulate(build("method=fedavg", everyone))[0].whole_model()
    assert all(tensor.equal(theirs[name]) for name, tensor in ours.items())


def test_a_message_holds_adapters_norms_and_the_last_layer(build: Build) -> None:
    experiment = build("method=dapperfl_slim")
    server = Server(experiment)
    clients = ClientSide(experiment)
    codec = Codec(experiment.method.problem.layout, Agreement.of(experiment))
    sizes = dict[int, int]()
    for client_id in server.round_clients():
        downlink = server.downlink(client_id)
        upload = clients.update(downlink, experiment.clients[client_id])
        sizes[downlink.level or 0] = sum(tensor.nbytes for tensor in upload.weights.values())
        received, _ = codec.decode(codec.encode(upload))
        assert all(tensor.equal(upload.weights[name]) for name, tensor in received.weights.items())
        parts = {name.rpartition(".")[2] for name in upload.weights if "norm" not in name and "head" not in name}
        assert parts == {"lora_a", "lora_b"}
    assert sizes[1] > 2 * sizes[2] * 0.75 > sizes[3]


def test_secure_sums_of_unequal_adapters_are_the_plain_ones(build: Build) -> None:
    asked = ("method=fedrolex", "comm_round=1", "aggregation_weights=uniform", "params.fedrolex.masked_loss=false")
    secure = "dapper_args.privacy={secure_aggregation: {threshold: 6, min_holders: 2}}"
    plain, summed = (simulate(build(*asked, *more))[0].whole_model() for more in ((), (secure,)))
    assert all(torch.allclose(tensor, summed[name], rtol=0, atol=1e-6) for name, tensor in plain.items())
    assert any(not tensor.equal(summed[name]) for name, tensor in plain.items())


def test_a_level_s_export_is_merged_and_slim(build: Build, tmp_path: Path) -> None:
    simulate(build("method=dapperfl"), run_dir=tmp_path / "run")
    run = open_finished(tmp_path / "run")
    trained = load_model(tmp_path / "run" / "global_model.safetensors")
    assert any(isinstance(layer, AdaptedLinear) for layer in trained.modules())
    card = Exporter(run, ("safetensors", "onnx")).export(choose(run, level=3), tmp_path / "out")
    merged = load_model(tmp_path / "out" / "model.safetensors")
    assert merged.state_dict().keys() == small_vit().state_dict().keys()
    parameters = sum(parameter.numel() for parameter in merged.parameters())
    assert card.about.parameters == parameters < 0.7 * sum(parameter.numel() for parameter in small_vit().parameters())
    assert all(file.difference is not None and file.difference < 1e-5 for file in card.files)
    whole = Exporter(run, ("safetensors",)).export(choose(run), tmp_path / "whole")
    assert (whole.about.parameters, whole.about.macs) == whole.dense == card.dense


@pytest.mark.parametrize(("level", "rank"), [(None, 4), (2, 2)])
def test_adapters_alone_are_written_as_peft_reads_them(
    build: Build, tmp_path: Path, level: int | None, rank: int
) -> None:
    simulate(build("method=dapperfl", "dapper_args.levels=[{rank: 4}, {rank: 2}]"), run_dir=tmp_path / "run")
    run = open_finished(tmp_path / "run")
    subject = choose(run, level)
    Exporter(run, ("safetensors",), peft=True).export(subject, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "peft" / "adapter_config.json").read_text())
    tensors = load_file(tmp_path / "out" / "peft" / "adapter_model.safetensors")
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", rank, 2 * rank)
    base = {name: tensor for name, tensor in run.method.problem.backbone.state_dict().items() if "lora" not in name}
    network = small_vit().eval()
    for name in config["target_modules"]:  # what peft does with them
        a, b = (tensors[f"base_model.model.{name}.lora_{each}.weight"] for each in "AB")
        base[f"{name}.weight"] = base[f"{name}.weight"] + config["lora_alpha"] / config["r"] * (b @ a)
    for name in config["modules_to_save"]:
        for entry in network.get_submodule(name).state_dict():
            base[f"{name}.{entry}"] = tensors[f"base_model.model.{name}.{entry}"]
    network.load_state_dict(base)
    pictures = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(network(pictures), subject.model(pictures), rtol=1e-5, atol=1e-5)


def test_adapters_of_a_level_whose_base_is_cut_are_not_for_peft(build: Build, tmp_path: Path) -> None:
    simulate(build("method=dapperfl", "comm_round=1"), run_dir=tmp_path / "run")
    run = open_finished(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"--peft: `blocks\.0\.query` is narrower at this level"):
        Exporter(run, ("safetensors",), peft=True).export(choose(run, 3), tmp_path / "out")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_adapters_whose_base_has_moved_are_not_for_peft(build: Build, tmp_path: Path) -> None:
    simulate(build("method=flora", "comm_round=1"), run_dir=tmp_path / "run")
    run = open_finished(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"--peft: .* put what it learnt into `blocks\.0\.query` itself"):
        Exporter(run, ("safetensors",), peft=True).export(choose(run, None), tmp_path / "out")
