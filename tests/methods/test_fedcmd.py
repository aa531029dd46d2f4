"""FedCMD as a whole; election and distance have tests of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import ClientSide, Experiment, RoundRecord, Server, build_experiment, simulate
from fedml_dapper.methods import ClientContext, Upload
from fedml_dapper.methods.catalogue.fedcmd import FedCMD, FedCMDParams, similarity
from fedml_dapper.methods.parts.client_models import ClientModels
from fedml_dapper.methods.parts.layer_election import favourite, shift_changes
from fedml_dapper.pruning import DENSE, Tensors
from tests.pruning.networks import build

FIRST, SECOND, HEAD = "hidden.0", "hidden.2", "predictor"
STATISTICS = {
    f"{norm}.{key}" for norm in ("bn1", "bn2") for key in ("running_mean", "running_var", "num_batches_tracked")
}


def fedcmd(plain: Experiment, rounds: int = 10, **values: Any) -> Experiment:
    problem = plain.method.problem
    problem = replace(problem, training=problem.training.model_copy(update={"comm_round": rounds}))
    return replace(plain, method=FedCMD(FedCMDParams(**values), problem))


def run(experiment: Experiment, rounds: int) -> tuple[Server, ClientSide, dict[int, Upload]]:
    """The server and clients after some rounds, and the last round's uploads."""
    server, clients, uploads = Server(experiment), ClientSide(experiment), {}
    for _ in range(rounds):
        for client_id in server.round_clients():
            uploads[client_id] = clients.update(server.downlink(client_id), experiment.clients[client_id])
            server.receive(uploads[client_id])
        server.close_round()
    return server, clients, uploads


def second_phase(plain: Experiment, layer: str, **values: Any) -> Server:
    """A server in whose phase 1, of one round, ``layer`` was elected."""
    server = Server(fedcmd(plain, **values))
    server.state.round = 1
    server.state.memory.values["votes"] = [[int(name == layer) for name in (FIRST, SECOND, HEAD)]]
    return server


def same(left: Tensors, right: Tensors) -> bool:
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def test_layers_that_attention_never_calls_are_no_candidates(tiny_settings: Callable[..., Settings]) -> None:
    few = ("width=null", "model=null", "image_size=32", "client_num_in_total=4", "client_num_per_round=4")
    settings = tiny_settings(*few, "client_share=0.02", "method=fedcmd", "comm_round=2")
    experiment = build_experiment(settings, build("vision_transformer"))
    layer = "encoder.layers.encoder_layer_1"
    assert [f"{layer}.mlp.0", f"{layer}.mlp.3", "heads.head"] == list(experiment.method.candidates[-3:])
    assert len(simulate(experiment)[1]) == 2


@pytest.mark.parametrize(("rho", "rounds", "expected"), [(0.1, 200, 20), (0.1, 3, 1), (0.5, 5, 2), (1.0, 7, 7)])
def test_length_of_the_first_phase(lenet: Experiment, rho: float, rounds: int, expected: int) -> None:
    assert fedcmd(lenet, rounds, rho=rho).method.first_rounds == expected


def test_with_rho_1_it_is_fedavg_bit_for_bit(lenet: Experiment) -> None:
    plain, ours = (run(experiment, 2)[0] for experiment in (lenet, fedcmd(lenet, rounds=2, rho=1)))
    assert same(plain.state.weights, ours.state.weights)
    assert ours.downlink(1).plan is DENSE
    assert same(ours.downlink(1).weights, plain.state.weights)


def scaled(values: list[Tensor]) -> Tensor:
    joined = torch.cat([tensor.double().flatten() for tensor in values])
    joined = (joined - joined.min()) / (joined.max() - joined.min())
    return torch.stack([joined.mean(), joined.std(correction=0)])[:, None]


def test_a_client_votes_by_its_trained_model_on_its_own_images(lenet: Experiment) -> None:
    experiment = fedcmd(lenet)
    clients, data = ClientSide(experiment), experiment.clients[2]
    upload = clients.update(Server(experiment).downlink(2), data)
    assert not clients.memories[2].tensors
    model = experiment.method.local_model(DENSE).eval()
    model.load_state_dict(dict(upload.weights))
    images, labels = (torch.cat(parts) for parts in zip(*data, strict=True))
    with torch.no_grad():
        stage = model.pool1(model.bn1(model.conv1(images)))
        stage = model.pool2(model.bn2(model.conv2(stage))).flatten(1)
        first = F.relu(model.hidden[0](stage))
        second = F.relu(model.hidden[2](first))
        outputs = [scaled([tensor]) for tensor in (stage, first, second, model.predictor(second))]
    scores = shift_changes(scaled([images]), scaled([labels]), outputs)
    client = ClientContext(experiment.profiles[2], data)
    assert experiment.method.layer_scores(client, model) == pytest.approx(scores, rel=1e-5)
    assert (int(upload.extras["vote"]), bool(upload.extras["tied"])) == favourite(scores)


def test_every_batch_votes_and_the_majority_decides(lenet: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedml_dapper.methods.parts.layer_election import LayerMetric  # noqa: PLC0415

    by_batch = iter([[0.5, 0.1, 0.2], [0.1, 0.5, 0.2], [0.5, 0.2, 0.1], [0.9, 0.2, 0.1], *[[1.0, 0.0, 0.0]] * 99])
    seen = []

    def scores(metric: LayerMetric) -> list[float]:
        seen.append(next(by_batch))
        return seen[-1]

    monkeypatch.setattr(LayerMetric, "scores", scores)
    experiment = fedcmd(lenet, metric_data="per_batch")
    data = replace(experiment.clients[0], batch_size=-(-experiment.clients[0].num_samples // 4))
    clients = ClientSide(experiment)
    upload = clients.update(Server(experiment).downlink(0), data)
    assert len(seen) == data.steps_per_epoch == 4
    assert int(upload.extras["vote"]) == 2
    assert not clients.memories[0].values
    plain = ClientSide(lenet).update(Server(lenet).downlink(0), data)
    assert same(upload.weights, plain.weights)


def test_votes_of_every_round_are_told_and_elect_the_layer(lenet: Experiment) -> None:
    server, _, _ = run(fedcmd(lenet, rho=0.2), 3)
    votes = server.state.memory.values["votes"]
    assert isinstance(votes, list)
    assert [sum(counts) for counts in votes] == [4, 4]  # type: ignore[arg-type]
    server, clients = Server(fedcmd(lenet, rho=0.2)), ClientSide(fedcmd(lenet, rho=0.2))
    records = []
    for chosen in ((1, 1, 0, 2), (2, 0, 2, 0)):
        for client_id, vote in zip(server.round_clients(), chosen, strict=True):
            upload = clients.update(server.downlink(client_id), lenet.clients[client_id])
            extras = {"vote": torch.tensor(vote), "tied": torch.tensor(int(client_id == 3))}
            server.receive(replace(upload, extras=extras))
        records.append(server.close_round())
    assert records[0].notes == {"votes": {FIRST: 1, SECOND: 2, HEAD: 1}, "winner": SECOND, "tied_votes": 1}
    assert records[1].notes == {
        "votes": {FIRST: 2, SECOND: 0, HEAD: 2}, "winner": FIRST, "tied_votes": 1, "personal_layer": FIRST,
    }  # fmt: skip
    assert RoundRecord.model_validate_json(records[1].model_dump_json()) == records[1]
    server.state.round = 3
    assert server._method.round_notes(server.state) == {"personal_layer": FIRST}


@pytest.mark.parametrize(
    "extras",
    [{}, {"vote": torch.tensor(3), "tied": torch.tensor(0)}, {"vote": torch.tensor(1.0), "tied": torch.tensor(0)}],
)
def test_a_bad_vote_changes_nothing(lenet: Experiment, extras: dict[str, Tensor]) -> None:
    experiment = fedcmd(lenet)
    server = Server(experiment)
    upload = ClientSide(lenet).update(server.downlink(0), lenet.clients[0])
    aggregation = experiment.method.aggregation(server.state)
    with pytest.raises(ProtocolError, match="vote"):
        aggregation.add(replace(upload, extras=extras))
    good = replace(upload, extras={"vote": torch.tensor(1), "tied": torch.tensor(0)})
    aggregation.add(good)
    aggregation.close()
    assert same(server.state.weights, dict(upload.weights))
    assert server.state.memory.values["votes"] == [[0, 1, 0]]


def test_the_second_phase_averages_all_but_the_personal_layer(lenet: Experiment) -> None:
    server, clients = second_phase(lenet, SECOND), ClientSide(fedcmd(lenet))
    before = dict(server.state.weights)
    uploads = {i: clients.update(server.downlink(i), lenet.clients[i]) for i in server.round_clients()}
    for upload in uploads.values():
        assert upload.weights.keys() == before.keys()
        assert upload.plan is DENSE
        server.receive(upload)
    server.close_round()
    samples = [upload.num_samples for upload in uploads.values()]
    for name, tensor in server.state.weights.items():
        if name.startswith(SECOND):
            assert torch.equal(tensor, before[name])
        elif tensor.is_floating_point():
            sent = zip(samples, (upload.weights[name] for upload in uploads.values()), strict=True)
            total = sum((tensor.double() * count for count, tensor in sent), torch.zeros(()).double())
            assert torch.equal(tensor, (total / sum(samples)).float())

    kept = {f"{SECOND}.weight", f"{SECOND}.bias"} | STATISTICS
    downlink, own = server.downlink(1), clients.memories[1].recall("personal")
    assert own.keys() == kept
    assert downlink.weights.keys() == before.keys() - kept
    assert downlink.plan.omitted == kept
    assert all(torch.equal(tensor, uploads[1].weights[name]) for name, tensor in own.items())

    phi = [
        torch.cat([u.weights[f"{SECOND}.{key}"].double().flatten() for key in ("weight", "bias")])
        for u in uploads.values()
    ]
    weights = [max(0.0, float(F.cosine_similarity(phi[1], other, dim=0))) for other in phi]
    for name in ("predictor.weight", "predictor.bias"):
        mixed = sum(w * u.weights[name].double() for w, u in zip(weights, uploads.values(), strict=True)) / sum(weights)
        torch.testing.assert_close(downlink.weights[name].double(), mixed, rtol=0, atol=1e-6)
    for name in ("hidden.0.weight", "conv1.bias", "bn2.weight"):
        assert torch.equal(downlink.weights[name], server.state.weights[name])

    client = ClientContext(lenet.profiles[1], lenet.clients[1], clients.memories[1])
    model = server._method.personal_model(client, downlink).state_dict()
    assert same(model, {**downlink.weights, **own})
    again = clients.update(downlink, lenet.clients[1])
    whole = replace(downlink, weights={**downlink.weights, **own}, plan=DENSE)
    assert same(again.weights, ClientSide(lenet).update(whole, lenet.clients[1]).weights)


def remember(server: Server, client_id: int, layer: Tensor, head: float, round_: int = 2) -> None:
    """A client's personal layer, ``layer`` in its first weights and else 0, and a head of one value."""
    shapes = {name: tensor for name, tensor in server.state.weights.items() if name.split(".")[0] in (HEAD, "hidden")}
    tensors = {name: torch.full_like(tensor, head) for name, tensor in shapes.items()}
    tensors |= {f"{SECOND}.weight": torch.zeros_like(shapes[f"{SECOND}.weight"]), f"{SECOND}.bias": torch.zeros(84)}
    tensors[f"{SECOND}.weight"].flatten()[: len(layer)] = layer
    ClientModels(server.state).keep(client_id, round_, tensors)


def heads(server: Server) -> list[float]:
    values = [server.downlink(client_id).weights["predictor.bias"] for client_id in range(4)]
    return [float(value[0]) if bool((value == value[0]).all()) else float("nan") for value in values]


def test_mixtures_by_hand(lenet: Experiment) -> None:
    axis = torch.eye(3)
    alike, orthogonal, between = (second_phase(lenet, SECOND) for _ in range(3))
    for client_id in range(4):
        remember(alike, client_id, 2.0 * axis[0], head=float(client_id))
        if client_id < 3:
            remember(orthogonal, client_id, axis[client_id], head=float(client_id))
    assert heads(alike) == [1.5] * 4  # the plain mean
    assert heads(orthogonal)[:3] == [0, 1, 2]  # everyone's own
    assert torch.equal(orthogonal.downlink(3).weights["predictor.bias"], orthogonal.state.weights["predictor.bias"])
    assert orthogonal.downlink(3).plan is DENSE

    remember(between, 0, torch.tensor([1.0, 0.0]), head=0.0)
    remember(between, 1, torch.tensor([0.6, 0.8]), head=1.0)
    remember(between, 2, torch.tensor([-1.0, 0.0]), head=5.0)
    remember(between, 3, torch.tensor([0.0, 0.0]), head=7.0)
    assert heads(between) == pytest.approx([0.6 / 1.6, 1 / 1.6, 5, 7])


def test_phi_by_hand() -> None:
    vectors = torch.tensor([[3.0, 0.0], [3.0, 4.0], [-1.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(similarity(vectors, 0), torch.tensor([1.0, 0.6, 0.0, 0.0], dtype=torch.float64))
    assert similarity(vectors, 3).tolist() == [0, 0, 0, 1]


def test_switches_of_the_second_phase(lenet: Experiment) -> None:
    recent, averaged = second_phase(lenet, SECOND, scope="round"), second_phase(lenet, SECOND, mix_by_similarity=False)
    for server in (recent, averaged):
        server.state.round = 3
        for client_id, round_ in enumerate((3, 2, 3)):
            remember(server, client_id, torch.ones(1), head=float(client_id), round_=round_)
    assert heads(recent)[:3] == [1, 1, 1]  # of 0 and 2; of 0, 1 and 2; of 0 and 2
    ClientModels(recent.state).keep(2, 2, recent.state.memory.recall("client2"))
    assert heads(recent)[:3] == [0, 0.5, 1]
    assert torch.equal(averaged.downlink(1).weights["predictor.bias"], averaged.state.weights["predictor.bias"])

    shared = second_phase(lenet, SECOND, local_bn_stats=False)
    remember(shared, 0, torch.ones(1), head=0.0)
    assert shared.downlink(0).plan.omitted == {f"{SECOND}.weight", f"{SECOND}.bias"}
    assert shared.downlink(0).weights.keys() > STATISTICS


def test_a_personal_convolution_takes_its_batchnorm_along(lenet: Experiment, fedavg: Experiment) -> None:
    method = fedcmd(lenet, candidates="all").method
    assert method.candidates == ("conv1", "conv2", FIRST, SECOND, HEAD)
    second = {"layer": torch.tensor(1)}
    kept = method.kept(second)
    assert {"conv2.weight", "conv2.bias", "bn2.weight", "bn2.bias"} == kept - STATISTICS
    assert {name.split(".")[0] for name in method.mixed(second)} == {"hidden", HEAD}
    head = {"layer": torch.tensor(4)}
    assert method.mixed(head) == frozenset()
    assert method.kept(head) - STATISTICS == {"predictor.weight", "predictor.bias"}
    with pytest.raises(ConfigError, match="candidates: `all` needs layers in one chain"):
        fedcmd(fedavg, candidates="all")


def test_a_personal_layer_of_the_server_model_never_changes_even_with_its_counters(lenet: Experiment) -> None:
    experiment = fedcmd(lenet, candidates="all")
    server, clients = Server(experiment), ClientSide(experiment)
    server.state.round, server.state.memory.values["votes"] = 1, [[0, 1, 0, 0, 0]]
    before = dict(server.state.weights)
    for client_id in server.round_clients():
        server.receive(clients.update(server.downlink(client_id), lenet.clients[client_id]))
    server.close_round()
    unchanged = {name for name, tensor in server.state.weights.items() if torch.equal(tensor, before[name])}
    assert unchanged == {name for name in before if name.startswith(("conv2.", "bn2."))}


def test_a_void_round_has_no_vote_and_where_nobody_voted_the_last_layer_is_personal(lenet: Experiment) -> None:
    """A void round closes no aggregation."""
    server = Server(fedcmd(lenet, rho=0.2))
    method, state = server._method, server.state
    notes = []
    for state.round in (1, 2):
        notes.append(dict(method.round_notes(state)))
    assert notes == [{}, {"personal_layer": HEAD}]
    assert int(method.instructions(state, 0)["layer"]) == 2
    state.memory.values |= {"votes": [[1, 0, 0]], "tied_votes": 0, "voted_in": 1}
    assert dict(method.round_notes(state)) == {"personal_layer": FIRST}  # round 2 was void, round 1 was not


def test_batches_that_vote_come_whole(lenet: Experiment) -> None:
    assert fedcmd(lenet, metric_data="per_batch").method.sees_batches
    assert not fedcmd(lenet).method.sees_batches
