"""Plain torch: a pool of processes trains clients, and this one averages what they send back through shared memory."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, multiprocessing, nn

from benchmarks.peers.work import Diary, Work, given, network_of_process


def joined(network: nn.Module) -> Tensor:
    """Return all weights and statistics in one vector: one piece of shared memory."""
    return torch.cat([tensor.reshape(-1).float() for tensor in network.state_dict().values()])


@torch.no_grad()
def fill(network: nn.Module, vector: Tensor) -> None:
    """Put back what :func:`joined` returned."""
    tensors = list(network.state_dict().values())
    parts = torch.split(vector, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


def train(job: tuple[Work, Path, int, Tensor]) -> Tensor:
    """Return a client's vector after its round."""
    work, folder, client, vector = job
    network = network_of_process(work, folder)
    fill(network, vector)
    work.train(network, client)
    return joined(network).cpu()


def main() -> None:
    work, folder = given()
    torch.set_num_threads(1)
    diary = Diary(folder)
    network = work.network()
    vector = joined(network)
    with multiprocessing.get_context("spawn").Pool(work.processes) as pool:
        for _ in range(work.rounds):
            total = torch.zeros_like(vector)
            for trained in pool.imap(train, [(work, folder, client, vector) for client in range(work.clients)]):
                total += trained
            vector = total / work.clients
            diary.round_ended()
    fill(network, vector)
    diary.keep(network)


if __name__ == "__main__":
    main()
