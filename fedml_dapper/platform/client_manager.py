"""FedML's client manager for this package: trains the clients that the server sends it, and waits for the server."""

from __future__ import annotations

import logging
import secrets
import time
from contextlib import nullcontext
from functools import partial
from typing import Any

from fedml.arguments import Arguments
from fedml.core.distributed.communication.message import Message
from fedml.cross_silo.client.client_initializer import get_trainer_dist_adapter
from fedml.cross_silo.client.fedml_client_master_manager import ClientMasterManager
from fedml.cross_silo.client.message_define import MyMessage

from fedml_dapper.errors import ConfigError, ProtocolError, printable
from fedml_dapper.evaluation.divergence import BEYOND_FP16
from fedml_dapper.federation import (
    Codec,
    Experiment,
    Rewind,
)
from fedml_dapper.federation.round.update_norm import is_finite
from fedml_dapper.methods import Downlink, Memory, Upload
from fedml_dapper.platform.client_trainer import DapperClientTrainer
from fedml_dapper.platform.dataset import FedMLDataset
from fedml_dapper.platform.event_loop import EventLoop
from fedml_dapper.platform.introduction import introduce
from fedml_dapper.platform.retry import send_with_retries
from fedml_dapper.platform.silo_in_sums import SiloInSums
from fedml_dapper.platform.summing import SUM
from fedml_dapper.platform.tracking import reporting_client_status
from fedml_dapper.platform.transports import open_transport, reason_of

LOGGER = logging.getLogger(__name__)
FAREWELL_SECONDS = 2.0
"""Pause before the connection is closed, in which MQTT delivers the last message."""
LIFE = "life"
"""Key of a random number that a client's process draws when it starts. The status carries it, so that the server
notices a restart."""
TICKET = "ticket"
"""Key of a random number that the server draws for each model it sends, and that the answer carries back."""
HOLDS = "holds"
"""Key of the announcement of a silo with data of its own, in its status."""
SILO = "silo"
"""Key of the rank of an edge's silo, in messages that the edge passes on."""
MEASURE = "measure"
"""Key of the flag that a model is to be measured on the silo's own test samples, not trained."""
MEASURED = "dapper_measured"
"""Type of the message with a measurement, and key of the measurement in it."""
REFUSED_BEFORE = "refused_before"
"""Key of the reason why the receiver's last upload was refused, in the message with a round's model."""
REFUSED = "dapper_refused"
"""Type of the server's message to a silo that cannot take part, and key of the reason in it."""


class DapperClientManager(EventLoop, ClientMasterManager):  # type: ignore[misc]  # fedml is untyped
    """A client process: reports that it is online, and trains the models that it is sent until the run ends."""

    def __init__(
        self,
        args: Arguments,
        device: Any,
        dataset: FedMLDataset,
        trainer: DapperClientTrainer,
        experiment: Experiment,
        codec: Codec,
        sums: SiloInSums | None,
        comm: Any,
        rank: int,
        num_processes: int,
    ) -> None:
        EventLoop.__init__(self, partial(open_transport, args, comm, rank, num_processes))
        num_train, _, _, _, num_local, train_local, test_local, _ = dataset
        model = experiment.method.problem.backbone
        adapter = get_trainer_dist_adapter(
            args, device, rank, model, num_train, num_local, train_local, test_local, trainer
        )
        ClientMasterManager.__init__(self, args, adapter, comm, rank, num_processes, args.backend)
        self._experiment = experiment
        self._codec = codec
        self._trainer = trainer
        self._sums = sums
        """The silo's side of secure sums; None where the silo sends uploads."""
        self._rewind = Rewind(experiment.settings.dapper_args.checkpoint_every)
        self._life = secrets.token_hex(8)

    def run(self) -> None:
        """Serve until the server ends the run; errors that end it early are raised."""
        self.register_message_receive_handlers()
        with reporting_client_status() if self._experiment.settings.tracking_args.using_mlops else nullcontext():
            self.loop()

    def handle_message_connection_ready(self, msg_params: Message) -> None:
        self._send_until_heard(self._status(self.ONLINE_STATUS_FLAG))

    def handle_message_check_status(self, msg_params: Message) -> None:
        self._send_until_heard(self._status(self.ONLINE_STATUS_FLAG))

    def register_message_receive_handlers(self) -> None:
        super().register_message_receive_handlers()
        self.register_message_receive_handler(REFUSED, self.handle_refusal)
        self.register_message_receive_handler(SUM, self.handle_sum)

    def handle_refusal(self, msg_params: Message) -> None:
        if msg_params.get(LIFE) not in (None, self._life):
            LOGGER.info("this silo was refused before it was started again: %s", msg_params.get(REFUSED))
            return
        raise ConfigError(f"the server refuses this silo: {msg_params.get(REFUSED)}")

    def handle_message_receive_model_from_server(self, msg_params: Message) -> None:
        downlink, memory = self._decode(msg_params.get(MyMessage.MSG_ARG_KEY_MODEL_PARAMS))
        if msg_params.get(MEASURE) and self._sums is not None:
            LOGGER.warning("asked how a model does on this silo's samples, which is not told where sums are secret")
            return
        if msg_params.get(MEASURE):
            self._measure(downlink, msg_params.get(TICKET))
            return
        waiting = self.queued(MyMessage.MSG_TYPE_S2C_SYNC_MODEL_TO_CLIENT)
        if any(self._round_of(message) > downlink.round for message in waiting):
            LOGGER.info("skipping round %d, which is over: a later one's model has arrived", downlink.round)
            return
        if self._sums is not None and (passed_over := self._sums.passes_over(downlink)) is not None:
            self._send_upload(passed_over, msg_params)
            return
        refused = msg_params.get(REFUSED_BEFORE)
        if refused is not None:
            reason = printable(str(refused))
            round_ = downlink.round - 1
            LOGGER.warning(
                "client %d: the server refused the upload of round %d: %s", downlink.client_id, round_, reason
            )
        memories = self._trainer.clients.memories
        if memory is None:  # a silo, whose memory stays here; with a rank's client the memory travels
            own = memories.get(downlink.client_id, Memory())
            memories[downlink.client_id] = self._rewind.memory_for(downlink.round, own)
        else:
            memories[downlink.client_id] = memory
        self._trainer.set_id(downlink.client_id)
        # not the adapter's update_dataset: it takes client 0 for "none given"
        self.trainer_dist_adapter.trainer.update_dataset(downlink.client_id)
        self.trainer_dist_adapter.update_model(downlink)
        upload, num_samples = self.trainer_dist_adapter.train(downlink.round - 1)
        if self.queued(MyMessage.MSG_TYPE_S2C_FINISH):
            LOGGER.info("client %d: the run ended before round %d's training did", downlink.client_id, downlink.round)
            return
        self._warn_if_not_finite(upload)
        if self._sums is not None:
            self._send_upload(self._sums.ready(upload, downlink), msg_params)
        else:
            if memory is not None:
                memory = memories.pop(downlink.client_id)
            self._send_upload(self._codec.encode(upload, memory), msg_params, num_samples)
        LOGGER.info("client %d: round %d, loss %.3f", downlink.client_id, downlink.round, upload.metrics.loss)

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

    def _send_upload(self, encoded: bytes, request: Message, num_samples: int | None = None) -> None:
        """Send what answers ``request``. FedML expects ``num_samples``; secure sums do not disclose it."""
        message = Message(MyMessage.MSG_TYPE_C2S_SEND_MODEL_TO_SERVER, self.rank, 0)
        message.add_params(MyMessage.MSG_ARG_KEY_MODEL_PARAMS, encoded)
        if num_samples is not None:
            message.add_params(MyMessage.MSG_ARG_KEY_NUM_SAMPLES, num_samples)
        message.add_params(TICKET, request.get(TICKET))
        self._send_until_heard(message)

    def handle_sum(self, msg_params: Message) -> None:
        """Answer a step of the secure sum of the latest upload."""
        if self._sums is None:
            return  # this silo's settings ask for no secure sums
        try:
            answer = self._sums.answer(msg_params.get(SUM))
        except ProtocolError as error:
            LOGGER.warning("what the server says is no step of a sum, and is not answered: %s", printable(str(error)))
            return
        message = Message(SUM, self.rank, 0)
        message.add_params(SUM, answer)
        self._send_until_heard(message)

    def _measure(self, downlink: Downlink, ticket: str) -> None:
        clients = self._trainer.clients
        measurement = clients.measure(downlink, self._experiment.data_of(downlink.client_id))
        message = Message(MEASURED, self.rank, 0)
        message.add_params(MEASURED, measurement.as_text())
        message.add_params(TICKET, ticket)
        self._send_until_heard(message)

    def handle_message_finish(self, msg_params: Message) -> None:
        try:
            self.send_message(self._status(self.RUN_FINISHED_STATUS_FLAG))
        except Exception as error:  # noqa: BLE001  # each transport has errors of its own
            LOGGER.info("the server left before this client could say goodbye: %s", reason_of(error))
        if self.args.backend == "MQTT_S3":
            time.sleep(FAREWELL_SECONDS)
        self.stop()

    def _decode(self, data: Any) -> tuple[Downlink, Memory | None]:
        if not isinstance(data, bytes):
            raise ProtocolError(f"expected bytes from the server, got {type(data).__name__}")
        return self._codec.decode_downlink(data, f"rank {self.rank}")

    def _round_of(self, message: Message) -> int:
        return self._codec.read_header(message.get(MyMessage.MSG_ARG_KEY_MODEL_PARAMS)).round

    def _status(self, status: str) -> Message:
        message = Message(MyMessage.MSG_TYPE_C2S_CLIENT_STATUS, self.rank, 0)
        message.add_params(MyMessage.MSG_ARG_KEY_CLIENT_STATUS, status)
        message.add_params(LIFE, self._life)
        introduce(message)
        if self._experiment.silos_have_own_data:
            message.add_params(HOLDS, self._trainer.clients.announcement(self.rank - 1).as_text())
        return message

    def _send_until_heard(self, message: Message) -> None:
        send_with_retries(self.send_message, message, self.rank, self._experiment.settings.dapper_args.round_timeout_s)
