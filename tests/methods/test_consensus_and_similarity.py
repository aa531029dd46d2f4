"""FDSE's server, on a model of two shared tensors, one personal one, two statistics and a local one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedml_dapper.errors import ProtocolError
from fedml_dapper.methods import ClientProfile, ServerState, TrainingMetrics, Upload
from fedml_dapper.methods.catalogue.fdse import ConsensusAndSimilarity, eraser_of
from fedml_dapper.methods.parts.decomposition import Roles

ROLES = Roles((("a", "b"),), (("v",),), ("mean", "steps"), frozenset({"own"}))
START = {
    "a": torch.tensor([10.0]),
    "b": torch.tensor([[20.0]]),
    "v": torch.tensor([1.0, 1.0]),
    "mean": torch.tensor([0.5]),
    "steps": torch.tensor(7),
    "own": torch.tensor([4.0]),
}
ZERO = {"a": 10.0, "b": 20.0, "v": (1.0, 1.0), "mean": 0.5, "steps": 7}


def state() -> ServerState:
    profiles = tuple(ClientProfile(client_id, "x", 1, 0.0, 10) for client_id in range(3))
    return ServerState(0, {name: tensor.clone() for name, tensor in START.items()}, profiles)


def upload(client_id: int, num_samples: int = 10, **values: object) -> Upload:
    weights = {
        name: torch.tensor(value, dtype=START[name].dtype).reshape(START[name].shape)
        for name, value in {**ZERO, **values}.items()
    }
    return Upload(1, client_id, num_samples, weights, TrainingMetrics(1.0, 1, 0.0))


def aggregate(
    server: ServerState, *uploads: Upload, roles: Roles = ROLES, tau: float | None = 0.5, consensus: bool = True
) -> Mapping[str, Tensor]:
    aggregation = ConsensusAndSimilarity(server, roles, tau, consensus=consensus)
    for sent in uploads:
        aggregation.add(sent)
    aggregation.close()
    return server.weights


def test_shared_tensors_of_a_group_move_together_by_consensus() -> None:
    weights = aggregate(state(), upload(0, a=13.0), upload(1, b=21.0))  # updates (3, 0) and (0, 1), r = 2
    assert weights["a"].tolist() == pytest.approx([11])
    assert weights["b"].tolist() == [pytest.approx([21])]
    assert weights["a"].dtype == torch.float32


def test_tensors_that_are_groups_move_on_their_own() -> None:
    single = replace(ROLES, consensus=(("a",), ("b",)))
    weights = aggregate(state(), upload(0, a=13.0), upload(1, a=14.0, b=21.0), roles=single)
    assert weights["a"].tolist() == pytest.approx([13.5])  # one direction, mean length 3.5
    assert weights["b"].tolist() == [pytest.approx([20.5])]  # client 0 stood still: mean length 1/2


def test_erasers_are_mixed_by_similarity_and_remembered_per_client() -> None:
    server = state()
    weights = aggregate(server, upload(0, v=(1.0, 0.0)), upload(1, v=(0.0, 2.0)))
    assert eraser_of(server, 0)["v"].tolist() == pytest.approx([0.880797, 0.238406], abs=1e-6)
    assert eraser_of(server, 1)["v"].tolist() == pytest.approx([0.119203, 1.761594], abs=1e-6)
    assert weights["v"].tolist() == pytest.approx([0.5, 1.0])  # the mean of both, for newcomers
    nearly_own = state()
    aggregate(nearly_own, upload(0, v=(1.0, 0.0)), upload(1, v=(0.0, 2.0)), tau=1e-3)
    assert eraser_of(nearly_own, 1)["v"].tolist() == [0, 2]


def test_ablations() -> None:
    server = state()
    sent = (upload(0, a=13.0, v=(1.0, 0.0)), upload(1, b=21.0, v=(0.0, 2.0)))
    weights = aggregate(server, *sent, tau=None, consensus=False)
    assert (weights["a"].tolist(), weights["b"].tolist()) == ([11.5], [[20.5]])  # updates (3, 0) and (0, 1)
    assert eraser_of(server, 0)["v"].tolist() == [1, 0]
    assert eraser_of(server, 1)["v"].tolist() == [0, 2]


def test_absent_clients_erasers_stay() -> None:
    server = state()
    aggregate(server, upload(0, v=(1.0, 0.0)), upload(1, v=(0.0, 2.0)))
    before = eraser_of(server, 1)["v"]
    weights = aggregate(server, upload(0, v=(3.0, 0.0)))
    assert torch.equal(eraser_of(server, 1)["v"], before)
    assert eraser_of(server, 0)["v"].tolist() == [3, 0]
    assert not eraser_of(server, 2)
    assert weights["v"].tolist() == pytest.approx([(3 + 0.119203) / 2, 1.761594 / 2], abs=1e-6)


def test_statistics_are_averaged_plainly_and_the_largest_counter_stays() -> None:
    weights = aggregate(
        state(), upload(0, 1, mean=1.0, steps=9), upload(1, 99, mean=2.0, steps=12), upload(2, 50, mean=6.0, steps=8)
    )
    assert weights["mean"].tolist() == [3]
    assert (int(weights["steps"]), weights["steps"].dtype) == (12, torch.int64)


def test_local_tensors_are_neither_expected_nor_touched() -> None:
    server = state()
    assert torch.equal(aggregate(server, upload(0, a=11.0))["own"], START["own"])
    with pytest.raises(ProtocolError, match="own"):
        aggregate(server, upload(0, own=5.0))


def test_identical_updates_are_fedavg_without_weights() -> None:
    weights = aggregate(state(), *(upload(client_id, a=11.5, b=18.0) for client_id in range(3)))
    assert weights["a"].tolist() == pytest.approx([11.5])
    assert weights["b"].tolist() == [pytest.approx([18])]


def test_client_numbers_do_not_matter() -> None:
    generator = torch.Generator().manual_seed(3)
    drawn = [{"a": x, "b": y, "v": (x, y), "mean": y} for x, y in torch.randn(3, 2, generator=generator).tolist()]
    one = aggregate(state(), *(upload(client_id, **values) for client_id, values in enumerate(drawn)))
    other = aggregate(state(), *(upload(client_id, **values) for client_id, values in enumerate(drawn[::-1])))
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=2e-6)


@pytest.mark.parametrize("values", [{"a": float("nan")}, {"v": (1.0, float("inf"))}])
def test_diverged_models_are_refused_before_anything_changes(values: dict[str, object]) -> None:
    server = state()
    aggregation = ConsensusAndSimilarity(server, ROLES, 0.5)
    with pytest.raises(ProtocolError, match=r"client 1 .* lower train_args\.learning_rate"):
        aggregation.add(upload(1, **values))
    aggregation.add(upload(0, a=13.0))
    aggregation.close()
    assert server.weights["a"].tolist() == [13]
    assert not eraser_of(server, 1)


def test_a_round_without_answers_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no client answered"):
        aggregate(state())
