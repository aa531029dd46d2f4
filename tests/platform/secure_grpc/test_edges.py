"""Two edges of three silos each between a server and six silos."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from fedml_dapper.config import SecureGrpcConfig, Settings
from fedml_dapper.errors import DapperError
from fedml_dapper.federation import build_experiment, read_ledger, simulate
from fedml_dapper.operations.credentials import read_admin_credentials
from fedml_dapper.operations.orders import Order, give_order
from fedml_dapper.platform.client_trainer import DapperClientTrainer

from ...waiting import wait_until
from ..federation_in_threads import WITHIN_S, Federation
from ..processes import Silos, free_port
from ..timeless_server import have_answered, let_time_pass, timeless_program
from .conftest import make_certificates
from .experiment_file import experiment_file

SettingsFactory = Callable[..., Settings]
InThreads = Callable[[Path, int], Federation]
EDGES = {7: (1, 2, 3), 8: (4, 5, 6)}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tree") / "certs", 6, *EDGES)


@pytest.fixture
def config(certificates: Path) -> SecureGrpcConfig:
    edges = [
        {"rank": rank, "silos": silos, "server_address": f"localhost:{free_port()}", "monitor_port": free_port()}
        for rank, silos in EDGES.items()
    ]
    return SecureGrpcConfig.model_validate(
        {"server_address": f"localhost:{free_port()}", "certificates": certificates, "edges": edges}
    )


@pytest.fixture
def tree(tmp_path: Path, config: SecureGrpcConfig) -> Iterator[Callable[[Settings], Silos]]:
    """``tree(settings)``: the experiment's server, silos and edges, to be started."""
    running: list[Silos] = []

    def build(settings: Settings) -> Silos:
        running.append(Silos(tmp_path, experiment_file(tmp_path, settings, config), 6))
        return running[-1]

    yield build
    for silos in running:
        silos.stop()


def of_six(tiny_settings: SettingsFactory, *overrides: str) -> Settings:
    few = ("client_num_in_total=6", "client_num_per_round=6", "client_share=0.05", "threads=1", "epochs=2")
    return tiny_settings(*few, "image_size=16", *overrides)


def check_the_end(silos: Silos) -> None:
    """Everybody has left in order."""
    assert silos.wait(0) == 0, silos.output(0)
    for rank in (*range(1, 7), *EDGES):
        assert silos.wait(rank) == 0, silos.output(rank)


PRIVATE = "{clip: 0.5, noise_multiplier: 0.1, delta: 1.0e-5, noise_seed: run}"


def check_the_model(run_dir: Path, settings: Settings) -> None:
    """It is the one without edges, but for the order of additions."""
    server, rounds = simulate(build_experiment(settings))
    found = load_file(run_dir / "global_model.safetensors")
    for name, tensor in server.state.weights.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)
    _, told = read_ledger(run_dir / "ledger.jsonl")
    assert [record.privacy for record in told] == [record.privacy for record in rounds]
    assert [[client.client for client in record.clients] for record in told] == [list(range(6))] * len(rounds)
    assert [record.edges[7].clients for record in told] == [(0, 1, 2)] * len(rounds)
    for ours, theirs in zip(told, rounds, strict=True):
        assert ours.scores is not None
        assert theirs.scores is not None
        assert ours.scores.global_accuracy == pytest.approx(theirs.scores.global_accuracy, abs=1)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param((), id="plain"),
        pytest.param(
            ("norm=standardised", "aggregation_weights=uniform", f"dapper_args.privacy={PRIVATE}"),
            id="private",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_the_model_is_the_one_without_edges(
    in_threads: InThreads, tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path,
    overrides: tuple[str, ...],
) -> None:  # fmt: skip
    settings = of_six(tiny_settings, "method=dapperfl_slim", "comm_round=2", "epochs=1", *overrides)
    federation = in_threads(experiment_file(tmp_path, settings, config), 6)
    for rank in (*EDGES, *range(7)):
        federation.start(rank)
    federation.wait()
    check_the_model(federation.run_dir, settings)


@pytest.mark.nightly
def test_processes_come_to_the_model_without_edges_too(
    tree: Callable[[Settings], Silos], tiny_settings: SettingsFactory
) -> None:
    settings = of_six(tiny_settings, "method=dapperfl_slim", "comm_round=1", "epochs=1")
    silos = tree(settings)
    for rank in (*EDGES, *range(7)):
        silos.start(rank)
    check_the_end(silos)
    check_the_model(silos.run_dir, settings)


def check_what_an_operator_sees(config: SecureGrpcConfig) -> None:
    """Of edge 7, in a run of which at least a round is done."""
    edge, admin = config.edges[0], read_admin_credentials(config)
    status = give_order(edge.server_address, admin, Order(act="status")).status
    assert [(one.name, one.connected, one.bytes_in > 1000) for one in status.callers] == [
        ("silo-1", True, True), ("silo-2", True, True), ("silo-3", True, True)
    ]  # fmt: skip
    assert (status.round >= 1, status.rounds, status.absent) == (True, 8, ())
    with urllib.request.urlopen(f"http://127.0.0.1:{edge.monitor_port}/metrics", timeout=60) as answer:
        assert 'dapper_caller_connected{caller="silo-2"} 1.0' in answer.read().decode()
    with pytest.raises(DapperError, match="an edge says how it is, and takes no orders; ask the server to pause"):
        give_order(edge.server_address, admin, Order(act="pause"))


@pytest.mark.nightly
def test_a_round_survives_a_killed_silo_a_killed_edge_and_a_killed_server(
    tree: Callable[[Settings], Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path
) -> None:
    settings = of_six(
        tiny_settings, "comm_round=8", "round_timeout_s=1000", "min_clients_per_round=2", "checkpoint_every=1"
    )
    silos = tree(settings)
    silos.start(7, program=timeless_program(tmp_path))
    for rank in (8, *range(7)):
        silos.start(rank)
    silos.wait_for_round(1)
    check_what_an_operator_sees(config)
    silos.kill(2)
    closed = len(silos.rounds())

    def closes_without_it() -> bool:
        if have_answered(silos, (1, 3), to=7):
            let_time_pass(silos.processes[7])
        return len(silos.rounds()) > closed

    wait_until(closes_without_it)
    silos.kill(8)
    silos.start(8)
    silos.start(2)
    silos.wait_for_round(4)
    silos.kill(0)
    wait_until(lambda: silos.output(2).count("connected to the server at") >= 2)
    silos.start(0)
    check_the_end(silos)
    rounds = silos.rounds()
    assert [record.round for record in rounds] == list(range(1, 9))
    assert [client.client for client in rounds[-1].clients] == list(range(6))


@pytest.mark.nightly
def test_an_edge_does_not_wait_for_a_silo_that_is_evicted_at_its_work(
    in_threads: InThreads, tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path
) -> None:
    settings = of_six(
        tiny_settings, "comm_round=500", "epochs=1", "round_timeout_s=1000", "min_clients_per_round=2",
        "aggregation_weights=uniform",
    )  # fmt: skip
    federation = in_threads(experiment_file(tmp_path, settings, config), 6)
    admin = read_admin_credentials(config)
    is_at_work, may_go_on = Event(), Event()

    class Busy(DapperClientTrainer):
        def train(self, train_data: Any, device: Any, args: Any) -> None:
            if args.round_idx == 1:
                is_at_work.set()
                may_go_on.wait(WITHIN_S)
            super().train(train_data, device, args)

    for rank in (*EDGES, *range(4), 5, 6):
        federation.start(rank)
    federation.start(4, trainer=Busy)
    assert is_at_work.wait(WITHIN_S)
    give_order(config.server_address, admin, Order(act="evict", silo=4))
    federation.wait_for_round(3)
    may_go_on.set()
    assert "the operator has evicted this silo" in str(federation.error_of(4))
    give_order(config.server_address, admin, Order(act="end"))
    federation.wait(0, *EDGES)
    assert [record.absent for record in federation.rounds()][:3] == [(), (3,), ()]


@pytest.mark.nightly
def test_silos_with_data_of_their_own_join_through_their_edge(
    tree: Callable[[Settings], Silos], tiny_settings: SettingsFactory, tmp_path: Path
) -> None:
    settings = of_six(tiny_settings, "client_share=null", "comm_round=2", "epochs=1")
    silos = tree(settings)
    content = yaml.safe_load(silos.config.read_text())
    content["data_args"]["partition"] = "own"
    silos.config.write_text(yaml.safe_dump(content))
    for rank in (7, 0):
        silos.start(rank)
    silos.start(8, program=timeless_program(tmp_path))
    for rank in range(1, 7):
        held = {"domain": ("scans", "fonts", "segments")[rank % 3], "level": 9 if rank == 5 else 1 + rank % 5}
        file = tmp_path / f"silo_{rank}.yaml"
        file.write_text(yaml.safe_dump({"silo_args": held}))
        silos.start(rank, above=file)
    assert silos.wait(5) == 2
    assert "its silo_args.level is 9" in silos.output(5)
    silos.wait_for_words("rank 4 is there", "rank 6 is there", rank=8)
    let_time_pass(silos.processes[8])
    assert silos.wait(0) == 0, silos.output(0)
    for record in silos.rounds():
        assert record.scores is not None
        assert record.scores.domain_accuracy.keys() == {"scans", "fonts", "segments"}
        assert [(c.client, c.domain, c.level) for c in record.clients] == [
            (rank - 1, ("scans", "fonts", "segments")[rank % 3], 1 + rank % 5) for rank in (1, 2, 3, 4, 6)
        ]
