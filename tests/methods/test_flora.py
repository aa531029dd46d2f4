"""FLoRA: products that go into the base, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.config import LevelBudget
from fedml_dapper.errors import ProtocolError
from fedml_dapper.methods import Upload
from fedml_dapper.models.adapters import merged

from ..adapters.by_hand import EXAMPLE, A, B, Tiny, close_round, method_of, server_of, upload

RANKS = (LevelBudget(rank=2), LevelBudget(rank=1))
BASE = "hidden.weight"


def as_sent(whole: Upload) -> Upload:
    """The upload without the matrix of the base, as a client sends it."""
    weights = {name: tensor for name, tensor in whole.weights.items() if name != BASE}
    return replace(whole, weights=weights, plan=replace(whole.plan, omitted=frozenset({BASE})))


def test_the_mean_of_products_goes_into_the_base_and_adapters_start_anew() -> None:
    method = method_of("flora", RANKS)
    server = server_of(method, samples=(1, 3))
    initial = method.problem.backbone.state_dict()[BASE].clone()
    # (1 diag(4, 8) + 3 diag(0, 4)) / 4 = diag(1, 5), times alpha / r = 2
    strong = as_sent(upload(method, server, 0, [[1.0, 0.0], [0.0, 1.0]], [[4.0, 0.0], [0.0, 8.0]], head=0.0))
    weak = as_sent(upload(method, server, 1, [[0.0, 1.0]], [[0.0], [4.0]], head=4.0))
    first_a = server.weights[A].clone()
    after = close_round(method, server, [strong, weak])
    assert after.weights[BASE].tolist() == [[3 + 2, 3], [1, 1 + 10]]
    assert after.weights["head.bias"].tolist() == [3, 3]
    assert after.weights[B].tolist() == [[0, 0], [0, 0]]
    assert not after.weights[A].equal(first_a)
    assert after.weights[A].abs().max() <= 1 / math.sqrt(2)
    assert method.downlink(after, 1).weights[BASE].equal(after.weights[BASE])
    assert method.downlink(after, 1).weights[A].equal(after.weights[A][:1])
    assert method.problem.backbone.state_dict()[BASE].equal(initial)  # every round starts from the same network
    model = merged(method.level_model(after, 2))
    assert model.get_submodule("hidden").get_parameter("weight").equal(after.weights[BASE])
    assert torch.isfinite(model(EXAMPLE)).all()


def test_an_entry_moves_by_the_clients_whose_base_has_it() -> None:
    method = method_of("flora", (LevelBudget(rank=2), LevelBudget(rank=1, base=0.2)))
    server = server_of(method, samples=(1, 3))
    strong = as_sent(upload(method, server, 0, [[1.0, 0.0], [0.0, 1.0]], [[4.0, 0.0], [0.0, 8.0]]))
    weak = as_sent(upload(method, server, 1, [[1.0, 0.0]], [[8.0]]))
    after = close_round(method, server, [strong, weak])
    # row 0 by (1 x 4 + 3 x 8) / 4 = 7, row 1, which client 0 alone has, by 8; both times 2
    assert after.weights[BASE].tolist() == [[3 + 14, 3], [1, 1 + 16]]
    larger = replace(after, weights={**after.weights, BASE: torch.tensor([[1.0, 1.0], [0.0, 3.0]])})
    assert (method.plan(after, 1).kept["hidden"].tolist(), method.plan(larger, 1).kept["hidden"].tolist()) == ([0], [1])


def test_the_base_travels_down_and_not_up() -> None:
    levels = (*RANKS, LevelBudget(rank=1, base=0.2))
    flora, flexlora = (method_of(name, levels) for name in ("flora", "flexlora"))
    assert flora.problem.ratios == flexlora.problem.ratios
    for ratio, entries in zip(flora.problem.ratios, (4, 4, 2), strict=True):
        ours = flora.footprint(ratio)
        theirs = flexlora.footprint(ratio)
        assert replace(ours, bytes_down=0) == replace(theirs, bytes_down=0)
        assert ours.bytes_down == theirs.bytes_down + 4 * entries
    flora = method_of("flora", RANKS)
    server = server_of(flora, samples=(1, 1))
    with_base = upload(flora, server, 0, [[1.0, 0.0], [0.0, 1.0]], [[4.0, 0.0], [0.0, 8.0]])
    with pytest.raises(ProtocolError, match="not the one that its client was sent"):
        flora.check_plan(server, with_base)
    assert flora.model_size(as_sent(with_base).plan) == flora.model_size(with_base.plan)


class Conv1D(nn.Module):
    """A linear layer as GPT-2 has it, whose matrix is transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


@pytest.mark.parametrize("hidden", [None, Conv1D()])
def test_what_one_client_learns_is_in_the_next_model_whole(hidden: nn.Module | None) -> None:
    method = method_of("flora", RANKS, Tiny(hidden))
    server = server_of(method, samples=(1, 1))
    sent = upload(method, server, 0, [[1.0, 2.0], [0.5, 1.0]], [[0.4, 0.1], [0.3, 0.8]])
    trained = method.global_model(replace(server, weights=dict(sent.weights)))
    after = close_round(method, server, [as_sent(sent)])
    inputs = torch.tensor([[1.0, 2.0], [-3.0, 5.0]])
    torch.testing.assert_close(method.global_model(after).encode(inputs), trained.encode(inputs))
