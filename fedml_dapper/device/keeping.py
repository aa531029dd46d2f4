"""What a device keeps on its disk: its method's memory, and the newest model that it was sent. Each is whole or absent.

The memory is written once the server has heard the upload that it belongs to. So a device that is switched off in the
middle of a round has the memory from before it, as if the round had never begun, and trains it again.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol

from pydantic import JsonValue, ValidationError

from fedml_dapper.errors import DataError
from fedml_dapper.federation import ClientSide, Experiment, SharedSettings
from fedml_dapper.federation.run_folder.model_file import origin_of, save_model
from fedml_dapper.federation.run_folder.records import Record
from fedml_dapper.federation.run_folder.tensor_file import metadata_of, read_tensors, write_tensors
from fedml_dapper.methods import Downlink, Memory
from fedml_dapper.pruning.filled import filled_channels

LOGGER = logging.getLogger(__name__)
MEMORY_NAME = "memory.safetensors"
KEPT_MODEL_NAME = "model.safetensors"
_ABOUT = "about"


class Keeping(Protocol):
    """Hooks of a round on a client's process."""

    def received(self, downlink: Downlink) -> None:
        """Called with a round's model, before it is trained."""

    def heard(self, downlink: Downlink) -> None:
        """Called when the server has the answer to a round's model."""


class NothingKept:
    """A process that keeps nothing when it ends."""

    def received(self, downlink: Downlink) -> None:
        """Do nothing."""

    def heard(self, downlink: Downlink) -> None:
        """Do nothing."""


class _About(Record):
    round: int
    """The last round that the memory knows of."""
    experiment: str
    """Digest of the experiment's settings."""
    values: dict[str, JsonValue]


class DeviceFolder:
    """The folder in which a device keeps what it needs after a restart, and uses without the server.

    Args:
        experiment: What is run.
        clients: Memories and models of the device's client.
        folder: Made with the first file.
    """

    def __init__(self, experiment: Experiment, clients: ClientSide, folder: Path) -> None:
        self._clients = clients
        self._experiment = experiment
        self._origin = origin_of(experiment)
        self._digest = SharedSettings.of_experiment(experiment).digest
        self._folder = folder

    def recall(self, client_id: int) -> None:
        """Take over what an earlier process of this experiment remembered for the client; otherwise begin anew."""
        path = self._folder / MEMORY_NAME
        if not path.exists():
            return
        try:
            about = _About.model_validate_json(metadata_of(path, "memory").get(_ABOUT, ""))
            tensors = read_tensors(path, "memory")
        except (DataError, ValidationError) as error:
            LOGGER.warning("%s cannot be read, and this device begins without a memory: %s", path, error)
            return
        if about.experiment != self._digest:
            LOGGER.warning("%s is of another experiment, and this device begins without a memory", path)
            return
        self._clients.memories[client_id] = Memory(tensors, dict(about.values))
        LOGGER.info("this device goes on with what it remembers of round %d", about.round)

    def received(self, downlink: Downlink) -> None:
        """Keep the model that the client uses, given what it was sent."""
        model = self._clients.personal_model(downlink)
        kept = filled_channels(self._experiment.method.problem.layout, model)
        self._folder.mkdir(parents=True, exist_ok=True)
        save_model(model.state_dict(), self._folder / KEPT_MODEL_NAME, downlink.round - 1, self._origin, kept)

    def heard(self, downlink: Downlink) -> None:
        """Keep what the method remembers after the round."""
        memory = self._clients.memories.get(downlink.client_id, Memory())
        if not memory.tensors and not memory.values:
            return
        about = _About(round=downlink.round, experiment=self._digest, values=dict(memory.values))
        self._folder.mkdir(parents=True, exist_ok=True)
        write_tensors(memory.tensors, {_ABOUT: about.model_dump_json()}, self._folder / MEMORY_NAME)
