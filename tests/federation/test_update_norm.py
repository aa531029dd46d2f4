"""Finite uploads of a size that would ruin the model, from clients that are other people's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import ClientSide, Experiment, RoundRecord, Server, SharedSettings, build_experiment
from fedml_dapper.federation.round.update_norm import UpdateNorms
from fedml_dapper.federation.run_folder.checkpoint import load_checkpoint, save_checkpoint
from fedml_dapper.methods import Upload

from ..across_silos import across_silos
from ..grids import ON_ANY_NETWORK, sampled

SettingsFactory = Callable[..., Settings]
Change = Callable[[Upload], Upload]
LARGEST = 3e38
FEW = ("client_num_in_total=5", "client_num_per_round=5", "epochs=1", "frequency_of_the_test=9", "comm_round=6")


class Silos:
    """A server and other people's clients, some of which do as they like."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.server, self.clients = Server(experiment), ClientSide(experiment)

    def round(self, bad: Mapping[int, Change] | None = None) -> RoundRecord:
        for client_id in self.server.round_clients():
            upload = self.clients.update(self.server.downlink(client_id), self.experiment.clients[client_id])
            self.server.receive((bad or {}).get(client_id, lambda upload: upload)(upload))
        return self.server.close_round()

    def same_weights(self, other: Silos) -> bool:
        theirs = other.server.state.weights
        return all(torch.equal(tensor, theirs[name]) for name, tensor in self.server.state.weights.items())


@pytest.fixture
def silos(tiny_settings: SettingsFactory, tmp_path: Path) -> Callable[..., Silos]:
    across = across_silos(tmp_path)
    return lambda *overrides: Silos(build_experiment(tiny_settings(*FEW, *across, *overrides)))


def huge_weight(upload: Upload) -> Upload:
    """One value of one tensor."""
    bias = upload.weights["predictor.bias"].clone()
    bias[0] = LARGEST
    return replace(upload, weights={**upload.weights, "predictor.bias": bias})


def huge_extras(upload: Upload) -> Upload:
    huge = {n: torch.full_like(t, LARGEST) if t.is_floating_point() else t for n, t in upload.extras.items()}
    return replace(upload, extras=huge)


def test_what_is_usual_by_hand() -> None:
    usual = UpdateNorms(0.1, 5000.0)
    UpdateNorms(2.9, 140_000.0).check(usual, 30)
    with pytest.raises(ProtocolError, match=r"moved by 3\.1, where 0\.1 is usual \(dapper_args.*: 30\)"):
        UpdateNorms(3.1).check(usual, 30)
    with pytest.raises(ProtocolError, match=r"has norm 1\.6e\+05, where 5e\+03 is usual"):
        UpdateNorms(0.1, 160_000.0).check(usual, 30)
    UpdateNorms(0.9, 900.0).check(UpdateNorms(1e-9, 0.0), 30)  # small in themselves
    UpdateNorms(1e30, 1e30).check(UpdateNorms(), 30)  # nothing is known yet
    assert UpdateNorms(1.0, 2.0).without(UpdateNorms(0.5, None)) == UpdateNorms(None, 2.0)


def test_a_huge_value_is_refused_and_costs_nobody_else_anything(silos: Callable[..., Silos]) -> None:
    attacked, without = silos("method=fedavg"), silos("method=fedavg")
    for federation in (attacked, without):
        federation.round()
    record = attacked.round({2: huge_weight})
    assert record.rolled_back is None
    assert (record.absent, list(record.refused)) == ((2,), [2])
    assert "where 0." in record.refused[2]
    server = without.server
    for client_id in server.round_clients():
        if client_id != 2:
            server.receive(without.clients.update(server.downlink(client_id), without.experiment.clients[client_id]))
    server.close_round()
    assert attacked.same_weights(without)
    assert attacked.round().refused == {}  # the honest are not blamed


def test_in_the_first_round_the_model_stays_as_it_was(
    silos: Callable[..., Silos], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attacked, fresh = silos("method=fedavg"), silos("method=fedavg")
    record = attacked.round({2: huge_weight})
    assert record.rolled_back == "what clients [2] sent is out of all proportion"
    assert "round 1: what clients [2] sent is out of all proportion; the global model stays" in caplog.text
    assert (record.absent, list(record.refused)) == ((2,), [2])
    assert [client.client for client in record.clients] == [0, 1, 3, 4]
    assert attacked.same_weights(fresh)
    assert RoundRecord.model_validate_json(record.model_dump_json()) == record
    # from now on it is known what is usual, also after a restart
    settings = SharedSettings.of_experiment(attacked.experiment)
    save_checkpoint(attacked.server.checkpoint(), settings, tmp_path / "one.safetensors")
    resumed = silos("method=fedavg")
    resumed.server.restore(load_checkpoint(tmp_path / "one.safetensors", settings, resumed.experiment.device))
    for federation in (attacked, resumed):
        record = federation.round({2: huge_weight})
        assert (record.rolled_back, list(record.refused)) == (None, [2])
    assert attacked.same_weights(resumed)


@pytest.mark.parametrize("method", ["fpl", "scaffold"])
@pytest.mark.parametrize("round_", [1, 2])
def test_what_comes_with_the_weights_is_guarded_too(silos: Callable[..., Silos], method: str, round_: int) -> None:
    federation = silos(f"method={method}")
    for _ in range(round_ - 1):
        federation.round()
    record = federation.round({1: huge_extras})
    assert "what comes with the weights has norm" in record.refused[1]
    assert (record.rolled_back is not None) == (round_ == 1)
    record = federation.round()
    assert (record.rolled_back, record.refused) == (None, {})
    assert all(client.loss < 10 for client in record.clients)


def test_a_model_that_is_not_finite_is_rolled_back(silos: Callable[..., Silos]) -> None:
    federation = silos("method=fedavgm", "dapper_args.defence.max_times_median=null")

    def all_of(value: float) -> dict[int, Change]:
        def change(upload: Upload) -> Upload:
            weights = {n: torch.full_like(t, value) if t.dim() > 1 else t * 0 for n, t in upload.weights.items()}
            return replace(upload, weights=weights)

        return dict.fromkeys(range(5), change)

    assert federation.round(all_of(LARGEST)).rolled_back is None  # huge, and finite
    weights, memory = dict(federation.server.state.weights), dict(federation.server.state.memory.tensors)
    record = federation.round(all_of(-LARGEST))
    assert record.rolled_back == "the model made of what clients [0, 1, 2, 3, 4] sent is not finite"
    for now, before in ((federation.server.state.weights, weights), (federation.server.state.memory.tensors, memory)):
        assert all(torch.equal(tensor, before[name]) for name, tensor in now.items())


@pytest.mark.long
@pytest.mark.parametrize("name", sampled(sorted(ON_ANY_NETWORK), quick=("dapperfl", "fdse")))
def test_honest_uploads_of_every_method_are_of_a_size(silos: Callable[..., Silos], name: str) -> None:
    model = ("model=lenet5", "width=6") if name in ("fedcmd", "fedap") else ()
    federation = silos(f"method={name}", *model)
    for _ in range(3):
        record = federation.round()
        assert (record.rolled_back, record.refused) == (None, {})
        assert all(client.change is not None for client in record.clients)
