"""Nobody waits for the GPU while clients train: their work is handed out, and read when the round closes."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.federation import ClientSide, Server, build_experiment
from fedml_dapper.process.transfers import sent_to

SettingsFactory = Callable[..., Settings]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_a_copy_that_is_sent_holds_what_was_there_when_it_was_sent() -> None:
    held = torch.arange(1000)
    busy = torch.rand(4096, 4096, device="cuda")
    for _ in range(20):
        busy = busy @ busy
    copy = sent_to(held, "cuda")
    held.zero_()
    assert copy.cpu().equal(torch.arange(1000))
    assert sent_to(copy, "cuda") is copy


def test_clients_of_a_round_are_handed_out_without_a_wait(tiny_settings: SettingsFactory) -> None:
    args = ("using_gpu=true", "method=fedavg", "client_num_in_total=5", "client_num_per_round=5", "epochs=5")
    experiment = build_experiment(tiny_settings(*args))
    server = Server(experiment)
    clients = ClientSide(experiment, server.memories)

    def train() -> None:
        for client_id in server.round_clients():
            server.receive(clients.update(server.downlink(client_id), experiment.clients[client_id]))

    train()  # in the first round steps are recorded, and recordings tried
    server.close_round()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            train()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [str(wait.message) for wait in waits if "synchronizing" in str(wait.message)] == []
    assert server.close_round().clients[0].seconds > 0
