"""The program of a device: a silo's process over DAPPER_GRPC, without FedML."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedml_dapper.config import Settings
from fedml_dapper.device.calling import CallingDevice
from fedml_dapper.device.checking import check_command, refuse_too_little_memory
from fedml_dapper.device.conversation import Conversation
from fedml_dapper.device.event_loop import EventLoop
from fedml_dapper.device.keeping import DeviceFolder, Keeping
from fedml_dapper.device.rank import check_rank, grpc_of
from fedml_dapper.device.silo_in_sums import SiloInSums
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import Agreement, ClientSide, Codec, Experiment, SumCodec, build_experiment
from fedml_dapper.federation.wire import vocabulary as say
from fedml_dapper.models.on_disk import put_on_disk
from fedml_dapper.operations.credentials import CredentialFiles
from fedml_dapper.process.freed_memory import give_back_freed_memory, give_back_large_blocks
from fedml_dapper.secure_grpc import PARTS_NAME, AnyMessage, Caller, Message, SecureSilo, Transport

LOGGER = logging.getLogger(__name__)


class Device(EventLoop):
    """A device that trains for one silo: reports that it is online, and answers the server until the run ends."""

    def __init__(
        self,
        experiment: Experiment,
        clients: ClientSide,
        codec: Codec,
        sums: SiloInSums | None,
        rank: int,
        transport: Transport,
        keeping: Keeping,
    ) -> None:
        super().__init__()
        self._talk = Conversation(experiment, clients, codec, sums, rank, self, Message, clients.update_own, keeping)
        self._handlers: dict[Any, Callable[[AnyMessage], None]] = {
            say.CONNECTION_IS_READY: lambda message: self._talk.greet(),
            say.CHECK_STATUS: lambda message: self._talk.greet(),
            say.SYNC_MODEL: self._talk.take_model,
            say.SUM: self._talk.take_step_of_sum,
            say.REFUSED: self._talk.take_refusal,
            say.FINISH: self._finish,
        }
        self.com_manager = transport
        transport.add_observer(self)

    def send_message(self, message: AnyMessage) -> None:
        """Send a message to the server, or raise the transport's error."""
        self.com_manager.send_message(message)

    def handles(self, kind: Any, message: AnyMessage) -> bool:
        handler = self._handlers.get(kind)
        if handler is None:
            return False
        handler(message)
        return True

    def _finish(self, message: AnyMessage) -> None:
        self._talk.say_goodbye()
        self.stop()


def run_device(settings: Settings, rank: int, output: Path | None = None) -> None:
    """Take part in a federation as the silo of this ``rank``, until the server ends the run.

    Args:
        settings: The experiment's settings, those of this device laid over.
        rank: The silo's.
        output: Folder in which the device keeps what it remembers, the newest model and what it has signed in secure
            sums; ``silo-RANK`` in ``dapper_args.output_dir`` if None.

    Raises:
        ConfigError: Settings do not fit each other or this device, its memory does not suffice, or the server refuses
            it.
        DataError: The device's data are missing or damaged.
    """
    give_back_large_blocks()
    config = grpc_of(settings)
    check_rank(settings, rank)
    if settings.device_args.threads is not None:
        torch.set_num_threads(settings.device_args.threads)
    check_command(settings.silo_args.may_call)
    folder = settings.dapper_args.output_dir / f"silo-{rank}" if output is None else output
    _make(folder)
    credentials = CredentialFiles(config, rank)
    experiment = build_experiment(settings, rank=rank)
    put_on_disk(experiment.method.problem.backbone, folder)
    give_back_freed_memory()  # by which the network was tried out
    refuse_too_little_memory(experiment, rank)
    agreement = Agreement.of(experiment)
    codec = Codec(experiment.method.problem.layout, agreement)
    clients = ClientSide(experiment)
    keeping = DeviceFolder(experiment, clients, folder)
    keeping.recall(rank - 1)
    LOGGER.info("training with %d threads", torch.get_num_threads())
    if settings.common_args.training_type == "cross_device":
        caller = Caller(config, credentials, rank, folder / PARTS_NAME)
        CallingDevice(experiment, clients, codec, rank, caller, keeping).run()
        caller.forget()
        keeping.forget_answer()
        return
    sums: SiloInSums | None = None
    if experiment.sums_in_secret:
        # where the silo notes it that has FedML, as a promise binds whichever of the two comes next
        noted = settings.dapper_args.output_dir if output is None else output
        sums = SiloInSums(experiment, SumCodec(codec, agreement), rank, noted)
    give_up_after_s = settings.dapper_args.round_timeout_s
    dialled = config.config_for_silo(rank)
    transport = SecureSilo(dialled, credentials, rank, give_up_after_s, folder=folder / PARTS_NAME)
    Device(experiment, clients, codec, sums, rank, transport, keeping).loop()
    transport.forget()
    keeping.forget_answer()


def _make(folder: Path) -> None:
    """Make the folder of what the device keeps, before it joins."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except OSError as error:
        raise ConfigError(f"{folder.absolute()} cannot be made: {error.strerror}; name another by --output") from error
    if not is_writable:
        raise ConfigError(f"{folder.absolute()}: nothing can be written there; name another folder by --output")
