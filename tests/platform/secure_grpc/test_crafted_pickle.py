"""A pickle that runs code when it is loaded: what it does to FedML's gRPC, and to ours."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from fedml.core.distributed.communication.grpc import grpc_comm_manager_pb2, grpc_comm_manager_pb2_grpc
from fedml.core.distributed.communication.grpc.grpc_comm_manager import GRPCCommManager
from fedml.core.distributed.communication.message import Message

from fedml_dapper.config import SecureGrpcConfig, Settings
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import Agreement, Codec, build_experiment
from fedml_dapper.operations.credentials import read_credentials

from ...waiting import wait_until
from ..processes import address_table
from .conftest import Starter
from .impostor import Crafted
from .raw_silo import RawSilo, parcel, refused


@pytest.fixture
def fedmls_grpc(tmp_path: Path) -> Iterator[str]:
    """FedML's own communication manager as a server; its address."""
    table = address_table(tmp_path, 1)
    manager = GRPCCommManager(str(table), client_rank=0, client_num=1)
    thread = threading.Thread(target=manager.handle_receive_message, daemon=True)
    thread.start()
    yield ":".join(table.read_text().splitlines()[1].split(",")[2:])
    manager.stop_receive_message()
    thread.join(10)


def test_fedml_s_grpc_runs_the_code_of_whoever_can_reach_it(fedmls_grpc: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    message = Message(5, 1, 0)
    message.add_params("client_status", Crafted(made))
    with grpc.insecure_channel(fedmls_grpc) as channel:
        request = grpc_comm_manager_pb2.CommRequest(client_id=1, message=pickle.dumps(message))
        grpc_comm_manager_pb2_grpc.gRPCCommManagerStub(channel).sendMessage(request, timeout=60)
    wait_until(made.exists, 60, lambda: "FedML no longer unpickles what arrives: docs/security.md may say so")


def test_ours_runs_nothing_even_for_a_silo_of_the_federation(
    start: Starter, config: SecureGrpcConfig, tiny_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    made = tmp_path / "made"
    pickled = pickle.dumps(Crafted(made))
    server, peer = start(0), RawSilo(config, read_credentials(config, 1))

    status, reason = refused(lambda: peer.deliver(iter([pickled])))
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert "malformed envelope" in reason

    peer.deliver(parcel(pickled).frames())
    payload = server.next().get("model_params")
    assert payload == pickled  # bytes, and nobody asked what they mean
    experiment = build_experiment(tiny_settings())
    codec = Codec(experiment.method.problem.layout, Agreement.of(experiment))
    with pytest.raises(ProtocolError, match="not a fedml_dapper message"):
        codec.decode(payload)

    assert not made.exists()
    pickle.loads(pickled)
    assert made.exists()  # the pickle was sharp
