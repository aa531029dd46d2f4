"""A server of devices without a network, and devices that say what a test has them say."""

from __future__ import annotations

from fedml_dapper.federation import Agreement, ClientSide, Codec, Experiment, RoundRecord, RunJournal, Server
from fedml_dapper.federation.wire import vocabulary as say
from fedml_dapper.federation.wire.announcement import Announcement, Measurement
from fedml_dapper.methods import Downlink
from fedml_dapper.platform.device_rounds import DeviceRounds
from fedml_dapper.secure_grpc import AnyMessage, Message

COME_BACK_S = 10.0
TIMEOUT_S = 100.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Trial:
    """A server of devices without a network, and devices that say what a test has them say."""

    def __init__(self, experiment: Experiment) -> None:
        self.clock = Clock()
        self.server = Server(experiment)
        assert self.server.checked_in is not None
        self.server.checked_in._clock = self.clock
        layout = experiment.method.problem.layout
        journal = RunJournal(experiment, self.server, [])
        journal.started()
        codec = Codec(layout, Agreement.of(experiment))
        self.rounds = DeviceRounds(experiment, self.server, codec, journal, self.clock)
        self.experiment = experiment
        self.codec = Codec(layout, Agreement.of(experiment))
        self.clients = ClientSide(experiment)

    def calls(self, rank: int, life: str = "the only one", num_test: int | None = None) -> AnyMessage:
        """Have a device call, which announces data of its own where ``num_test`` is given."""
        status = Message(say.CLIENT_STATUS, rank, 0)
        status.add_params(say.STATUS, say.ONLINE)
        status.add_params(say.LIFE, life)
        status.add_params("version", "0.2.0")
        status.add_params("schema", 5)
        if num_test is not None:
            holds = Announcement(domain="a domain", num_train=20, num_test=num_test)
            status.add_params(say.HOLDS, holds.as_text())
        return self.rounds.answer(rank, status)

    def measures(self, request: AnyMessage, headline: float, num_samples: int) -> AnyMessage:
        answer = Message(say.MEASURED, request.get_receiver_id(), 0)
        figures = Measurement(num_samples=num_samples, headline=headline, loss=1.0)
        answer.add_params(say.MEASURED, figures.as_text())
        answer.add_params(say.TICKET, request.get(say.TICKET))
        return self.rounds.answer(answer.get_sender_id(), answer)

    def reports(
        self, task: AnyMessage, ticket: str | None = None, rank: int | None = None, payload: bytes | None = None
    ) -> AnyMessage:
        downlink, _ = self.codec.decode_downlink(task.get(say.MODEL), "a device")
        assert isinstance(downlink, Downlink)
        upload = self.clients.update(downlink, self.experiment.data_of(downlink.client_id))
        report = Message(say.SEND_UPLOAD, rank or task.get_receiver_id(), 0)
        report.add_params(say.MODEL, self.codec.encode(upload) if payload is None else payload)
        report.add_params(say.TICKET, task.get(say.TICKET) if ticket is None else ticket)
        return self.rounds.answer(report.get_sender_id(), report)

    def all_call(self, *ranks: int) -> dict[int, AnyMessage]:
        """Each device calls until it has a task, or none is to be had; tasks by rank."""
        for rank in ranks:
            self.calls(rank)
        answers = {rank: self.calls(rank) for rank in ranks}
        return {rank: answer for rank, answer in answers.items() if answer.get_type() == say.SYNC_MODEL}

    def closed(self) -> RoundRecord:
        """Close the round, which has to be due; its record."""
        assert self.turn()
        assert self.server.last_record is not None
        return self.server.last_record

    def turn(self) -> bool:
        """Close the round if it is due."""
        is_due = self.rounds.begin_closing()
        if is_due:
            self.rounds.close()
        return is_due


def kinds(*answers: AnyMessage) -> list[object]:
    return [answer.get_type() for answer in answers]
