"""Every method with its messages as bytes and its clients' memory travelling along, as under MPI."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedml_dapper.federation import Agreement, ClientSide, Codec, Server, build_experiment
from fedml_dapper.federation.run_folder.checkpoint import Checkpoint
from fedml_dapper.methods import Downlink, Memory, Upload

from ..grids import ON_ADAPTERS, ON_ANY_NETWORK, sampled
from .interruptions import assert_same_held
from .undisturbed import UndisturbedRuns


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "overrides"),
    sampled(
        [
            *((name, ()) for name in ON_ANY_NETWORK),
            *ON_ADAPTERS,
            ("dapperfl", ("personal_layers=norms", "devices=true")),
        ]
    ),
)
def test_a_client_may_be_served_by_another_process_in_every_round(
    undisturbed: UndisturbedRuns, method: str, overrides: tuple[str, ...]
) -> None:
    expected = undisturbed(method, *overrides)
    experiment = build_experiment(expected.settings)
    codec = Codec(experiment.method.problem.layout, Agreement.of(experiment))
    server = Server(experiment)
    memories = server.memories
    for _ in range(expected.held.round):
        for client_id in server.round_clients():
            packed = codec.encode(server.downlink(client_id), memories.get(client_id, Memory()))
            downlink, memory = codec.decode(packed)
            assert isinstance(downlink, Downlink)
            elsewhere = ClientSide(experiment)
            elsewhere.memories[client_id] = memory or Memory()
            upload = elsewhere.update(downlink, experiment.clients[client_id])
            received, returned = codec.decode(codec.encode(upload, elsewhere.memories[client_id]))
            assert isinstance(received, Upload)
            memories[client_id] = returned or Memory()
            server.receive(received)
        server.close_round()
    assert_same_held(sorted_by_name(server.checkpoint()), sorted_by_name(expected.held))


def sorted_by_name(held: Checkpoint) -> Checkpoint:
    """With clients' tensors in the order that messages hold them in."""
    memories = {
        client_id: Memory(dict(sorted(memory.tensors.items())), memory.values)
        for client_id, memory in held.memories.items()
    }
    return replace(held, memories=memories)
