"""Every method with its messages as bytes and its clients' memory travelling along, as under MPI."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.federation import (
    Agreement,
    ClientSide,
    Codec,
    Server,
    build_experiment,
    simulate,
)
from fedml_dapper.methods import METHODS, Downlink, Memory, Upload

SettingsFactory = Callable[..., Settings]


@pytest.mark.parametrize(("method", "overrides"), [*((name, ()) for name in METHODS), ("dapperfl", ("at_home=norms",))])
def test_a_client_may_be_served_by_another_process_in_every_round(
    tiny_settings: SettingsFactory, method: str, overrides: tuple[str, ...]
) -> None:
    few = ("client_num_in_total=5", "client_num_per_round=5", "client_share=0.05", "comm_round=3", "epochs=1")
    experiment = build_experiment(tiny_settings(f"method={method}", *overrides, *few, "frequency_of_the_test=3"))
    expected, _ = simulate(experiment)

    codec = Codec(experiment.method.problem.layout, Agreement.of(experiment))
    server, memories = Server(experiment), dict.fromkeys(range(5), Memory())
    for _ in range(3):
        for client_id in server.round_clients():
            downlink, memory = codec.decode(codec.encode(server.downlink(client_id), memories[client_id]))
            assert isinstance(downlink, Downlink)
            elsewhere = ClientSide(experiment)
            elsewhere.memories[client_id] = memory or Memory()
            upload = elsewhere.update(downlink, experiment.clients[client_id])
            received, returned = codec.decode(codec.encode(upload, elsewhere.memories[client_id]))
            assert isinstance(received, Upload)
            memories[client_id] = returned or Memory()
            server.receive(received)
        server.close_round()

    assert server.state.memory.values == expected.state.memory.values
    for ours, theirs in (
        (server.state.weights, expected.state.weights),
        (server.state.memory.tensors, expected.state.memory.tensors),
    ):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
