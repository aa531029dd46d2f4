"""What a silo takes part in, whatever a server calls the experiment and the round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fedml_dapper.config import SecureGrpcConfig, Settings, load_settings
from fedml_dapper.device.certificate_signatures import CertifiedWitness
from fedml_dapper.device.silo_in_sums import SiloInSums
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import (
    Agreement,
    ClientSide,
    Codec,
    Experiment,
    Server,
    SumCodec,
    SumExchange,
    SumMessage,
    build_experiment,
)
from fedml_dapper.federation.wire.sum_codec import Agreed, Inbox, Ready, Survivors
from fedml_dapper.operations.credentials import read_credentials

from .experiment_file import experiment_file
from .test_secure_sums import SECURE, settings_of

SettingsFactory = Callable[..., Settings]
ROUND = 2


@pytest.fixture
def experiment(tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path) -> Experiment:
    settings = settings_of(tiny_settings, 4, SECURE, "method=fedavg", "comm_round=2")
    return build_experiment(load_settings([experiment_file(tmp_path, settings, config)], []))


@dataclass
class LyingServer:
    """One that names the experiment as it likes, and asks silos for sums of one round."""

    experiment: Experiment
    folder: Path
    silos: list[SiloInSums] = field(init=False)
    agreement: Agreement = field(init=False)

    def __post_init__(self) -> None:
        self.agreement = Agreement.of(self.experiment)
        self.codec = SumCodec(Codec(self.experiment.method.problem.layout, self.agreement), self.agreement)
        self.server = Server(self.experiment)
        self.server.state.round = ROUND - 1
        self.server.round_clients()
        self.clients = ClientSide(self.experiment)
        self.start_silos()

    def start_silos(self) -> None:
        self.silos = [SiloInSums(self.experiment, self.codec, 1 + client, self.folder) for client in range(4)]

    def call_it(self, digest: str) -> None:
        self.agreement._digests = dict.fromkeys(self.agreement._digests, digest)

    def ask(self, members: Iterable[int], ends_signed: bool = False) -> SumExchange:
        """A sum in which all others than ``members`` seem to drop out; over once its list is signed, if need be."""
        ready = {}
        for client, silo in enumerate(self.silos):
            downlink = self.server.downlink(client)
            said = silo.passes_over(downlink)
            if said is None:
                upload = self.clients.update(downlink, self.experiment.clients[client])
                said = silo.ready(upload, downlink)
            content = self.codec.decode(said).content
            assert isinstance(content, Ready)
            if content.keys is not None:
                ready[client] = content
        problem = self.experiment.method.problem
        assert problem.secure_sums is not None
        config = self.experiment.settings.comm_args.dapper_grpc
        assert config is not None
        plans = {client: self.server.downlink(client).plan for client in ready}
        witness = CertifiedWitness(config, read_credentials(config, 0))
        rules = problem.secure_sums.rules
        exchange = SumExchange(ROUND, ready, plans, problem.layout, rules, self.codec, witness)
        told = exchange.beginning()
        while not exchange.is_over:
            if ends_signed and any(isinstance(message.content, Agreed) for message in told):
                return exchange
            for message in told:
                if isinstance(message.content, Inbox) and message.client_id not in members:
                    continue
                silo = self.silos[message.client_id]
                exchange.take(self.codec.decode(silo.answer(self.codec.encode(message))))
            exchange.time_is_over()
            told = exchange.go_on() if exchange.can_go_on else []
        return exchange


@pytest.mark.long
def test_a_silo_that_was_started_again_signs_no_second_list_whatever_the_experiment_is_called(
    experiment: Experiment, tmp_path: Path
) -> None:
    server = LyingServer(experiment, tmp_path / "silos")
    server.call_it("this")
    assert server.ask(range(4)).opened is not None
    server.start_silos()
    server.call_it("that")
    second = server.ask(range(3))
    assert second.opened is None
    assert "0 clients have signed the list of survivors" in second.void


@pytest.mark.parametrize("change", ["frequency_of_the_test=2", "checkpoint_every=2", "weight_decay=0.5"])
def test_another_run_with_the_same_seed_signs_no_second_list_of_a_round(
    tiny_settings: SettingsFactory, config: SecureGrpcConfig, tmp_path: Path, change: str
) -> None:
    signed = []
    for more in ((), (change,)):
        settings = settings_of(tiny_settings, 4, SECURE, "method=fedavg", "comm_round=2", *more)
        experiment = build_experiment(load_settings([experiment_file(tmp_path, settings, config)], []))
        server = LyingServer(experiment, tmp_path / "silos")
        signed.append(server.ask(range(4) if not more else range(3)))
    first, second = signed
    assert first.opened is not None
    assert second.opened is None
    assert "0 clients have signed the list of survivors" in second.void


@pytest.mark.long
def test_a_message_of_an_earlier_round_does_not_make_a_silo_forget_what_it_signed(
    experiment: Experiment, tmp_path: Path
) -> None:
    server = LyingServer(experiment, tmp_path / "silos")
    server.ask(range(4), ends_signed=True)
    for client, silo in enumerate(server.silos):
        silo.answer(server.codec.encode(SumMessage(1, client, "", Survivors((0,)))))
    second = server.ask(range(3))
    assert second.opened is None
    assert second.void == "0 clients are there, and the threshold is 3"


@pytest.mark.long
@pytest.mark.parametrize("said", [None, "a text", b"", b"garbage" * 9])
def test_what_is_no_message_of_a_sum_is_told_by_one_error(experiment: Experiment, tmp_path: Path, said: object) -> None:
    server = LyingServer(experiment, tmp_path / "silos")
    with pytest.raises(ProtocolError):
        server.silos[0].answer(said)
