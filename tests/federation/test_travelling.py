"""Every method with its messages as bytes and its clients' memory travelling along, as under MPI."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedml_dapper.federation import Agreement, ClientSide, Codec, Server, build_experiment
from fedml_dapper.methods import METHODS, Downlink, Memory, Upload

from ..grids import sampled
from .interruptions import assert_same_held, assert_same_memory
from .undisturbed import UndisturbedRuns


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "overrides"),
    sampled([*((name, ()) for name in METHODS), ("dapperfl", ("at_home=norms", "devices=true"))]),
)
def test_a_client_may_be_served_by_another_process_in_every_round(
    undisturbed: UndisturbedRuns, method: str, overrides: tuple[str, ...]
) -> None:
    expected = undisturbed(method, *overrides)
    experiment = build_experiment(expected.settings)
    codec = Codec(experiment.method.problem.layout, Agreement.of(experiment))
    server, memories = Server(experiment), dict[int, Memory]()
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
    assert_same_held(replace(server.checkpoint(), memories=expected.held.memories), expected.held)
    assert memories.keys() == expected.held.memories.keys()
    for client_id, memory in memories.items():
        assert_same_memory(sorted_by_name(memory), sorted_by_name(expected.held.memories[client_id]))


def sorted_by_name(memory: Memory) -> Memory:
    """As messages hold tensors."""
    return Memory(dict(sorted(memory.tensors.items())), memory.values)
