"""FlexLoRA: the mean of products, and its leading components, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedml_dapper.config import LevelBudget
from fedml_dapper.errors import ProtocolError
from fedml_dapper.methods.parts.adapter_products import leading_components, product, squared_length

from ..adapters.by_hand import A, B, close_round, method_of, server_of, upload

RANKS = (LevelBudget(rank=2), LevelBudget(rank=1))


def test_products_are_averaged_and_their_leading_components_sent() -> None:
    method = method_of("flexlora", RANKS)
    server = server_of(method, samples=(1, 3))
    frozen = method.problem.backbone.state_dict()["hidden.weight"].clone()
    # B A of client 0 is diag(4, 8), that of client 1 diag(0, 4); (1 diag(4, 8) + 3 diag(0, 4)) / 4 = diag(1, 5)
    strong = upload(method, server, 0, [[1.0, 0.0], [0.0, 1.0]], [[4.0, 0.0], [0.0, 8.0]], head=0.0)
    weak = upload(method, server, 1, [[0.0, 1.0]], [[0.0], [4.0]], head=4.0)
    after = close_round(method, server, [strong, weak])
    # singular values 5 along the second axis, 1 along the first
    torch.testing.assert_close(after.weights[A], torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    torch.testing.assert_close(after.weights[B], torch.tensor([[0.0, 1.0], [5.0, 0.0]]))
    assert after.weights["head.bias"].tolist() == [3, 3]  # (1 x 0 + 3 x 4) / 4
    sent = method.downlink(after, 1).weights
    torch.testing.assert_close(product(sent[A], sent[B]), torch.diag(torch.tensor([0.0, 5.0])).double())
    assert method.problem.backbone.state_dict()["hidden.weight"].equal(frozen)
    assert "hidden.weight" not in after.weights


def test_an_entry_counts_over_the_clients_whose_base_has_it() -> None:
    method = method_of("flexlora", (LevelBudget(rank=2), LevelBudget(rank=1, base=0.2)))
    server = server_of(method, samples=(1, 3))
    weak = method.downlink(server, 1)
    assert weak.plan.kept["hidden"].tolist() == [0]  # the larger channel of the frozen base
    strong = upload(method, server, 0, [[1.0, 0.0], [0.0, 1.0]], [[4.0, 0.0], [0.0, 8.0]])
    narrow = replace(
        upload(method, server, 0, [[1.0, 0.0], [0.0, 1.0]], [[4.0, 0.0], [0.0, 8.0]]),
        client_id=1, num_samples=3, plan=weak.plan,
        weights={**weak.weights, A: torch.tensor([[1.0, 0.0]]), B: torch.tensor([[8.0]])},
    )  # fmt: skip
    after = close_round(method, server, [strong, narrow])
    # row 0: (1 x (4, 0) + 3 x (8, 0)) / 4 = (7, 0); row 1, which client 0 alone has: (0, 8)
    torch.testing.assert_close(
        product(after.weights[A], after.weights[B]), torch.tensor([[7.0, 0.0], [0.0, 8.0]]).double()
    )


def test_where_nobody_has_moved_b_nothing_changes() -> None:
    method = method_of("flexlora", RANKS)
    server = server_of(method, samples=(1, 1))
    before = {name: server.weights[name].clone() for name in (A, B)}
    zero = upload(method, server, 0, [[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]])
    after = close_round(method, server, [zero])
    assert all(after.weights[name].equal(before[name]) for name in (A, B))


def test_what_does_not_fit_changes_nothing() -> None:
    method = method_of("flexlora", RANKS)
    server = server_of(method, samples=(1, 1))
    good = upload(method, server, 0, [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]])
    aggregation = method.aggregation(server)
    with pytest.raises(ProtocolError, match="its plan says"):
        aggregation.add(replace(good, weights={**good.weights, A: torch.ones(1, 2)}))
    aggregation.add(good)
    aggregation.close()
    torch.testing.assert_close(product(server.weights[A], server.weights[B]), torch.eye(2).double())


def test_components_by_hand() -> None:
    # - 3 e1 e1^T + 2 e2 e1^T: one singular value, sqrt(13), to the left of which lies (-3, 2) / sqrt(13), the larger
    # entry of which becomes positive; so A is (-1, 0), and B (3, -2)
    a, b = leading_components(torch.tensor([[-3.0, 0.0], [2.0, 0.0]]), rank=1)
    torch.testing.assert_close(a, torch.tensor([[-1.0, 0.0]]).double())
    torch.testing.assert_close(b, torch.tensor([[3.0], [-2.0]]).double())


def test_components_beyond_the_sides_of_a_matrix_are_zero() -> None:
    a, b = leading_components(torch.tensor([[2.0, 0.0]]), rank=3)
    assert (a.tolist(), b.tolist()) == ([[1, 0], [0, 0], [0, 0]], [[2, 0, 0]])


def test_the_first_components_are_the_nearest_matrix_of_their_rank() -> None:
    whole = torch.randn(6, 5, dtype=torch.float64)
    a, b = leading_components(whole, rank=4)
    values = torch.linalg.svdvals(whole)
    for rank in range(1, 5):
        rest = torch.linalg.matrix_norm(whole - product(a[:rank], b[:, :rank]))
        torch.testing.assert_close(rest, values[rank:].square().sum().sqrt())


def test_the_length_of_a_product_by_hand() -> None:
    # B A = ((3, 0), (0, 4)), of squared length 9 + 16
    assert squared_length(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[3.0, 0.0], [0.0, 2.0]])) == 25
