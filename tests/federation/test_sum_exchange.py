"""Rounds in which the server learns sums alone, message by message as bytes, with clients that leave at any step."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import yaml

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import (
    Agreement,
    ClientSide,
    Codec,
    Experiment,
    MaskedUpload,
    Ready,
    RoundRecord,
    Server,
    SumCodec,
    SumExchange,
    SumMessage,
    build_experiment,
    simulate,
)
from fedml_dapper.federation.sum_wire import Deal, Masked, Revealed, Survivors
from fedml_dapper.pruning import FixedPointMean, PruningPlan, Tensors, encoded_changes, slim_tensors

from .test_privacy import FREE_OF_NORMS, same

SettingsFactory = Callable[..., Settings]
SECURE = "dapper_args.privacy={secure_aggregation: {threshold: 3, min_holders: 2}}"
STEPS = (Deal, Masked, Revealed)


@dataclass
class Federation:
    """A server and its silos in this process; all that passes between them is bytes."""

    experiment: Experiment
    server: Server = field(init=False)
    wire: list[bytes] = field(default_factory=list)
    """All that silos sent."""
    uploads: dict[int, MaskedUpload] = field(default_factory=dict)
    changes: dict[int, tuple[PruningPlan, Tensors]] = field(default_factory=dict)
    """What silos keep to themselves."""

    def __post_init__(self) -> None:
        layout, agreement = self.experiment.method.problem.layout, Agreement.of(self.experiment)
        self.server, self._clients = Server(self.experiment), ClientSide(self.experiment)
        self.codec = SumCodec(Codec(layout, agreement), agreement)

    def train(self) -> None:
        """All clients of the next round, which then are ready."""
        for client_id in self.server.round_clients():
            downlink = self.server.downlink(client_id)
            upload = self._clients.update(downlink, self.experiment.clients[client_id])
            self.uploads[client_id] = MaskedUpload(self.experiment, self.codec, upload, downlink)
            self.changes[client_id] = (upload.plan, upload.weights)
            self.server.receive_ready(self.sent(self.uploads[client_id].ready()))

    def sent(self, message: SumMessage) -> SumMessage:
        self.wire.append(self.codec.encode(message))
        return self.codec.decode(self.wire[-1])

    def round(self, gone: Mapping[type, Collection[int]]) -> RoundRecord:
        """One whole round, in which these are gone before they send what is of that type."""
        self.train()
        exchange = self.server.begin_sum(self.codec)
        assert exchange is not None
        self.sum_up(exchange, gone)
        return self.server.close_round()

    def sum_up(self, exchange: SumExchange, gone: Mapping[type, Collection[int]]) -> None:
        told = exchange.beginning()
        for step in STEPS:
            for message in told:
                arrived = self.codec.decode(self.codec.encode(message))
                if message.client_id not in gone.get(step, ()):
                    answer = self.sent(self.uploads[message.client_id].answer(arrived))
                    if exchange.is_about(answer):
                        exchange.take(answer)
            exchange.time_is_over()
            told = exchange.go_on() if exchange.can_go_on else []
        assert exchange.is_over


@pytest.fixture
def silos(tiny_settings: SettingsFactory, tmp_path: Path) -> Callable[..., Federation]:
    def build(*overrides: str) -> Federation:
        content = yaml.safe_load(tiny_settings(*FREE_OF_NORMS, SECURE, *overrides).as_yaml())
        content["common_args"]["training_type"] = "cross_silo"
        address = {"server_address": "localhost:1", "certificates": str(tmp_path)}
        content["comm_args"] = {"backend": "DAPPER_GRPC", "dapper_grpc": address}
        file = tmp_path / "silos.yaml"
        file.write_text(yaml.safe_dump(content))
        return Federation(build_experiment(load_settings([file])))

    return build


@pytest.mark.parametrize("method", ["fedavg", "heterofl", "fedrolex", "dapperfl_slim", "fedbn"])
def test_the_model_is_that_of_the_simulation_bit_for_bit(
    silos: Callable[..., Federation], tiny_settings: SettingsFactory, method: str
) -> None:
    asked = (f"method={method}", *(("norm=batch",) if method == "fedbn" else ()), "comm_round=2")
    simulated, records = simulate(build_experiment(tiny_settings(*FREE_OF_NORMS, SECURE, *asked)))
    federation = silos(*asked)
    for expected in records:
        record = federation.round({})
        if method != "fedbn":  # whose clients' models only a simulation can test
            assert record.scores == expected.scores
        assert [client.client for client in record.clients] == [client.client for client in expected.clients]
        assert record.opened_share is not None
        assert 0.5 < record.opened_share <= 1
    assert same(simulated.state.weights, federation.server.state.weights)


def plain_mean(federation: Federation, clients: Collection[int], lost: int) -> Tensors:
    """Of these clients' changes in fixed point, where ``lost`` more have dealt shares."""
    problem, before = federation.experiment.method.problem, federation.server.state.weights
    assert problem.secure_sums is not None
    mean = FixedPointMean(before, problem.layout, "holders", problem.secure_sums.code, 2 + lost)
    for client in clients:
        plan, weights = federation.changes[client]
        mean.add(weights, plan, 1)
    return mean.result()


GONE: list[tuple[dict[type, set[int]], list[int] | str]] = [
    ({Deal: {1}}, [0, 2, 3, 4]),
    ({Masked: {4}}, [0, 1, 2, 3]),
    ({Revealed: {0, 3}}, [0, 1, 2, 3, 4]),
    ({Deal: {1}, Revealed: {0}}, [0, 2, 3, 4]),
    ({Deal: {1}, Masked: {2}}, [0, 3, 4]),
    ({Deal: {1, 2, 3}}, "2 clients have dealt shares, and the threshold is 3"),
    ({Deal: {1}, Masked: {2, 3}}, "2 clients have sent their part, and the threshold is 3"),
    ({Masked: {4}, Revealed: {0, 1}}, "2 clients have told their shares, and the threshold is 3"),
]


@pytest.mark.parametrize(("gone", "outcome"), GONE)
def test_whoever_leaves_at_whichever_step_a_round_is_the_sum_of_those_it_names_or_void(
    silos: Callable[..., Federation], gone: dict[type, set[int]], outcome: list[int] | str
) -> None:
    federation = silos("method=fedavg")
    before = dict(federation.server.state.weights)
    record = federation.round(gone)
    named = [client.client for client in record.clients]
    if isinstance(outcome, str):
        assert named == []
        assert record.absent == (0, 1, 2, 3, 4)
        assert record.rolled_back == f"the sum is void: {outcome}"
        assert record.opened_share is None
        assert same(before, federation.server.state.weights)
    else:
        assert named == outcome
        federation.server.state.weights, after = before, federation.server.state.weights
        assert same(plain_mean(federation, named, 0), after)
    assert federation.round({}).rolled_back is None  # and the next round is none the worse for it


def test_nothing_that_a_silo_sends_holds_its_change(silos: Callable[..., Federation]) -> None:
    """Neither its weights nor their change in fixed point, as bytes."""
    federation = silos("method=fedavg")
    before = dict(federation.server.state.weights)
    federation.round({})
    wire = b"".join(federation.wire)
    problem = federation.experiment.method.problem
    assert problem.secure_sums is not None
    for plan, weights in federation.changes.values():
        changes = encoded_changes(weights, slim_tensors(before, problem.layout, plan), problem.secure_sums.code)
        for name, numbers in changes.items():
            if numbers.size >= 16:
                assert numbers.tobytes() not in wire
                assert numbers.ravel()[:8].tobytes() not in wire
                assert weights[name].flatten()[:8].numpy().tobytes() not in wire


def test_a_client_opens_a_round_once(silos: Callable[..., Federation]) -> None:
    federation = silos("method=fedavg")
    federation.train()
    exchange = federation.server.begin_sum(federation.codec)
    assert exchange is not None
    federation.sum_up(exchange, {})
    assert all(upload.has_opened for upload in federation.uploads.values())
    again = SumMessage(1, 0, exchange._sum_id, Survivors((0, 1, 2)))
    assert "never again" in str(federation.uploads[0].answer(again).content)


def test_a_round_that_all_have_opened_before_is_void(silos: Callable[..., Federation]) -> None:
    """As after a crash of the server, which does not know what it has seen already."""
    federation = silos("method=fedavg")
    for client_id in federation.server.round_clients():
        opened = federation.sent(SumMessage(1, client_id, "", Ready(None, 0)))
        with pytest.raises(ProtocolError, match="nothing is opened twice") as reason:
            federation.server.receive_ready(opened)
        federation.server.refuse(client_id, reason.value)
    exchange = federation.server.begin_sum(federation.codec)
    assert exchange is not None
    assert exchange.is_over
    record = federation.server.close_round()
    assert record.rolled_back == "the sum is void: 0 clients are there, and the threshold is 3"
    assert record.refused.keys() == {0, 1, 2, 3, 4}


def test_a_client_that_says_others_keys_are_its_own_is_refused(silos: Callable[..., Federation]) -> None:
    federation = silos("method=fedavg")
    federation.train()
    keys = federation.server._ready[1].keys
    assert keys is not None
    federation.server._awaited.append(0)
    for wrong in (keys, replace(keys, sealing=keys.masking)):
        with pytest.raises(ProtocolError, match="public key"):
            federation.server.receive_ready(SumMessage(1, 0, "", Ready(wrong, 1)))


def damaged(message: bytes) -> Iterator[bytes]:
    yield message[:-3]
    yield message[:60] + b"#" + message[61:]
    yield b""
    yield secrets.token_bytes(200)


def test_bytes_that_are_no_message_are_refused(silos: Callable[..., Federation]) -> None:
    federation = silos("method=fedavg")
    federation.round({})
    for message in {data[:300]: data for data in federation.wire}.values():
        for wrong in damaged(message):
            with pytest.raises(ProtocolError):
                federation.codec.decode(wrong)
