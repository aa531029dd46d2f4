"""Edges in one process: what they sum up is what the server would have summed up itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import (
    Agreement,
    Announcement,
    ClientSide,
    Experiment,
    Measurement,
    Server,
    build_experiment,
    simulate,
)
from fedml_dapper.federation.round.edges import Edge, EdgeOrder
from fedml_dapper.federation.run_folder.records import RoundRecord
from fedml_dapper.federation.scoring.own_tests import OwnTests
from fedml_dapper.federation.scoring.testing import Figures
from fedml_dapper.federation.wire.edge_codec import EdgeCodec
from fedml_dapper.pruning import PartialSum

from ..grids import sampled

SettingsFactory = Callable[..., Settings]
EDGES = [
    {"rank": 11, "silos": [1, 4, 5, 10], "server_address": "edge-a:8890"},
    {"rank": 12, "silos": [2, 3], "server_address": "edge-b:8890"},
]
"""Of ten silos; 6 to 9 call the server itself."""


@pytest.fixture
def tiny_settings(tiny_settings: SettingsFactory) -> SettingsFactory:
    """With as many clients as the silos above."""
    return partial(tiny_settings, "client_num_in_total=10", "client_num_per_round=10")


def across_silos(settings: Settings, edges: object = EDGES) -> Settings:
    """The same experiment, with edges between the server and some of its silos."""
    values = settings.model_dump(mode="json")
    values["common_args"]["training_type"] = "cross_silo"
    grpc = {"server_address": "server:8890", "certificates": "certs", "edges": edges}
    values["comm_args"] |= {"backend": "DAPPER_GRPC", "dapper_grpc": grpc}
    return Settings.model_validate(values)


def run(experiment: Experiment, silent: frozenset[int] = frozenset()) -> tuple[Server, list[RoundRecord]]:
    """All rounds, messages as bytes; ``silent`` silos behind edges answer nothing."""
    codec = EdgeCodec(experiment.method.problem.layout, Agreement.of(experiment))
    server, clients = Server(experiment), ClientSide(experiment)
    edges, rounds = {10: Edge(experiment), 11: Edge(experiment)}, []
    while server.has_rounds_left:
        server.round_clients()
        for recipient in server.recipients:
            if recipient not in server.edges:
                server.receive(clients.update(server.downlink(recipient), experiment.clients[recipient]))
                continue
            edge, order = edges[recipient], codec.decode_order(codec.encode_order(server.order(recipient)))
            edge.begin(order)
            for client_id in reversed([one for one in order.clients if one not in silent]):
                edge.receive(clients.update(edge.downlink(client_id), experiment.clients[client_id]))
            server.receive_sum(codec.decode_sum(codec.encode_sum(edge.close())))
        rounds.append(server.close_round())
    return server, rounds


UNLIKE = {"seconds", "loss", "change", "extras_norm"}
"""Of a client's record: the last two are measured across silos alone."""


@pytest.mark.long
@pytest.mark.parametrize(
    "method",
    sampled(
        ["dapperfl", "fedavg", "dapperfl_slim", "feddrop", "fjord", "depthfl", "fedbn", "fiarse", "profl"],
        always=("dapperfl",),
    ),
)
def test_the_model_is_the_one_without_edges_but_for_the_order_of_additions(
    tiny_settings: SettingsFactory, method: str
) -> None:
    settings = tiny_settings(f"method={method}", "model=resnet10", "epochs=2", "frequency_of_the_test=2")
    flat, flat_rounds = simulate(build_experiment(settings))
    tree, tree_rounds = run(build_experiment(across_silos(settings)))
    for name, tensor in flat.state.weights.items():
        torch.testing.assert_close(tree.state.weights[name], tensor, rtol=1e-5, atol=1e-6)
    assert [c.model_dump(exclude=UNLIKE) for c in tree_rounds[0].clients] == [
        c.model_dump(exclude=UNLIKE) for c in flat_rounds[0].clients
    ]
    trained = {client.client for client in flat_rounds[0].clients}
    assert tree_rounds[0].edges[11].clients == tuple(sorted({0, 3, 4, 9} & trained))
    assert tree_rounds[0].edges[12].clients == tuple(sorted({1, 2} & trained))


def test_silos_that_are_silent_behind_an_edge_are_absent(tiny_settings: SettingsFactory) -> None:
    settings = across_silos(tiny_settings("client_share=0.04", "comm_round=1", "epochs=2"))
    _, (record,) = run(build_experiment(settings), silent=frozenset({1, 2, 9}))
    assert record.absent == (1, 2, 9)
    assert record.edges[12].clients == ()
    assert record.edges[12].bytes_up == 0
    assert record.edges[11].clients == (0, 3, 4)


@pytest.fixture
def asked(tiny_settings: SettingsFactory) -> tuple[Server, Edge, ClientSide, EdgeOrder]:
    """A server in round 1, and an edge with its order."""
    experiment = build_experiment(across_silos(tiny_settings("client_share=0.04", "epochs=2", "method=dapperfl")))
    server, edge = Server(experiment), Edge(experiment)
    server.round_clients()
    order = server.order(11)
    edge.begin(order)
    return server, edge, ClientSide(experiment), order


def test_what_an_edge_gets_is_checked_as_by_the_server(asked: tuple[Server, Edge, ClientSide, EdgeOrder]) -> None:
    server, edge, clients, _ = asked
    experiment = build_experiment(server._experiment.settings)
    upload = clients.update(edge.downlink(1), experiment.clients[1])
    with pytest.raises(ProtocolError, match="upload says 7 samples"):
        edge.receive(replace(upload, num_samples=7))
    with pytest.raises(ProtocolError, match="client 0 is not awaited"):
        edge.receive(replace(upload, client_id=0))
    edge.refuse(1, ProtocolError("nonsense"))
    edge.receive(clients.update(edge.downlink(2), experiment.clients[2]))
    server.receive_sum(edge.close())
    for client_id in (5, 6, 7, 8):
        server.receive(clients.update(server.downlink(client_id), experiment.clients[client_id]))
    server.give_up(10)
    record = server.close_round()
    assert record.refused == {1: "nonsense"}
    assert record.absent == (0, 1, 3, 4, 9)


def test_a_sum_that_does_not_fit_is_refused_before_it_changes_anything(
    asked: tuple[Server, Edge, ClientSide, EdgeOrder],
) -> None:
    server, edge, clients, _ = asked
    experiment = build_experiment(server._experiment.settings)
    for client_id in (1, 2):
        edge.receive(clients.update(edge.downlink(client_id), experiment.clients[client_id]))
    good = edge.close()
    name = next(iter(good.sum.sums))
    sums, held = good.sum.sums[name]

    def with_pair(*pair: torch.Tensor) -> PartialSum:
        return replace(good.sum, sums={**good.sum.sums, name: pair})

    bad = {
        "is not awaited": replace(good, round=2),
        "not awaited with": replace(good, edge=9),
        "it was not to ask": replace(good, records=(good.records[0].model_copy(update={"client": 5}), good.records[1])),
        "or one twice": replace(good, records=(good.records[0], good.records[0])),
        "as another than it is": replace(
            good, records=(good.records[0].model_copy(update={"num_samples": 10_000}), good.records[1])
        ),
        "sums up a weight": replace(good, sum=replace(good.sum, total=good.sum.total + 1)),
        "of other tensors": replace(good, sum=replace(good.sum, sums={})),
        "which the model's is not": replace(good, sum=with_pair(sums.float(), held)),
        "which the model's is no": replace(good, sum=with_pair(sums[:1], held)),
        "more or less than the weight": replace(good, sum=with_pair(sums, held + good.sum.total)),
    }
    for words, message in bad.items():
        with pytest.raises(ProtocolError, match=words):
            server.receive_sum(message)
    assert server.answered() == set()
    server.receive_sum(good)
    assert server.answered() == {11}
    assert server.num_uploads == 2
    with pytest.raises(ProtocolError, match="is not awaited"):
        server.receive_sum(good)


def test_an_empty_sum_needs_no_tensors(asked: tuple[Server, Edge, ClientSide, EdgeOrder]) -> None:
    server, edge, _, _ = asked
    server.receive_sum(edge.close())
    assert server.num_uploads == 0


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        (
            [{"rank": 10, "silos": [1], "server_address": "a:1"}],
            "above train_args.client_num_in_total .10.: ranks up to that are silos'",
        ),
        ([{"rank": 11, "silos": [1, 1], "server_address": "a:1"}], "each of them once"),
        (
            [{"rank": 11, "silos": [11], "server_address": "a:1"}],
            "silos .11.. needs silos from 1 to train_args.client_num_in_total",
        ),
        ([{"rank": 11, "silos": [1], "server_address": "a"}], "expected HOST:PORT"),
    ],
)
def test_edges_that_cannot_be(tiny_settings: SettingsFactory, edges: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        across_silos(tiny_settings(), edges)


def test_a_method_that_learns_more_of_an_upload_has_no_edges(tiny_settings: SettingsFactory) -> None:
    for overrides in (
        ["method=scaffold"],
        ["method=heterofl"],
        ["method=dapperfl", "dapper_args.defence.aggregation=median"],
    ):
        with pytest.raises(ConfigError, match="needs a method that learns no more of uploads than edges tell"):
            build_experiment(across_silos(tiny_settings(*overrides)))
    build_experiment(across_silos(tiny_settings("method=heterofl", "dapper_args.params.heterofl.masked_loss=false")))


def test_a_file_with_edges_runs_without_them_in_one_process(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    file = tmp_path / "edges.yaml"
    file.write_text(across_silos(tiny_settings()).as_yaml())
    settings = load_settings([file], ["training_type=simulation", "backend=sp"])
    assert settings.comm_args.edges == ()


def test_an_edge_cannot_say_what_silos_without_test_samples_measured(tiny_settings: SettingsFactory) -> None:
    own_tests = OwnTests(Server(build_experiment(across_silos(tiny_settings()))).edges)
    own_tests.join(0, Announcement(domain="a", num_train=9, num_test=4))
    own_tests.join(3, Announcement(domain="a", num_train=9))
    measured = {
        0: Measurement(num_samples=4, headline=50.0, loss=1.0),
        3: Measurement(num_samples=0, headline=50.0, loss=1.0),  # joined without test samples
        4: Measurement(num_samples=7, headline=50.0, loss=1.0),  # never joined
    }
    assert own_tests.figures(measured) == {0: Figures(50.0, 1.0)}
