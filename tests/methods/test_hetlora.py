"""HetLoRA: zero padding, weights by the norms of products, and self-pruning, by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fedml_dapper.config import LevelBudget, Settings
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import build_experiment, simulate
from fedml_dapper.methods.catalogue.hetlora import tail_length
from fedml_dapper.methods.parts.adapter_products import Adapter
from fedml_dapper.pruning import PruningPlan

from ..adapters.by_hand import A, B, close_round, method_of, server_of, upload
from ..adapters.vit import NETWORK

SettingsFactory = Callable[..., Settings]
RANKS = (LevelBudget(rank=2), LevelBudget(rank=1))


def test_zeros_stand_for_what_a_client_lacks_and_long_products_count_more() -> None:
    method = method_of("hetlora", RANKS)
    server = server_of(method, samples=(1, 7))
    # B A of client 0 is diag(3, 4), of length 5, that of client 1 has length 15: weights 1/4 and 3/4
    strong = upload(method, server, 0, [[1.0, 0.0], [0.0, 1.0]], [[3.0, 0.0], [0.0, 4.0]], head=0.0)
    weak = upload(method, server, 1, [[0.0, 1.0]], [[0.0], [15.0]], head=8.0)
    after = close_round(method, server, [strong, weak])
    torch.testing.assert_close(after.weights[A], torch.tensor([[0.25, 0.75], [0.0, 0.25]]))
    torch.testing.assert_close(after.weights[B], torch.tensor([[0.75, 0.0], [11.25, 1.0]]))
    assert after.weights["head.bias"].tolist() == [7, 7]  # by samples: (1 x 0 + 7 x 8) / 8
    assert method.downlink(after, 1).weights[A].equal(after.weights[A][:1])


def test_zeros_stand_for_components_and_not_for_rows_of_the_base() -> None:
    method = method_of("hetlora", (LevelBudget(rank=2), LevelBudget(rank=1, base=0.2)))
    server = server_of(method, samples=(1, 1))
    strong = upload(method, server, 0, [[1.0, 0.0], [0.0, 1.0]], [[3.0, 0.0], [0.0, 4.0]])
    sent = method.downlink(server, 1)
    weak = replace(
        strong, client_id=1, plan=sent.plan,
        weights={**sent.weights, A: torch.tensor([[0.0, 1.0]]), B: torch.tensor([[15.0]])},
    )  # fmt: skip
    after = close_round(method, server, [strong, weak])
    # row 0 by 5 : 15, a zero for the second component of client 1; row 1 is that of client 0 alone
    torch.testing.assert_close(after.weights[B], torch.tensor([[12.0, 0.0], [0.0, 4.0]]))


def test_where_all_products_are_zero_nothing_changes() -> None:
    method = method_of("hetlora", RANKS)
    server = server_of(method, samples=(1, 1))
    before = {name: server.weights[name].clone() for name in (A, B)}
    after = close_round(method, server, [upload(method, server, 1, [[1.0, 2.0]], [[0.0], [0.0]])])
    assert all(after.weights[name].equal(before[name]) for name in (A, B))


def test_the_length_of_a_tail_by_hand() -> None:
    adapters = [Adapter("one", "one.a", "one.b"), Adapter("two", "two.a", "two.b")]
    weights = {
        "one.a": torch.tensor([[9.0, 9.0], [3.0, 4.0]]), "one.b": torch.tensor([[9.0, 2.0]]),
        "two.a": torch.tensor([[9.0], [1.0], [1.0]]), "two.b": torch.tensor([[9.0, 3.0, 4.0]]),
    }  # fmt: skip
    # half of two components is one, half of three is one too: 2 x 5 + 5 sqrt(2)
    assert float(tail_length(weights, adapters, 0.5)) == pytest.approx(10 + 5 * math.sqrt(2))
    assert float(tail_length(weights, adapters, 1.0)) == 0


def test_a_tail_that_is_given_up_is_not_sent_again() -> None:
    method = method_of("hetlora", RANKS, gamma=0.5)
    server = server_of(method, samples=(1, 1))
    whole = upload(method, server, 0, [[1.0, 0.0], [0.0, 1.0]], [[3.0, 0.0], [0.0, 4.0]])
    first = {"hidden.lora_a": torch.tensor([0])}
    given_up = replace(
        whole, plan=PruningPlan(first), weights={**whole.weights, A: whole.weights[A][:1], B: whole.weights[B][:, :1]}
    )
    after = close_round(method, server, [given_up])
    assert method.plan(after, 0).equals(PruningPlan(first))
    assert method.plan(after, 1).equals(method.plan(server, 1))  # nothing is below one component
    assert len(method.level_model(after, 1).state_dict()[A]) == 2  # a device of level 1 is not client 0
    again = close_round(method, after, [replace(given_up, round=2)])
    assert method.plan(again, 0).equals(PruningPlan(first))
    other = replace(given_up, plan=PruningPlan({"hidden.lora_a": torch.tensor([1])}))
    with pytest.raises(ProtocolError, match="not the one that its client was sent"):
        method.check_plan(server, other)
    with pytest.raises(ProtocolError, match="not the one that its client was sent"):
        method_of("hetlora", RANKS).check_plan(server, given_up)


def test_clients_give_up_what_the_penalty_makes_short(tiny_settings: SettingsFactory) -> None:
    few = ("model_args.adapter={rank: 4}", "dapper_args.levels=[{rank: 4}]", "epochs=1")
    kept = dict[float, int]()
    for penalty in (0.0, 5.0):
        asked = ("method=hetlora", "comm_round=3", f"dapper_args.params.hetlora={{gamma: 0.5, penalty: {penalty}}}")
        server = simulate(build_experiment(tiny_settings(*NETWORK, *few, *asked)))[0]
        kept[penalty] = min(len(server.downlink(client).weights["blocks.0.up.lora_a"]) for client in range(5))
    assert kept[5.0] < 4
    assert kept[0.0] >= kept[5.0]
