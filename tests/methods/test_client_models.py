from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedml_dapper.errors import ProtocolError
from fedml_dapper.methods import ServerState, TrainingMetrics, Upload
from fedml_dapper.methods.parts.client_models import ClientModels, KeepLatest


def server() -> ServerState:
    return ServerState(round=4, weights={"a": torch.zeros(2), "b": torch.zeros(1)}, profiles=())


def upload(client_id: int, *a: float) -> Upload:
    weights = {"a": torch.tensor(a), "b": torch.ones(1)}
    return Upload(5, client_id, num_samples=3, weights=weights, metrics=TrainingMetrics(0.0, 1, 0.0))


def test_only_the_latest_is_kept_with_its_round() -> None:
    state = server()
    models = ClientModels(state)
    for client_id, round_ in ((12, 1), (1, 1), (12, 3)):
        models.keep(client_id, round_, {"a": torch.tensor([float(round_), client_id])})
    assert models.rounds == {1: 1, 12: 3}
    assert list(models.rounds) == [1, 12]
    assert models.tensor(12, "a").tolist() == [3, 12]
    assert models.tensor(1, "a").tolist() == [1, 1]
    assert 1 in models
    assert 2 not in models
    assert len(state.memory.tensors) == 2


def test_mean_of_clients_by_hand() -> None:
    models = ClientModels(server())
    models.keep(0, 1, {"a": torch.tensor([1.0, 2.0]), "b": torch.ones(1)})
    models.keep(3, 1, {"a": torch.tensor([5.0, 0.0]), "b": torch.ones(1)})
    previous = {"a": torch.tensor([9.0, 9.0])}
    assert models.mean({0: 1.0, 3: 3.0, 7: 0.0}, previous)["a"].tolist() == [4, 0.5]
    assert models.mean({0: 0.0}, previous) == previous


def test_uploads_count_from_the_close_of_the_round_on() -> None:
    state = server()
    latest = KeepLatest(state, ["a"])
    latest.add(upload(2, 1.0, 2.0))
    with pytest.raises(ProtocolError, match="`a` has shape"):
        latest.add(upload(3, 1.0))
    with pytest.raises(ProtocolError, match="first `a`"):
        latest.add(replace(upload(3, 1.0), weights={}))
    assert 2 not in ClientModels(state)
    latest.close()
    assert ClientModels(state).rounds == {2: 5}
    assert state.memory.recall("client2")["a"].tolist() == [1, 2]
    assert state.memory.recall("client2").keys() == {"a"}
    assert state.weights["a"].tolist() == [0, 0]
