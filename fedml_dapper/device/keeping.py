"""What a device keeps on its disk: its method's memory, the newest model that it was sent, and its latest large answer.

Each is whole or absent. The memory is written once the server has heard the upload that it belongs to. So a device that
is switched off in the middle of a round has the memory from before it, as if the round had never begun, and trains it
again. What it has trained already and not delivered, it gives again: on a bad line a large upload takes long, and what
the server has of it counts for these very bytes alone.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from pydantic import JsonValue, ValidationError

from fedml_dapper.errors import DataError
from fedml_dapper.federation import ClientSide, Experiment, SharedSettings
from fedml_dapper.federation.run_folder.model_file import origin_of, save_model
from fedml_dapper.federation.run_folder.own_code import note_code
from fedml_dapper.federation.run_folder.records import Record
from fedml_dapper.federation.run_folder.tensor_file import metadata_of, read_tensors, write_tensors
from fedml_dapper.methods import Downlink, Memory
from fedml_dapper.pruning.filled import filled_channels
from fedml_dapper.secure_grpc.parcel import WHOLE_BYTES

LOGGER = logging.getLogger(__name__)
MEMORY_NAME = "memory.safetensors"
KEPT_MODEL_NAME = "model.safetensors"
ANSWER_NAME = "answer.safetensors"
_ABOUT = "about"
_UPLOAD = "upload"
_MEMORY = "memory/"


@dataclass(frozen=True, eq=False)
class Answer:
    """What a client answers to a round's model."""

    upload: bytes
    """The encoded upload."""
    num_samples: int
    memory: Memory
    """What the method remembers after the round."""


class Keeping(Protocol):
    """Hooks of a round on a client's process."""

    def received(self, downlink: Downlink) -> None:
        """Called with a round's model, before it is trained."""

    def answer_to(self, model: bytes) -> Answer | None:
        """Return what an earlier process has answered to this encoded model; None where there is nothing."""

    def answering(self, model: bytes, round_: int, answer: Answer) -> None:
        """Called before an answer to the encoded ``model`` of this round is sent."""

    def heard(self, downlink: Downlink) -> None:
        """Called when the server has the answer to a round's model."""


class NothingKept:
    """A process that keeps nothing when it ends."""

    def received(self, downlink: Downlink) -> None:
        """Do nothing."""

    def answer_to(self, model: bytes) -> None:
        """Return None."""

    def answering(self, model: bytes, round_: int, answer: Answer) -> None:
        """Do nothing."""

    def heard(self, downlink: Downlink) -> None:
        """Do nothing."""


class _About(Record):
    round: int
    """The last round that the memory knows of."""
    client: int | None = None
    """Client that the memory is of, by id; None in files of earlier versions."""
    experiment: str
    """Digest of the experiment's settings."""
    values: dict[str, JsonValue]


class _AboutAnswer(Record):
    model: str
    """SHA-256 of the model that is answered."""
    round: int
    num_samples: int
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
        note_code(experiment.settings)
        self._digest = SharedSettings.of_experiment(experiment).digest
        self._folder = folder
        self._recalled: int | None = None
        """The last round that a recalled memory knows of, until a model has come."""

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
        if about.client not in (None, client_id):
            LOGGER.warning("%s is of another silo, and this device begins without a memory", path)
            return
        self._recalled = about.round
        self._clients.memories[client_id] = Memory(tensors, dict(about.values))
        LOGGER.info("this device goes on with what it remembers of round %d", about.round)

    def received(self, downlink: Downlink) -> None:
        """Keep the model that the client uses, given what it was sent.

        A memory from a later round is another run's of the same settings, and is given up.
        """
        if self._recalled is not None and downlink.round < self._recalled:
            LOGGER.warning(
                "what this device remembers is of round %d, and the server is at round %d, as in a new run; the device"
                " begins without a memory", self._recalled, downlink.round,
            )  # fmt: skip
            self._clients.memories.pop(downlink.client_id, None)
        self._recalled = None
        model = self._clients.personal_model(downlink)
        kept = filled_channels(self._experiment.method.problem.layout, model)
        self._folder.mkdir(parents=True, exist_ok=True)
        save_model(model.state_dict(), self._folder / KEPT_MODEL_NAME, downlink.round - 1, self._origin, kept)

    def answer_to(self, model: bytes) -> Answer | None:
        """Return what this device has answered to this very model; an answer to another one is deleted."""
        path = self._folder / ANSWER_NAME
        if not path.exists():
            return None
        try:
            about = _AboutAnswer.model_validate_json(metadata_of(path, "answer").get(_ABOUT, ""))
            is_asked_for = about.model == _digest(model)
            tensors = read_tensors(path, "answer") if is_asked_for else {}
        except (DataError, ValidationError) as error:
            LOGGER.warning("%s cannot be read, and this device trains the round again: %s", path, error)
            is_asked_for = False
        if not is_asked_for:
            path.unlink()
            return None
        upload = tensors.pop(_UPLOAD)
        memory = Memory({name.removeprefix(_MEMORY): one for name, one in tensors.items()}, dict(about.values))
        return Answer(upload.numpy().tobytes(), about.num_samples, memory)

    def answering(self, model: bytes, round_: int, answer: Answer) -> None:
        """Keep an answer that is large; small ones travel in no time, and are trained again after a restart."""
        if len(answer.upload) <= WHOLE_BYTES:
            return
        values = dict(answer.memory.values)
        about = _AboutAnswer(model=_digest(model), round=round_, num_samples=answer.num_samples, values=values)
        tensors = {_MEMORY + name: tensor for name, tensor in answer.memory.tensors.items()}
        tensors[_UPLOAD] = torch.frombuffer(bytearray(answer.upload), dtype=torch.uint8)
        self._folder.mkdir(parents=True, exist_ok=True)
        write_tensors(tensors, {_ABOUT: about.model_dump_json()}, self._folder / ANSWER_NAME)

    def forget_answer(self) -> None:
        """Delete the latest answer, when the run is over."""
        (self._folder / ANSWER_NAME).unlink(missing_ok=True)

    def heard(self, downlink: Downlink) -> None:
        """Keep what the method remembers after the round."""
        memory = self._clients.memories.get(downlink.client_id, Memory())
        if not memory.tensors and not memory.values:
            return
        about = _About(
            round=downlink.round, client=downlink.client_id, experiment=self._digest, values=dict(memory.values)
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        write_tensors(memory.tensors, {_ABOUT: about.model_dump_json()}, self._folder / MEMORY_NAME)


def _digest(model: bytes) -> str:
    return hashlib.sha256(model).hexdigest()
