"""FedML's MQTT with payloads in an object store, when the broker refuses, or the store is away or has forgotten."""

from __future__ import annotations

import json
import queue
import socket
import subprocess
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("fedml", reason="fedml is not installed")

from fedml.core.distributed.communication.message import Message

from fedml_dapper.config import parse_override
from fedml_dapper.errors import ConfigError
from fedml_dapper.platform.mqtt_s3 import MqttS3Transport

from ..waiting import wait_until
from .processes import BROKER, ROOT, free_port, listens, mqtt_services, needs_broker

pytestmark = [needs_broker, pytest.mark.long]
WITHIN_S = 120
UPLOAD = "an upload"


class Heard:
    """What a transport's observer is told, without what FedML says of the connection."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Message] = queue.Queue()
        self.is_ready = threading.Event()

    def receive_message(self, kind: Any, message: Message) -> None:
        if kind == UPLOAD:
            self.messages.put(message)
        else:
            self.is_ready.set()

    def next(self) -> Any:
        return self.messages.get(timeout=WITHIN_S).get("model_params")


def arguments(rank: int, addresses: list[str], keepalive: int = 60) -> Namespace:
    content = yaml.safe_load((ROOT / "config" / "mqtt.yaml").read_text())
    for address in addresses:
        parse_override(content, address)
    comm = content["comm_args"]
    comm["customized_training_mqtt_config"]["MQTT_KEEPALIVE"] = keepalive
    ranks = [1] if rank == 0 else [rank]
    return Namespace(rank=rank, run_id="0", client_id_list=json.dumps(ranks), round_timeout_s=60.0, **comm)


@contextmanager
def listening(transport: MqttS3Transport) -> Iterator[Heard]:
    """The transport's loop in a thread of its own."""
    heard = Heard()
    transport.add_observer(heard)
    thread = threading.Thread(target=transport.handle_receive_message, daemon=True)
    thread.start()
    assert heard.is_ready.wait(WITHIN_S)
    try:
        yield heard
    finally:
        transport.stop_receive_message()
        thread.join(WITHIN_S)
        assert not thread.is_alive()


@pytest.fixture
def server_and_silo(tmp_path: Path) -> Iterator[tuple[MqttS3Transport, Heard, MqttS3Transport]]:
    with ExitStack() as services:
        addresses = services.enter_context(mqtt_services(tmp_path))
        server, silo = (MqttS3Transport(arguments(rank, addresses), rank, 1) for rank in (0, 1))
        heard = services.enter_context(listening(server))
        services.enter_context(listening(silo))
        yield server, heard, silo


def upload(content: bytes) -> Message:
    message = Message(UPLOAD, 1, 0)
    message.add_params("model_params", content)
    return message


def test_a_message_that_is_sent_again_holds_the_model_once_more(
    server_and_silo: tuple[MqttS3Transport, Heard, MqttS3Transport],
) -> None:
    _, heard, silo = server_and_silo
    message = upload(b"weights")
    for _ in range(2):  # as after an outage of the broker, in which only the object came through
        silo.send_message(message)
        assert heard.next() == b"weights"


def test_a_message_without_its_object_is_dropped_and_the_next_one_read(
    server_and_silo: tuple[MqttS3Transport, Heard, MqttS3Transport], caplog: pytest.LogCaptureFixture
) -> None:
    _, heard, silo = server_and_silo
    late = {"msg_type": UPLOAD, "sender": 1, "receiver": 0, "model_params": "fedml_0_1_deleted"}
    silo.mqtt_mgr.send_message("fedml_0_1", json.dumps(late))
    silo.send_message(upload(b"weights"))
    assert heard.next() == b"weights"
    assert "a message's object is gone" in caplog.text


def test_the_store_is_asked_in_its_region(server_and_silo: tuple[MqttS3Transport, Heard, MqttS3Transport]) -> None:
    server, _, _ = server_and_silo
    assert server.s3_storage.aws_s3_client.meta.region_name == "us-east-1"


class Relay:
    """What stands before the store, and lets nobody through while it is shut."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.port = free_port()
        self.is_open = True
        self.refused = threading.Semaphore(0)
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self.is_open:
                near.close()
                self.refused.release()
                continue
            far = socket.create_connection(("127.0.0.1", self.to))
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                if not self.is_open:
                    break
                target.sendall(data)
        except OSError:
            pass  # the other side has gone
        for each in (source, target):
            each.close()


@pytest.fixture
def relayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Relay, Callable[..., MqttS3Transport]]]:
    """A relay before the store for a server, and what makes server and silo; boto itself asks once."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with mqtt_services(tmp_path) as addresses:
        key = "comm_args.customized_training_s3_config.CN_S3_ENDPOINT="
        [store] = [address for address in addresses if address.startswith(key)]
        relay = Relay(int(store.rpartition(":")[2]))
        through = [*(address for address in addresses if address != store), f"{key}http://127.0.0.1:{relay.port}"]

        def make(rank: int, keepalive: int = 60) -> MqttS3Transport:
            return MqttS3Transport(arguments(rank, addresses if rank else through, keepalive), rank, 1)

        yield relay, make
        relay.close()


def test_a_store_that_is_away_for_a_while_is_asked_again(
    relayed: tuple[Relay, Callable[..., MqttS3Transport]],
) -> None:
    relay, make = relayed
    server, silo = make(0), make(1)
    with listening(server) as heard, listening(silo):
        relay.is_open = False
        silo.send_message(upload(b"weights"))
        assert relay.refused.acquire(timeout=WITHIN_S)
        assert relay.refused.acquire(timeout=WITHIN_S)
        relay.is_open = True
        assert heard.next() == b"weights"


def test_a_store_that_stays_away_costs_a_message_and_not_the_run(
    relayed: tuple[Relay, Callable[..., MqttS3Transport]], caplog: pytest.LogCaptureFixture
) -> None:
    relay, make = relayed
    server, silo = make(0, keepalive=1), make(1)
    with listening(server) as heard, listening(silo):
        relay.is_open = False
        silo.send_message(upload(b"lost"))
        wait_until(lambda: "a message is lost" in caplog.text, otherwise=lambda: caplog.text)
        server.forget_finished_rounds()
        server.forget_finished_rounds()
        assert caplog.text.count("models stay in the object store") == 1
        relay.is_open = True
        silo.send_message(upload(b"weights"))
        assert heard.next() == b"weights"
        server.forget_finished_rounds()
        left = server.s3_storage.aws_s3_client.list_objects_v2(Bucket=server.s3_storage.bucket_name)
        assert left["KeyCount"] == 0


def test_a_broker_that_refuses_the_user_ends_it_and_is_named(tmp_path: Path) -> None:
    port = free_port()
    assert BROKER is not None
    (tmp_path / "mosquitto.conf").write_text(f"listener {port} 127.0.0.1\nallow_anonymous false\npersistence false\n")
    with (tmp_path / "broker.log").open("wb") as log:
        broker = subprocess.Popen([BROKER, "-c", tmp_path / "mosquitto.conf"], stdout=log, stderr=log)
    try:
        wait_until(partial(listens, port), otherwise=(tmp_path / "broker.log").read_text)
        transport = MqttS3Transport(
            arguments(1, [f"comm_args.customized_training_mqtt_config.BROKER_PORT={port}"]), 1, 1
        )
        ended = Future[None]()

        def listen() -> None:
            try:
                ended.set_result(transport.handle_receive_message())
            except Exception as error:  # noqa: BLE001  # looked at below
                ended.set_exception(error)

        threading.Thread(target=listen, daemon=True).start()
        with pytest.raises(ConfigError, match=f"broker at 127.0.0.1:{port} does not let this user in; mend MQTT_USER"):
            ended.result(WITHIN_S)
    finally:
        broker.terminate()
        broker.wait(WITHIN_S)
