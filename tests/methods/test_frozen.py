"""Frozen parameters: a pretrained base under layers that are trained. They never travel, and nobody changes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import Agreement, ClientSide, Codec, Experiment, Server, build_experiment, simulate
from fedml_dapper.federation.run_folder.model_file import load_model
from fedml_dapper.methods import Upload
from fedml_dapper.runs import run

from ..grids import ON_ANY_NETWORK, sampled

DIGITS = Path(__file__).parents[2] / "config" / "digits_offline.yaml"
SettingsFactory = Callable[..., Settings]
NETWORK = """
from fedml_dapper.models.resnet import resnet10

def frozen_base(num_classes):
    network = resnet10(8, num_classes, 16)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(not name.startswith(("stem", "stages.0", "stages.1")))
    return network
"""


@pytest.fixture
def build(tiny_settings: SettingsFactory, tmp_path: Path) -> Callable[..., Experiment]:
    """An experiment with the network above."""

    def built(*overrides: str, values: str = "") -> Experiment:
        return build_experiment(settings_for(tiny_settings, tmp_path, *overrides, values=values))

    return built


def settings_for(tiny_settings: SettingsFactory, folder: Path, *overrides: str, values: str = "") -> Settings:
    """Settings that name the network above; ``values`` are further lines of its function."""
    file = folder / "network.py"
    file.write_text(NETWORK.replace("    return", f"    {values}\n    return"))
    return tiny_settings(f"model_args.model={file}:frozen_base", "model_args.width=null", *overrides)


@pytest.mark.parametrize("method", sampled(ON_ANY_NETWORK))
def test_frozen_parameters_stay_where_they_are(tiny_settings: SettingsFactory, tmp_path: Path, method: str) -> None:
    (tmp_path / "network.py").write_text(NETWORK)
    name = f"{tmp_path / 'network.py'}:frozen_base"
    sizes = "params.nefl.sizes=[0.6, 1.0]"
    chosen = (
        "ratios=[0.0, 0.3]",
        sizes,
        "comm_round=3",
        "epochs=2",
        f"model_args.model={name}",
        "model_args.width=null",
    )
    experiment = build_experiment(tiny_settings(f"method={method}", *chosen))
    backbone = experiment.method.problem.backbone
    frozen = {each for each, parameter in backbone.named_parameters() if not parameter.requires_grad}
    before = {each: tensor.clone() for each, tensor in backbone.state_dict().items()}
    assert frozen
    server = Server(experiment)
    clients = ClientSide(experiment)
    for _ in range(3):
        for client_id in server.round_clients():
            downlink = server.downlink(client_id)
            upload = clients.update(downlink, experiment.clients[client_id])
            assert not frozen & (downlink.weights.keys() | upload.weights.keys())
            server.receive(upload)
        server.close_round()
    whole = server.whole_model()
    assert whole.keys() == before.keys()
    assert all(whole[each].equal(before[each]) for each in frozen)
    trained = before.keys() - frozen
    assert not experiment.method.has_global_model or any(not whole[each].equal(before[each]) for each in trained)


@pytest.mark.parametrize("method", ["dapperfl", "heterofl"])
def test_messages_hold_what_is_trained_and_buffers(build: Callable[..., Experiment], method: str) -> None:
    experiment = build(f"method={method}")
    layout = experiment.method.problem.layout
    codec = Codec(layout, Agreement.of(experiment))
    server = Server(experiment)
    client_id = server.round_clients()[0]
    upload = ClientSide(experiment).update(server.downlink(client_id), experiment.clients[client_id])
    whole = sum(tensor.nbytes for tensor in server.whole_model().values())
    sent = codec.encode(upload)
    parameters = dict(experiment.method.problem.backbone.named_parameters())
    frozen = {name: each.nbytes for name, each in parameters.items() if not each.requires_grad}
    assert not frozen.keys() & upload.weights.keys()
    assert experiment.method.footprint(0.0).bytes_down == whole - sum(frozen.values())
    assert len(sent) < experiment.method.footprint(0.0).bytes_up + 8_000 < whole
    received, _ = codec.decode(sent)
    assert isinstance(received, Upload)
    assert received.weights.keys() == upload.weights.keys() == set(layout.travelling)
    assert all(tensor.equal(upload.weights[name]) for name, tensor in received.weights.items())


def test_the_model_file_is_whole_and_a_run_goes_on(build: Callable[..., Experiment], tmp_path: Path) -> None:
    (tmp_path / "network.py").write_text(NETWORK)
    network = {"model_args.model": f"{tmp_path / 'network.py'}:frozen_base", "model_args.width": None}
    small = {"image_size": 16, "epochs": 2, "client_share": 0.08, "batch_size": 16, "method": "dapperfl"}
    names = {"resumed": (2, 4), "straight": (4,)}
    for name, ends in names.items():
        for comm_round in ends:
            run(DIGITS, {**network, **small}, output=tmp_path / name, resume=True, comm_round=comm_round, workers=1)
    ours, theirs = (load_model(tmp_path / name / "global_model.safetensors").state_dict() for name in names)
    assert ours.keys() == build().method.problem.backbone.state_dict().keys()
    assert all(tensor.equal(theirs[name]) for name, tensor in ours.items())


def test_secure_sums_are_of_what_is_trained(build: Callable[..., Experiment]) -> None:
    free_of_norms = 'network = resnet10(8, num_classes, 16, "group"); network.stem.requires_grad_(False)'
    asked = ("method=fedavg", "comm_round=1", "ratios=[0.0]", "aggregation_weights=uniform")
    secure = "dapper_args.privacy={secure_aggregation: {threshold: 3, min_holders: 2}}"
    plain, masked = (simulate(build(*asked, *more, values=free_of_norms))[0].whole_model() for more in ((), (secure,)))
    assert all(torch.allclose(tensor, masked[name], rtol=0, atol=1e-6) for name, tensor in plain.items())
    assert any(not tensor.equal(masked[name]) for name, tensor in plain.items())


def test_processes_with_other_bases_do_not_meet(build: Callable[..., Experiment]) -> None:
    ours = Agreement.of(build())
    theirs = Agreement.of(build(values="network.stem[0].weight.data.mul_(2)"))
    server = theirs.settings(theirs.schema)
    with pytest.raises(ConfigError, match=r"model_args.frozen is .* tensors \(content"):
        ours.accept(theirs.identity(theirs.schema), server, "this silo")
