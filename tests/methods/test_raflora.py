"""raFLoRA: means of partitions over their holders, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedml_dapper.config import LevelBudget
from fedml_dapper.methods.catalogue.raflora import RaFLoRA
from fedml_dapper.methods.parts.adapter_products import product

from ..adapters.by_hand import A, B, close_round, method_of, server_of, upload

RANKS = (LevelBudget(rank=2), LevelBudget(rank=1))


def test_a_partition_is_averaged_over_those_that_hold_it() -> None:
    method = method_of("raflora", RANKS)
    server = server_of(method, samples=(1, 3))
    # first components: diag(4, 0) of client 0 and diag(0, 4) of client 1, by 1 : 3, so diag(1, 3)
    # second component: diag(0, 8) of client 0 alone; together diag(1, 11), where FlexLoRA has diag(1, 5)
    strong = upload(method, server, 0, [[1.0, 0.0], [0.0, 1.0]], [[4.0, 0.0], [0.0, 8.0]], head=0.0)
    weak = upload(method, server, 1, [[0.0, 1.0]], [[0.0], [4.0]], head=4.0)
    after = close_round(method, server, [strong, weak])
    torch.testing.assert_close(after.weights[A], torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    torch.testing.assert_close(after.weights[B], torch.tensor([[0.0, 1.0], [11.0, 0.0]]))
    assert after.weights["head.bias"].tolist() == [3, 3]


def test_a_partition_without_holders_stays() -> None:
    method = method_of("raflora", RANKS)
    server = server_of(method, samples=(1, 3))
    server.weights = {
        **server.weights,
        A: torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        B: torch.tensor([[2.0, 0.0], [0.0, 1.0]]),
    }
    weak = upload(method, server, 1, [[1.0, 0.0]], [[6.0], [0.0]])
    after = close_round(method, server, [weak])
    # the first component is now diag(6, 0), the second diag(0, 1) as before
    torch.testing.assert_close(
        product(after.weights[A], after.weights[B]), torch.diag(torch.tensor([6.0, 1.0])).double()
    )


@pytest.mark.parametrize(("name", "second"), [("flexlora", 4 / 4**3), ("raflora", 4)])
def test_what_strong_clients_alone_hold_does_not_fade(name: str, second: float) -> None:
    method = method_of(name, RANKS)
    server = server_of(method, samples=(1, 3))
    server.weights = {
        **server.weights,
        A: torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        B: torch.tensor([[8.0, 0.0], [0.0, 4.0]]),
    }
    # nobody learns anything, and client 0 holds a quarter: a mean over all leaves a quarter of diag(0, 4) a round
    for _ in range(3):
        sent = [method.downlink(server, client).weights for client in (0, 1)]
        uploads = [upload(method, server, client, sent[client][A], sent[client][B]) for client in (0, 1)]
        server = close_round(method, server, uploads)
    values = torch.linalg.svdvals(product(server.weights[A], server.weights[B]))
    torch.testing.assert_close(values, torch.tensor([8, second]).double())


def test_partitions_end_at_the_ranks_of_the_levels() -> None:
    method = method_of("raflora", RANKS)
    assert isinstance(method, RaFLoRA)
    [adapter] = method.adapters
    assert method.bounds(adapter) == (1, 2)
    weak = method_of("raflora", (LevelBudget(rank=1),))
    assert isinstance(weak, RaFLoRA)
    assert weak.bounds(adapter) == (1, 2)


def test_of_one_rank_it_is_flexlora() -> None:
    found = []
    for name in ("flexlora", "raflora"):
        method = method_of(name, (LevelBudget(rank=2),))
        server = server_of(method, samples=(1,))
        server = replace(server, profiles=(*server.profiles, replace(server.profiles[0], client_id=1, num_samples=2)))
        first = upload(method, server, 0, [[1.0, 2.0], [0.5, 1.0]], [[4.0, 1.0], [0.0, 8.0]])
        second = upload(method, server, 1, [[1.0, 0.0], [3.0, 1.0]], [[0.0, 1.0], [2.0, 8.0]])
        found.append(close_round(method, server, [first, second]).weights)
    assert all(found[0][name].equal(found[1][name]) for name in (A, B))
