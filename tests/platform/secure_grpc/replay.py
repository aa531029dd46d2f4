"""What a run's ledger says, done again in this process."""

from __future__ import annotations

import torch
from safetensors.torch import load_file

from fedml_dapper.federation import ClientSide, Experiment, Server

from ..processes import Silos


def differences_to_replay(experiment: Experiment, silos: Silos) -> list[str]:
    """Tensors of the run's global model that do not come out, bit for bit, when in each round those clients train that
    the ledger names, and nobody else. For methods whose clients remember nothing."""
    server = Server(experiment)
    clients = ClientSide(experiment, server.memories)
    for record in silos.rounds():
        server.round_clients()
        for client in record.clients:
            server.receive(clients.update(server.downlink(client.client), experiment.clients[client.client]))
        server.close_round()
    saved = load_file(silos.run_dir / "global_model.safetensors")
    assert saved.keys() == server.state.weights.keys()
    return [name for name, tensor in server.state.weights.items() if not torch.equal(saved[name], tensor)]
