"""Methods for adapters of unequal ranks in federations: what each of them takes, refuses, and gives to devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.export.exporting import Exporter
from fedml_dapper.export.subjects import choose
from fedml_dapper.federation import ClientSide, Experiment, Server, build_experiment, simulate
from fedml_dapper.federation.run_folder.finished import open_finished
from fedml_dapper.federation.run_folder.model_file import load_model
from fedml_dapper.methods.parts.adapter_products import adapters_of, product
from fedml_dapper.models.adapters import merged

from ..grids import ADAPTED, ON_ADAPTERS

SettingsFactory = Callable[..., Settings]
STRICT = "dapper_args.levels={strict: true, budgets: [{rank: 4}, {rank: 2, base: 0.2}]}"
NAMES = [name for name, _ in ON_ADAPTERS]
FEW = ("client_num_in_total=4", "client_num_per_round=4", "epochs=1", "learning_rate=0.1")


@pytest.fixture
def build(tiny_settings: SettingsFactory) -> Callable[..., Experiment]:
    def built(method: str, *overrides: str) -> Experiment:
        return build_experiment(tiny_settings(*ADAPTED, *FEW, f"method={method}", *overrides))

    return built


@pytest.mark.parametrize("name", NAMES)
def test_devices_of_every_level_are_tested_and_the_base_stays(build: Callable[..., Experiment], name: str) -> None:
    experiment = build(name, "devices=true", STRICT)
    before = experiment.method.problem.backbone.state_dict()
    server, records = simulate(experiment)
    devices = records[-1].devices
    assert devices is not None
    assert [level.level for level in devices.sent.levels] == [1, 2]
    whole = server.whole_model()
    layout = experiment.method.problem.layout
    assert all(whole[each].equal(before[each]) for each, spec in layout.tensors.items() if spec.frozen)
    for adapter in adapters_of(layout) if name != "flora" else ():  # whose products go into the base
        assert product(whole[adapter.a], whole[adapter.b]).abs().max() > 0
    small, large = (experiment.method.footprint(ratio) for ratio in reversed(experiment.method.problem.ratios))
    assert small.bytes_up < large.bytes_up
    assert small.bytes_down < large.bytes_down


@pytest.mark.parametrize("name", NAMES)
def test_models_are_read_back_and_exported_as_they_are(
    build: Callable[..., Experiment], tmp_path: Path, name: str
) -> None:
    experiment = build(name)
    server, _ = simulate(experiment, run_dir=tmp_path / "run")
    images = torch.randn(3, 3, 16, 16)
    trained = load_model(tmp_path / "run" / "global_model.safetensors")
    assert trained(images).equal(experiment.method.global_model(server.state).eval()(images))
    run = open_finished(tmp_path / "run")
    Exporter(run, ("safetensors",)).export(choose(run, level=2), tmp_path / "out")
    exported = load_model(tmp_path / "out" / "model.safetensors")
    level = merged(experiment.method.level_model(server.state, 2)).eval()
    torch.testing.assert_close(exported(images), level(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_norms_may_stay_at_home(build: Callable[..., Experiment], name: str) -> None:
    experiment = build(name, "personal_layers=norms")
    server, _ = simulate(experiment)
    norms = experiment.method.personal
    assert norms
    initial = Server(experiment).state.weights
    assert all(server.state.weights[each].equal(initial[each]) for each in norms)
    assert not server.state.weights["head.weight"].equal(initial["head.weight"])
    assert torch.isfinite(server.state.weights["blocks.0.up.lora_b"]).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("dapper_args.defence.aggregation=median",), "aggregates in its own way"),
        (
            ("aggregation_weights=uniform", "dapper_args.privacy={clip: null, noise_multiplier: 0}"),
            "learns .*each client's .*: noise, and masks, are for sums and hide no more",
        ),
        (
            (
                "aggregation_weights=uniform",
                "dapper_args.privacy={secure_aggregation: {threshold: 3, min_holders: 2}}",
            ),
            "learns .*each client's .*: noise, and masks, are for sums and hide no more",
        ),
    ],
)
def test_what_wants_sums_alone_is_refused_in_one_line(
    build: Callable[..., Experiment], name: str, asked: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=f"`{name}` {words}") as refused:
        build(name, *asked)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_network_without_adapters_is_refused_in_one_line(tiny_settings: SettingsFactory, name: str) -> None:
    with pytest.raises(ConfigError, match=f"`{name}`.* needs a network with adapters that can be cut") as refused:
        build_experiment(tiny_settings(*FEW, f"method={name}"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_sums_of_whole_rounds_is_promised(build: Callable[..., Experiment], name: str) -> None:
    method = build(name).method
    assert not method.takes_robust_means
    assert not method.takes_edges
    assert not method.takes_late_uploads


def test_the_smallest_rank_and_base_for_all(build: Callable[..., Experiment]) -> None:
    experiment = build("fedavg_small")
    weakest = build("flexlora").method.footprint(max(build("flexlora").method.problem.ratios))
    server, rounds = simulate(experiment)
    assert len(server.state.weights["blocks.0.up.lora_a"]) == 2
    assert {client.params for client in rounds[-1].clients} == {weakest.parameters}
    assert {client.bytes_up for client in rounds[-1].clients} == {rounds[-1].clients[0].bytes_down}
    assert server.whole_model()["blocks.0.up.weight"].shape[0] < 64
    assert experiment.method.has_level_model(2)


def test_fedavg_on_adapters_is_one_rank_for_all(build: Callable[..., Experiment]) -> None:
    experiment = build("fedavg")
    server, rounds = simulate(experiment)
    assert len({client.bytes_up for client in rounds[-1].clients}) == 1
    assert len(server.state.weights["blocks.0.up.lora_a"]) == 4


@pytest.mark.parametrize("name", NAMES)
def test_clients_of_cut_bases_test_their_own_models(build: Callable[..., Experiment], name: str) -> None:
    """Before and after training: what a client does not send back it has as it was sent, cut already."""
    _, records = simulate(build(name, "comm_round=1", "personal=true"))
    assert all(client.accuracy_after is not None for client in records[-1].clients)


def test_a_client_s_own_model_is_what_it_was_sent_and_what_it_trained(build: Callable[..., Experiment]) -> None:
    """Also where the plan of an upload is another object, as one that came over a line."""
    experiment = build("flora", "comm_round=1")
    server, clients = Server(experiment), ClientSide(experiment)
    sent = next(one for one in map(server.downlink, range(4)) if one.plan.kept)
    upload = clients.update(sent, experiment.clients[sent.client_id])
    assert upload.plan.kept
    plan = replace(upload.plan, kept={name: kept.clone() for name, kept in upload.plan.kept.items()})
    own = clients._as_downlink(replace(upload, plan=plan), sent)
    assert own.weights.keys() == sent.weights.keys()
    assert all(tensor.shape == sent.weights[name].shape for name, tensor in own.weights.items())
