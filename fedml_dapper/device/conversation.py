"""What a client's process answers to the server, whatever carries the messages."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fedml_dapper.config import BEYOND_FP16
from fedml_dapper.device.introduction import introduce
from fedml_dapper.device.keeping import Answer, Keeping
from fedml_dapper.device.retry import send_with_retries
from fedml_dapper.device.silo_in_sums import SiloInSums
from fedml_dapper.errors import ConfigError, ProtocolError, printable
from fedml_dapper.federation import ClientSide, Codec, Experiment, Rewind
from fedml_dapper.federation.round.update_norm import is_finite
from fedml_dapper.federation.wire import vocabulary as say
from fedml_dapper.methods import Downlink, Memory, Upload
from fedml_dapper.secure_grpc import AnyMessage, reason_of

LOGGER = logging.getLogger(__name__)


class Line(Protocol):
    """The way to the server, as a process's event loop has it."""

    def send_message(self, message: AnyMessage) -> None:
        """Send a message, or raise the transport's error."""

    def queued(self, message_type: Any) -> Sequence[AnyMessage]:
        """Return the messages of this type that wait behind the present one."""

    def delivered(self) -> int:
        """Return how many bytes of the latest large message are there."""


class Conversation:
    """A client's side of the conversation: is online, trains and measures the models it is sent, takes part in sums.

    Args:
        experiment: What is run.
        clients: Memories and local updates of the clients that this process serves.
        codec: Encodes and decodes messages.
        sums: The silo's side of secure sums; None where the silo sends uploads.
        rank: This process.
        line: The way to the server.
        new_message: Makes a message of a type, from a rank to a rank.
        train: Runs the local update of the client of a downlink.
        keeping: What is kept of a round beyond this process.
    """

    def __init__(
        self,
        experiment: Experiment,
        clients: ClientSide,
        codec: Codec,
        sums: SiloInSums | None,
        rank: int,
        line: Line,
        new_message: Callable[[Any, int, int], AnyMessage],
        train: Callable[[Downlink], Upload],
        keeping: Keeping,
    ) -> None:
        self._experiment = experiment
        self._clients = clients
        self._codec = codec
        self._sums = sums
        self._rank = rank
        self._line = line
        self._new_message = new_message
        self._train = train
        self._keeping = keeping
        self._rewind = Rewind(experiment.settings.dapper_args.checkpoint_every)
        self._life = secrets.token_hex(8)

    def greet(self) -> None:
        """Tell the server that this process is online."""
        self._send_until_heard(self.status(say.ONLINE))

    def take_refusal(self, message: AnyMessage) -> None:
        """End this process by the server's reason, unless the refusal is of an earlier process.

        Raises:
            ConfigError: The server refuses this silo.
        """
        if message.get(say.LIFE) not in (None, self._life):
            LOGGER.info("this silo was refused before it was started again: %s", message.get(say.REFUSED))
            return
        raise ConfigError(f"the server refuses this silo: {message.get(say.REFUSED)}")

    def take_model(self, message: AnyMessage) -> None:
        """Train a round's model, or measure it if that is asked for, and send what comes of it.

        Raises:
            ProtocolError: The message holds no model of this experiment.
        """
        downlink, memory = self._decode(message.get(say.MODEL))
        if message.get(say.MEASURE) and self._sums is not None:
            LOGGER.warning("asked how a model does on this silo's samples, which is not told where sums are secret")
            return
        if message.get(say.MEASURE):
            self._measure(downlink, message)
            return
        waiting = self._line.queued(say.SYNC_MODEL)
        if any(self._round_of(later) > downlink.round for later in waiting):
            LOGGER.info("skipping round %d, which is over: a later one's model has arrived", downlink.round)
            return
        if self._sums is not None and (passed_over := self._sums.passes_over(downlink)) is not None:
            self._send_upload(passed_over, message)
            return
        _note_refusal_before(downlink, message)
        self._keeping.received(downlink)
        if (answer := self._keeping.answer_to(message.get(say.MODEL))) is not None:
            self._give_again(answer, downlink, message)
            return
        upload = self._trained(downlink, memory)
        if self._line.queued(say.FINISH):
            LOGGER.info("client %d: the run ended before round %d's training did", downlink.client_id, downlink.round)
            return
        self._warn_if_not_finite(upload)
        if self._sums is not None:
            self._send_upload(self._sums.ready(upload, downlink), message)
        else:
            trained = None if memory is None else self._clients.memories.pop(downlink.client_id)
            answer = Answer(self._codec.encode(upload, trained), upload.num_samples, self._memory_of(downlink))
            self._keeping.answering(message.get(say.MODEL), downlink.round, answer)
            self._send_upload(answer.upload, message, answer.num_samples)
        self._keeping.heard(downlink)
        LOGGER.info("client %d: round %d, loss %.3f", downlink.client_id, downlink.round, upload.metrics.loss)

    def take_step_of_sum(self, message: AnyMessage) -> None:
        """Answer a step of the secure sum of the latest upload."""
        if self._sums is None:
            return  # this silo's settings ask for no secure sums
        try:
            answer = self._sums.answer(message.get(say.SUM))
        except ProtocolError as error:
            LOGGER.warning("what the server says is no step of a sum, and is not answered: %s", printable(str(error)))
            return
        reply = self._new_message(say.SUM, self._rank, 0)
        reply.add_params(say.SUM, answer)
        self._send_until_heard(reply)

    def say_goodbye(self) -> None:
        """Tell the server that this process ends, if it is still there."""
        try:
            self._line.send_message(self.status(say.FINISHED))
        except Exception as error:  # noqa: BLE001  # each transport has errors of its own
            LOGGER.info("the server left before this client could say goodbye: %s", reason_of(error))

    def _give_again(self, answer: Answer, downlink: Downlink, request: AnyMessage) -> None:
        """Answer as an earlier process did, which was ended before the server had heard all of it."""
        LOGGER.info("client %d: round %d was trained before; its upload goes on", downlink.client_id, downlink.round)
        self._rewind.memory_for(downlink.round, self._memory_of(downlink))
        self._clients.memories[downlink.client_id] = answer.memory
        self._send_upload(answer.upload, request, answer.num_samples)
        self._keeping.heard(downlink)

    def _memory_of(self, downlink: Downlink) -> Memory:
        return self._clients.memories.get(downlink.client_id, Memory())

    def _trained(self, downlink: Downlink, memory: Memory | None) -> Upload:
        """Run the local update from the ``memory`` that came with the model; a silo's stays with the silo.

        A round that diverges, whose upload the server refuses, leaves no trace in a silo's memory.
        """
        if memory is not None:
            self._clients.memories[downlink.client_id] = memory
            return self._train(downlink)
        memory = self._rewind.memory_for(downlink.round, self._memory_of(downlink))
        before = memory.snapshot()
        self._clients.memories[downlink.client_id] = memory
        upload = self._train(downlink)
        after = (*upload.weights.values(), *upload.extras.values(), *self._memory_of(downlink).tensors.values())
        if is_finite(before.tensors.values()) and not is_finite(after):
            self._clients.memories[downlink.client_id] = before
            LOGGER.warning(
                "client %d: round %d: training ended in NaN or infinity; what it remembers stays as it was",
                downlink.client_id,
                downlink.round,
            )
        return upload

    def _warn_if_not_finite(self, upload: Upload) -> None:
        """Warn that training diverged, before the server refuses the upload, with advice."""
        if is_finite((*upload.weights.values(), *upload.extras.values())):
            return
        args = self._experiment.settings.train_args
        remedy = (
            "set train_args.max_grad_norm, e.g. 2, without which networks of standardised weights often diverge"
            if args.max_grad_norm is None
            else f"lower train_args.learning_rate ({args.learning_rate:g}) or max_grad_norm ({args.max_grad_norm:g})"
        )
        if self._experiment.settings.dapper_args.uplink == "fp16":
            remedy = f"{remedy} ({BEYOND_FP16})"
        LOGGER.warning(
            "client %d: round %d: training diverged, the model has values that are not finite, and its upload is of no"
            " use; %s, or look for such values in the data",
            upload.client_id,
            upload.round,
            remedy,
        )

    def _measure(self, downlink: Downlink, request: AnyMessage) -> None:
        measurement = self._clients.measure(downlink, self._experiment.data_of(downlink.client_id))
        message = self._new_message(say.MEASURED, self._rank, 0)
        message.add_params(say.MEASURED, measurement.as_text())
        message.add_params(say.TICKET, request.get(say.TICKET))
        self._send_until_heard(message)

    def _send_upload(self, encoded: bytes, request: AnyMessage, num_samples: int | None = None) -> None:
        """Send what answers ``request``. FedML expects ``num_samples``; secure sums do not disclose it."""
        message = self._new_message(say.SEND_UPLOAD, self._rank, 0)
        message.add_params(say.MODEL, encoded)
        if num_samples is not None:
            message.add_params(say.NUM_SAMPLES, num_samples)
        message.add_params(say.TICKET, request.get(say.TICKET))
        self._send_until_heard(message)

    def _decode(self, data: Any) -> tuple[Downlink, Memory | None]:
        if not isinstance(data, bytes):
            raise ProtocolError(f"expected bytes from the server, got {type(data).__name__}")
        return self._codec.decode_downlink(data, f"rank {self._rank}")

    def _round_of(self, message: AnyMessage) -> int:
        return self._codec.read_header(message.get(say.MODEL)).round

    def status(self, status: str) -> AnyMessage:
        """Return the message that this process is online, or goes, with what its silo holds."""
        message = self._new_message(say.CLIENT_STATUS, self._rank, 0)
        message.add_params(say.STATUS, status)
        message.add_params(say.LIFE, self._life)
        introduce(message)
        if self._experiment.silos_have_own_data:
            message.add_params(say.HOLDS, self._clients.announcement(self._rank - 1).as_text())
        return message

    def _send_until_heard(self, message: AnyMessage) -> None:
        give_up_after_s = self._experiment.settings.dapper_args.round_timeout_s
        send_with_retries(self._line.send_message, message, self._rank, give_up_after_s, self._line.delivered)


def _note_refusal_before(downlink: Downlink, message: AnyMessage) -> None:
    """Warn if the server says that it refused the client's last upload."""
    refused = message.get(say.REFUSED_BEFORE)
    if refused is not None:
        reason = printable(str(refused))
        round_ = downlink.round - 1
        LOGGER.warning("client %d: the server refused the upload of round %d: %s", downlink.client_id, round_, reason)
