from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import ClientSide, Server, build_experiment, simulate
from fedml_dapper.federation.scoring.testing import evaluate
from fedml_dapper.methods import Aggregation, FedAvg, ServerState

from ..grids import ON_ANY_NETWORK, sampled

SettingsFactory = Callable[..., Settings]


def test_unexpected_uploads_are_refused(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("client_num_per_round=5", "epochs=1"))
    server, clients = Server(experiment), ClientSide(experiment)
    chosen = list(server.round_clients())
    assert server.round_clients() == chosen  # asking twice changes nothing
    upload = clients.update(server.downlink(chosen[0]), experiment.clients[chosen[0]])
    outsider = next(client_id for client_id in range(10) if client_id not in chosen)
    with pytest.raises(ProtocolError, match="is not awaited"):
        server.receive(replace(upload, client_id=outsider))
    with pytest.raises(ProtocolError, match="round 2 arrived in round 1"):
        server.receive(replace(upload, round=2))
    server.receive(upload)
    with pytest.raises(ProtocolError, match="is not awaited"):
        server.receive(upload)
    record = server.close_round()
    assert [client.client for client in record.clients] == [chosen[0]]  # those who answered make the round


@pytest.mark.long
def test_samples_of_clients_differ_by_round_and_repeat_by_seed(tiny_settings: SettingsFactory) -> None:
    settings = tiny_settings("client_num_per_round=4", "epochs=1", "comm_round=3", "method=fedavg")
    taking_part = [[c.client for c in record.clients] for record in simulate(build_experiment(settings))[1]]
    assert all(len(ids) == 4 and ids == sorted(ids) for ids in taking_part)
    assert len({tuple(ids) for ids in taking_part}) > 1
    assert taking_part == [[c.client for c in record.clients] for record in simulate(build_experiment(settings))[1]]


@pytest.mark.long
def test_best_and_same_round_values(tiny_settings: SettingsFactory) -> None:
    _, records = simulate(build_experiment(tiny_settings("comm_round=4")))
    scores = [record.scores for record in records if record.scores is not None]
    for position, score in enumerate(scores, start=1):
        assert score.global_accuracy == pytest.approx(sum(score.domain_accuracy.values()) / 4)
        assert score.best_global_accuracy == max(s.global_accuracy for s in scores[:position])
        for domain, best in score.best_domain_accuracy.items():
            assert best == max(s.domain_accuracy[domain] for s in scores[:position])


@pytest.mark.long
def test_skipped_rounds_are_not_scored_but_the_last_is(tiny_settings: SettingsFactory) -> None:
    _, records = simulate(build_experiment(tiny_settings("comm_round=3", "frequency_of_the_test=2", "epochs=1")))
    assert [record.scores is not None for record in records] == [False, True, True]


class _Recording(FedAvg):
    """FedAvg that notes in which order uploads are folded in."""

    def __init__(self, base: FedAvg) -> None:
        super().__init__(base.params, base.problem)
        self.order: list[int] = []

    def aggregation(self, server: ServerState) -> Aggregation:
        folding = super().aggregation(server)
        add = folding.add
        folding.add = lambda upload: (self.order.append(upload.client_id), add(upload))[1]  # type: ignore[method-assign]
        return folding


def test_uploads_are_folded_in_client_order_whatever_the_arrival(tiny_settings: SettingsFactory) -> None:
    ten = ("client_num_in_total=10", "client_num_per_round=10")
    experiment = build_experiment(tiny_settings("method=fedavg", "epochs=1", *ten))
    method = _Recording(experiment.method)
    experiment = replace(experiment, method=method)
    server, clients = Server(experiment), ClientSide(experiment)
    server.round_clients()
    for client_id in (7, 2, 9, 0, 1, 8, 3, 6, 5):  # client 4 never answers
        server.receive(clients.update(server.downlink(client_id), experiment.clients[client_id]))
    assert method.order == [0, 1, 2, 3]
    assert server.answered() == {0, 1, 2, 3, 5, 6, 7, 8, 9}
    assert server.close_round().absent == (4,)
    assert method.order == [0, 1, 2, 3, 5, 6, 7, 8, 9]


@pytest.mark.long
def test_validation_samples_are_scored_apart(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("data_args.validation_share=0.2", "comm_round=1"))
    server, [record] = simulate(experiment)
    assert record.scores is not None
    assert record.validation_scores is not None
    assert record.validation_scores.domain_accuracy.keys() == record.scores.domain_accuracy.keys()
    for samples in experiment.validations:
        assert record.validation_scores.domain_accuracy[samples.domain] == pytest.approx(
            evaluate(
                experiment.method.global_model(server.state), experiment.method.problem.task, samples, experiment.device
            ).headline
        )
    [plain] = simulate(build_experiment(tiny_settings("comm_round=1")))[1]
    assert plain.validation_scores is None


@pytest.mark.parametrize("method", sampled(ON_ANY_NETWORK, always=("fedfa", "fdse"), quick=("fedfa",)))
def test_every_method_trains_in_bf16(tiny_settings: SettingsFactory, method: str) -> None:
    few = ("client_num_in_total=4", "client_num_per_round=4", "client_share=0.03", "epochs=1")
    asked = (f"method={method}", "precision=bf16", "comm_round=2", "ratios=[0.0, 0.3]", "params.nefl.sizes=[0.6, 1.0]")
    _, records = simulate(build_experiment(tiny_settings(*few, *asked)))
    assert records[-1].model_is_finite


@pytest.mark.nightly
def test_bf16_trains_another_model_from_fp32_weights(tiny_settings: SettingsFactory) -> None:
    full, half = (
        simulate(build_experiment(tiny_settings("comm_round=1", f"precision={precision}")))[0].state.weights
        for precision in ("fp32", "bf16")
    )
    assert all(tensor.dtype == full[name].dtype for name, tensor in half.items())
    assert any(not torch.equal(tensor, full[name]) for name, tensor in half.items())
    assert all(torch.allclose(tensor, full[name], atol=0.05) for name, tensor in half.items() if "weight" in name)
