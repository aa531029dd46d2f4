"""Models that travel down in fewer bits: what clients receive, what counts of their uploads, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from torch import Tensor

from fedml_dapper.config import Settings
from fedml_dapper.federation import Agreement, ClientSide, Codec, Experiment, Server, build_experiment, simulate
from fedml_dapper.federation.scoring.after_round import Scoring
from fedml_dapper.methods import Downlink, TrainingMetrics, Upload, payload_bytes
from fedml_dapper.pruning.uplink import is_reduced, rounded

SettingsFactory = Callable[..., Settings]
FEWER = pytest.mark.parametrize("downlink", ["bf16", "int8"])
METHODS = pytest.mark.parametrize("method", ["fedavg", "dapperfl", "dapperfl_slim", "heterofl"])
METRICS = TrainingMetrics(loss=1.0, steps=1, seconds=0.0)


def built(tiny_settings: SettingsFactory, downlink: str, *more: str) -> Experiment:
    return build_experiment(tiny_settings("epochs=1", "client_share=0.04", f"downlink={downlink}", *more))


def reduced(experiment: Experiment) -> Iterator[str]:
    layout = experiment.method.problem.layout
    return (name for name, spec in layout.tensors.items() if is_reduced(spec, layout.downlink))


def codec_of(experiment: Experiment) -> Codec:
    return Codec(experiment.method.problem.layout, Agreement.of(experiment))


def answered(downlink: Downlink, num_samples: int, change: float = 0.0) -> Upload:
    """What a client sends whose training moved each weight by so much."""
    weights = {
        name: tensor + change if tensor.is_floating_point() and tensor.dim() > 1 else tensor.clone()
        for name, tensor in downlink.weights.items()
    }
    return Upload(downlink.round, downlink.client_id, num_samples, weights, METRICS, downlink.plan)


def after_a_round(experiment: Experiment, server: Server, change: float = 0.0) -> dict[str, Tensor]:
    for client_id in server.round_clients():
        samples = experiment.clients[client_id].num_samples
        server.receive(answered(server.downlink(client_id), samples, change))
    server.close_round()
    return dict(server.state.weights)


@FEWER
@METHODS
def test_a_client_receives_the_rounded_model_in_fewer_bytes(
    tiny_settings: SettingsFactory, downlink: str, method: str
) -> None:
    experiment = built(tiny_settings, downlink, f"method={method}", "width=16")
    server = Server(experiment)
    server.round_clients()
    layout = experiment.method.problem.layout
    for profile in experiment.profiles[:5]:
        sent = server.downlink(profile.client_id)
        exact = experiment.method.downlink(server.state, profile.client_id)
        for name, tensor in exact.weights.items():
            expected = rounded(tensor, layout.downlink) if name in set(reduced(experiment)) else tensor
            assert sent.weights[name].equal(expected)
        data = codec_of(experiment).encode(sent)
        arrived, _ = codec_of(experiment).decode(data)
        assert all(tensor.equal(arrived.weights[name]) for name, tensor in sent.weights.items())
        accounted = payload_bytes(sent, layout)
        assert accounted == experiment.method.footprint(profile.ratio).bytes_down
        assert accounted <= len(data) <= accounted + 5000
        share = {"bf16": 0.55, "int8": 0.32}[downlink]
        assert accounted < share * payload_bytes(sent, replace(layout, downlink="fp32"))


@FEWER
@METHODS
def test_what_rounding_takes_off_is_not_lost_to_the_server(
    tiny_settings: SettingsFactory, downlink: str, method: str
) -> None:
    experiment = built(tiny_settings, downlink, f"method={method}", "learning_rate=1e-12")
    server, clients = Server(experiment), ClientSide(experiment)
    before = dict(server.state.weights)
    for client_id in server.round_clients():
        server.receive(clients.update(server.downlink(client_id), experiment.clients[client_id]))
    server.close_round()
    for name in reduced(experiment):
        assert server.state.weights[name].sub(before[name]).abs().max() <= 1e-6
    assert any(not rounded(before[name], downlink).equal(before[name]) for name in reduced(experiment))


@FEWER
def test_changes_of_less_than_half_a_step_add_up_over_rounds(tiny_settings: SettingsFactory, downlink: str) -> None:
    experiment = built(tiny_settings, downlink, "method=fedavg", "comm_round=5")
    server = Server(experiment)
    before = dict(server.state.weights)
    for _ in range(5):
        after = after_a_round(experiment, server, change=1e-5)
    for name in reduced(experiment):
        assert after[name].sub(before[name]).sub(5e-5).abs().max() <= 1e-6


def test_a_change_is_measured_from_what_was_received(tiny_settings: SettingsFactory) -> None:
    experiment = built(tiny_settings, "int8", "method=fedavg", "dapper_args.defence.max_change=5")
    server = Server(experiment)
    after_a_round(experiment, server)
    assert server.last_record is not None
    assert all(client.change is not None and client.change < 1e-6 for client in server.last_record.clients)


@FEWER
@pytest.mark.parametrize("overrides", [("method=dapperfl",), ("method=scaffold", "uplink=int8")])
def test_messages_as_bytes_give_the_bits_of_one_process(
    tiny_settings: SettingsFactory, downlink: str, overrides: tuple[str, ...]
) -> None:
    experiment = built(tiny_settings, downlink, *overrides)
    alone, _ = simulate(experiment)
    server, clients = Server(experiment), ClientSide(experiment)
    codec = codec_of(experiment)
    while server.has_rounds_left:
        for client_id in server.round_clients():
            sent, _ = codec.decode(codec.encode(server.downlink(client_id)))
            assert isinstance(sent, Downlink)
            upload, _ = codec.decode(codec.encode(clients.update(sent, experiment.clients[client_id])))
            assert isinstance(upload, Upload)
            server.receive(upload)
        server.close_round()
    assert all(tensor.equal(server.state.weights[name]) for name, tensor in alone.state.weights.items())


def test_a_round_s_rounded_model_is_encoded_once(tiny_settings: SettingsFactory) -> None:
    server = Server(built(tiny_settings, "int8", "method=fedavg"))
    first, second = server.round_clients()[:2]
    one, other = server.downlink(first), server.downlink(second)
    assert all(tensor is other.weights[name] for name, tensor in one.weights.items())


def test_fp32_changes_nothing(tiny_settings: SettingsFactory) -> None:
    server = Server(built(tiny_settings, "fp32", "method=fedavg"))
    server.round_clients()
    assert all(tensor is server.state.weights[name] for name, tensor in server.downlink(0).weights.items())


def test_own_models_are_tested_as_their_clients_receive_them(tiny_settings: SettingsFactory) -> None:
    experiment = built(tiny_settings, "int8", "method=fedavg", "personal=true")
    server, clients = Server(experiment), ClientSide(experiment)
    found, _ = Scoring(experiment)._own_figures(server.state, {})
    for data in experiment.clients:
        sent, _ = codec_of(experiment).decode(codec_of(experiment).encode(server.downlink(data.client_id)))
        assert isinstance(sent, Downlink)
        assert found[data.client_id].loss == clients.measure(sent, data).loss
