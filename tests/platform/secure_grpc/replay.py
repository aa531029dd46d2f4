"""What a run's ledger says, done again in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file

from fedml_dapper.federation import ClientSide, Experiment, Server
from fedml_dapper.methods import Downlink

from ..processes import Silos

if TYPE_CHECKING:
    from ..federation_in_threads import Federation


def differences_to_replay(experiment: Experiment, silos: Silos | Federation) -> list[str]:
    """Tensors of the run's global model that do not come out, bit for bit, when in each round those clients train that
    the ledger names, from the model of the round that it names, and nobody else. For methods whose clients remember
    nothing."""
    server = Server(experiment)
    clients = ClientSide(experiment)
    sent: dict[int, Downlink] = {}
    for record in silos.rounds():
        counts_on = record.at_work | {one.client: one.begun for one in record.clients if one.begun is not None}
        for client, begun in server.at_work.items():
            if counts_on.get(client) != begun:
                server.give_up(client)
        sent |= {client: server.downlink(client) for client in server.round_clients()}
        named = [one.client for one in record.clients]
        if record.rolled_back is not None and not named:
            named = [server.round_clients()[0]]  # of a void round, which has to close: the model is put back below
        for client in named:
            server.receive(clients.update(sent[client], experiment.clients[client]))
        before = dict(server.state.weights)
        server.close_round()
        if record.rolled_back is not None:
            server.state.weights = before
    saved = load_file(silos.run_dir / "global_model.safetensors")
    assert saved.keys() == server.state.weights.keys()
    return [name for name, tensor in server.state.weights.items() if not torch.equal(saved[name], tensor)]
