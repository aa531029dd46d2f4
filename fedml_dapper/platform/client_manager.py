"""FedML's client manager for this package: trains the clients that the server sends it, and waits for the server."""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from fedml.arguments import Arguments
from fedml.core.distributed.communication.message import Message
from fedml.cross_silo.client.client_initializer import get_trainer_dist_adapter
from fedml.cross_silo.client.fedml_client_master_manager import ClientMasterManager

from fedml_dapper.device.conversation import Conversation
from fedml_dapper.device.keeping import NothingKept
from fedml_dapper.device.silo_in_sums import SiloInSums
from fedml_dapper.federation import Codec, Experiment
from fedml_dapper.federation.wire.vocabulary import REFUSED, SUM
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.platform.client_trainer import DapperClientTrainer
from fedml_dapper.platform.dataset import FedMLDataset
from fedml_dapper.platform.manager_loop import ManagerLoop
from fedml_dapper.platform.silo_folder import close_parts, open_parts
from fedml_dapper.platform.tracking import reporting_client_status
from fedml_dapper.platform.transports import open_transport
from fedml_dapper.secure_grpc import SecureSilo

FAREWELL_SECONDS = 2.0
"""Pause before the connection is closed, in which MQTT delivers the last message."""


class DapperClientManager(ManagerLoop, ClientMasterManager):  # type: ignore[misc]  # fedml is untyped
    """A client process: reports that it is online, and trains the models that it is sent until the run ends.

    What it answers is in :class:`Conversation`; it trains through FedML's adapter, and so by the trainer's hooks. In
    ``place``, a folder, it keeps what has come of a large model.
    """

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
        place: Path,
    ) -> None:
        self._parts = open_parts(place, rank) if args.backend == "DAPPER_GRPC" else None
        ManagerLoop.__init__(self, partial(open_transport, args, comm, rank, num_processes, self._parts))
        num_train, _, _, _, num_local, train_local, test_local, _ = dataset
        model = experiment.method.problem.backbone
        adapter = get_trainer_dist_adapter(
            args, device, rank, model, num_train, num_local, train_local, test_local, trainer
        )
        ClientMasterManager.__init__(self, args, adapter, comm, rank, num_processes, args.backend)
        self._experiment = experiment
        self._trainer = trainer
        self._conversation = Conversation(
            experiment, trainer.clients, codec, sums, self.rank, self, Message, self._train_by_hooks, NothingKept()
        )

    def run(self) -> None:
        """Serve until the server ends the run; errors that end it early are raised."""
        self.register_message_receive_handlers()
        try:
            with reporting_client_status() if self._experiment.settings.tracking_args.using_mlops else nullcontext():
                self.loop()
            if isinstance(self.com_manager, SecureSilo):
                self.com_manager.forget()
        finally:
            if self._parts is not None:
                close_parts(self._parts)

    def handle_message_connection_ready(self, msg_params: Message) -> None:
        self._conversation.greet()

    def handle_message_check_status(self, msg_params: Message) -> None:
        self._conversation.greet()

    def register_message_receive_handlers(self) -> None:
        super().register_message_receive_handlers()
        self.register_message_receive_handler(REFUSED, self._conversation.take_refusal)
        self.register_message_receive_handler(SUM, self._conversation.take_step_of_sum)

    def handle_message_receive_model_from_server(self, msg_params: Message) -> None:
        self._conversation.take_model(msg_params)

    def handle_message_finish(self, msg_params: Message) -> None:
        self._conversation.say_goodbye()
        if self.args.backend == "MQTT_S3":
            time.sleep(FAREWELL_SECONDS)
        self.stop()

    def _train_by_hooks(self, downlink: Downlink) -> Upload:
        self._trainer.set_id(downlink.client_id)
        # not the adapter's update_dataset: it takes client 0 for "none given"
        self.trainer_dist_adapter.trainer.update_dataset(downlink.client_id)
        self.trainer_dist_adapter.update_model(downlink)
        upload, _ = self.trainer_dist_adapter.train(downlink.round - 1)
        assert isinstance(upload, Upload)
        return upload
