"""What the server of silos does between messages, without a transport."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from fedml.core.distributed.communication.message import Message

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.device import event_loop
from fedml_dapper.device.event_loop import EventLoop
from fedml_dapper.federation import ClientSide, Server, build_experiment
from fedml_dapper.federation.wire import vocabulary as say
from fedml_dapper.operations import AuditLog
from fedml_dapper.platform.callers import MAX_STARTS, Callers
from fedml_dapper.platform.dispatch import Silos
from fedml_dapper.platform.phase import Phase
from fedml_dapper.platform.server_manager import DapperServerManager


class Manager(DapperServerManager):
    """A server in an open round whose silos all have their models; whatever is sent goes nowhere."""

    def __init__(self, settings: Settings) -> None:
        EventLoop.__init__(self)
        self._audit = AuditLog(None)
        self._experiment = build_experiment(settings)
        self._server = self._collector = Server(self._experiment)
        self._callers = Callers(range(1, 6))
        self._dispatch = Silos()
        self._deferred = {}
        self._summing = None
        self._phase = Phase.TRAINING
        self._sent = {client_id: f"ticket of {client_id}" for client_id in self._server.round_clients()}
        for client_id in self._sent:
            self._server.downlink(client_id)

    def started_again(self, rank: int, times: int) -> None:
        for time in range(times + 1):
            self._callers.arrived(rank, f"life {time}")
        self._forget_what_was_sent(rank)

    def uploads(self, rank: int, ticket: str) -> None:
        message = Message(say.SEND_UPLOAD, rank, 0)
        message.add_params(say.TICKET, ticket)
        message.add_params(say.MODEL, bytes(1000))
        self.handle_message_receive_model_from_client(message)

    @property
    def kept(self) -> list[int]:
        """Ranks of the silos whose uploads wait for the next round."""
        return sorted(int(message.get_sender_id()) for message in self._deferred.values())

    def pauses(self) -> None:
        """Close the round with the upload of the first silo alone."""
        clients = ClientSide(self._experiment)
        self._server.receive(clients.update(self._server.downlink(0), self._experiment.data_of(0)))
        self._server.close_round()
        self._phase = Phase.PAUSED


@pytest.fixture
def manager(tiny_settings: Callable[..., Settings], tmp_path: Path) -> Callable[..., Manager]:
    def make(**dapper_args: object) -> Manager:
        few = ("method=fedavg", "epochs=1", "client_share=0.02", "client_num_in_total=5", "client_num_per_round=5")
        content = yaml.safe_load(tiny_settings(*few).as_yaml())
        content["common_args"]["training_type"] = "cross_silo"
        address = {"server_address": "localhost:1", "certificates": str(tmp_path)}
        content["comm_args"] = {"backend": "DAPPER_GRPC", "dapper_grpc": address}
        content["dapper_args"] |= dapper_args
        file = tmp_path / "silos.yaml"
        file.write_text(yaml.safe_dump(content))
        return Manager(load_settings([file]))

    return make


@pytest.mark.parametrize(
    ("fewest", "said"),
    [
        (4, "the round goes on without it"),
        (
            5,
            "4 of the 5 uploads that min_clients_per_round asks for can come now,"
            " and where no more do within the round's 60 s, the run ends",
        ),
    ],
)
def test_what_becomes_of_a_round_that_loses_a_silo_is_said(
    manager: Callable[..., Manager], caplog: pytest.LogCaptureFixture, fewest: int, said: str
) -> None:
    server = manager(min_clients_per_round=fewest, round_timeout_s=60)
    server.started_again(3, MAX_STARTS + 1)
    assert [record.message for record in caplog.records] == [f"client 2 was started again too often; {said}"]


def test_a_pause_keeps_one_upload_of_each_silo_at_work_and_no_other(manager: Callable[..., Manager]) -> None:
    server = manager(buffer_size=1)
    server.pauses()
    for _ in range(3):
        server.uploads(2, "ticket of 1")
        server.uploads(3, "ticket of 1")
        server.uploads(4, "a ticket of its own")
    assert server.kept == [2]


def test_a_pause_keeps_no_upload_of_a_round_that_is_over(manager: Callable[..., Manager]) -> None:
    server = manager()
    server.pauses()
    server.uploads(2, "ticket of 1")
    assert server.kept == []


def test_a_silo_that_is_refused_again_and_again_does_not_fill_the_log(
    manager: Callable[..., Manager], caplog: pytest.LogCaptureFixture
) -> None:
    server = manager()
    for life in range(1000):
        status = Message(say.CLIENT_STATUS, 2, 0)
        for key, value in {say.STATUS: say.ONLINE, say.LIFE: str(life), "version": "v" * 10_000}.items():
            status.add_params(key, value)
        server.handle_message_client_status_update(status)
    said = [record.message for record in caplog.records]
    assert all(line.startswith("silo 2 is refused: ") and len(line) < 300 for line in said)
    assert 1 <= len(said) <= event_loop._DROPS_AT_ONCE + 10


@pytest.mark.parametrize("silo", ["3", "x", True, 3.0, 9])
def test_an_edge_that_speaks_for_no_silo_of_its_own_is_not_heard(
    manager: Callable[..., Manager], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, silo: object
) -> None:
    server = manager()
    monkeypatch.setattr(type(server._experiment), "silos_have_own_data", True)

    class Edges:
        def __contains__(self, client_id: int) -> bool:
            return client_id == 1

        def ranks_of_silos(self, client_id: int) -> tuple[int, ...]:
            return (1, 3, 4)

    server._server = SimpleNamespace(attendance=server._server.attendance, edges=Edges())
    heard: list[int] = []
    server._takes_in = lambda rank, announcement, edge=None: bool(heard.append(rank))
    for said in (silo, 4):
        status = Message(say.CLIENT_STATUS, 2, 0)
        status.add_params(say.SILO, said)
        assert not server._lets_join(2, status)
    assert heard == [4]
    assert [record.message for record in caplog.records] == [
        f"rank 2 speaks for silo {silo}, which it does not serve; dropped"
    ]
