"""What a device keeps: a memory that is whole after a kill at any moment, and the newest model, which works offline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.device import keeping
from fedml_dapper.device.conversation import Conversation
from fedml_dapper.device.keeping import ANSWER_NAME, MEMORY_NAME, DeviceFolder
from fedml_dapper.device.offline import predict_offline
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.federation import Agreement, ClientSide, Codec, Experiment, Server, build_experiment, simulate
from fedml_dapper.federation.round.update_norm import is_finite
from fedml_dapper.federation.wire import vocabulary as say
from fedml_dapper.methods import Downlink, Memory, Upload
from fedml_dapper.pruning import DENSE
from fedml_dapper.secure_grpc import AnyMessage, Message

from ..platform.processes import Silos
from ..tasks.test_segmentation import segmentation
from ..waiting import wait_until
from .conftest import NUM_DEVICES, Devices


@pytest.mark.long
def test_a_device_that_is_killed_goes_on_with_its_memory_and_the_run_is_the_same(
    devices: Devices, server: Callable[[], Silos]
) -> None:
    devices.write("scaffold", train_args={"comm_round": 3})
    server_process = server()
    for rank in range(1, NUM_DEVICES + 1):
        devices.start(rank)
    wait_until(lambda: "client 0: round 1, loss" in devices.output(1), otherwise=lambda: devices.output(1))
    devices.processes[1].kill()
    devices.processes[1].wait()
    devices.start(1)
    assert server_process.wait(0) == 0, server_process.output(0)
    assert devices.processes[1].wait(300) == 0, devices.output(1)
    assert "this device goes on with what it remembers of round" in devices.output(1)
    experiment = build_experiment(load_settings([devices.folder / "simulation.yaml"]))
    simulate(experiment, run_dir=devices.folder / "alone")
    alone = load_file(devices.folder / "alone" / "global_model.safetensors")
    across = load_file(server_process.run_dir / "global_model.safetensors")
    assert all(alone[name].equal(across[name]) for name in alone)
    picture = devices.folder / "pictures" / "chalk" / "test" / "bar" / "0.png"
    told = devices.told("predict", "runs/silo-1", str(picture))
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith(f"{picture}: ")
    assert told.stdout.endswith(" %\n")


@pytest.fixture
def experiment(tiny_settings: Callable[..., Settings]) -> Experiment:
    return build_experiment(tiny_settings("method=scaffold"))


def remembered(experiment: Experiment, folder: Path) -> Memory:
    clients = ClientSide(experiment)
    DeviceFolder(experiment, clients, folder).recall(0)
    return clients.memories.get(0, Memory())


def test_a_memory_comes_back_as_it_was(experiment: Experiment, tmp_path: Path) -> None:
    clients = ClientSide(experiment)
    clients.memories[0] = Memory({"drift/a": torch.arange(3.0)}, {"rounds": 2, "seen": [1, 2]})
    DeviceFolder(experiment, clients, tmp_path).heard(Downlink(2, 0, {}, DENSE))
    found = remembered(experiment, tmp_path)
    assert found.values == {"rounds": 2, "seen": [1, 2]}
    assert found.tensors.keys() == {"drift/a"}
    assert found.tensors["drift/a"].equal(torch.arange(3.0))


@pytest.mark.parametrize(("asked", "is_kept"), [(1, False), (5, True), (6, True)])
def test_a_memory_of_a_later_round_is_another_run_s(
    experiment: Experiment, tmp_path: Path, asked: int, is_kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that begins anew, with the same settings, asks for round 1."""
    before = ClientSide(experiment)
    before.memories[0] = Memory({}, {"rounds": 5})
    DeviceFolder(experiment, before, tmp_path).heard(Downlink(5, 0, {}, DENSE))
    clients = ClientSide(experiment)
    folder = DeviceFolder(experiment, clients, tmp_path)
    folder.recall(0)
    folder.received(Downlink(asked, 0, dict(experiment.method.problem.backbone.state_dict()), DENSE))
    assert (clients.memories.get(0, Memory()).values == {"rounds": 5}) == is_kept
    assert ("as in a new run" in caplog.text) != is_kept


def test_a_memory_of_another_silo_is_said_and_left(
    experiment: Experiment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clients = ClientSide(experiment)
    clients.memories[3] = Memory({}, {"rounds": 2})
    DeviceFolder(experiment, clients, tmp_path).heard(Downlink(2, 3, {}, DENSE))
    assert remembered(experiment, tmp_path).values == {}
    assert "is of another silo, and this device begins without a memory" in caplog.text


@pytest.mark.parametrize("damage", ["cut", "other experiment"])
def test_a_memory_of_no_use_is_said_and_left(
    experiment: Experiment,
    tiny_settings: Callable[..., Settings],
    tmp_path: Path,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clients = ClientSide(experiment)
    clients.memories[0] = Memory({}, {"rounds": 2})
    DeviceFolder(experiment, clients, tmp_path).heard(Downlink(2, 0, {}, DENSE))
    if damage == "cut":
        file = tmp_path / MEMORY_NAME
        file.write_bytes(file.read_bytes()[:-3])
    else:
        experiment = build_experiment(tiny_settings("method=scaffold", "epochs=3"))
    with caplog.at_level(logging.WARNING):
        assert remembered(experiment, tmp_path).values == {}
    assert "begins without a memory" in caplog.text


def test_a_method_that_remembers_nothing_leaves_no_memory(experiment: Experiment, tmp_path: Path) -> None:
    DeviceFolder(experiment, ClientSide(experiment), tmp_path).heard(Downlink(2, 0, {}, DENSE))
    assert list(tmp_path.iterdir()) == []


def test_the_newest_model_names_classes_without_a_server(experiment: Experiment, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no model in .*`dapper-device run --output` keeps the newest one there"):
        predict_offline(tmp_path, [tmp_path / "0.png"])
    weights = experiment.method.problem.backbone.state_dict()
    folder = DeviceFolder(experiment, ClientSide(experiment), tmp_path)
    folder.received(Downlink(3, 0, dict(weights), DENSE))
    Image.new("RGB", (40, 40), (200, 10, 10)).save(tmp_path / "0.png")
    [answer] = predict_offline(tmp_path, [tmp_path / "0.png"])
    assert answer.label in experiment.classes
    assert 1 / experiment.num_classes <= answer.probability <= 1
    with pytest.raises(DataError, match=r"1.png: not a readable picture"):
        predict_offline(tmp_path, [tmp_path / "1.png"])


def test_a_model_of_another_task_names_no_classes(tmp_path: Path) -> None:
    experiment = segmentation("method=fedavg")
    weights = experiment.method.problem.backbone.state_dict()
    DeviceFolder(experiment, ClientSide(experiment), tmp_path).received(Downlink(1, 0, dict(weights), DENSE))
    with pytest.raises(ConfigError, match=r"this model, of task .*, names no classes of pictures"):
        predict_offline(tmp_path, [tmp_path / "0.png"])


# An answer that was not delivered


class Line:
    """Notes the uploads that are sent, and breaks for good with the first where a test wants that."""

    def __init__(self, breaks: bool = False) -> None:
        self.breaks = breaks
        self.uploads: list[AnyMessage] = []

    def send_message(self, message: AnyMessage) -> None:
        if self.breaks:
            raise KeyboardInterrupt  # as the end of the process
        self.uploads.append(message)

    def queued(self, message_type: Any) -> Sequence[AnyMessage]:
        return ()

    def delivered(self) -> int:
        return 0


def asked(experiment: Experiment, folder: Path, model: bytes, line: Line, trains: Callable[..., Any]) -> Memory:
    """What a new process remembers after it was asked to train ``model``."""
    clients = ClientSide(experiment)
    kept = DeviceFolder(experiment, clients, folder)
    kept.recall(0)
    codec = Codec(experiment.method.problem.layout, Agreement.of(experiment))
    talk = Conversation(
        experiment, clients, codec, None, 1, line, Message, lambda downlink: trains(clients, downlink), kept
    )
    message = Message(say.SYNC_MODEL, 0, 1)
    message.add_params(say.MODEL, model)
    message.add_params(say.TICKET, "a ticket of its own")
    talk.take_model(message)
    return clients.memories[0]


def trains(clients: ClientSide, downlink: Downlink) -> Upload:
    return clients.update_own(downlink)


def may_not_train(clients: ClientSide, downlink: Downlink) -> Upload:
    raise AssertionError("it was trained already")


def models(experiment: Experiment) -> list[bytes]:
    """What the server sends client 0 in two rounds of the same start."""
    codec = Codec(experiment.method.problem.layout, Agreement.of(experiment))
    downlink = Server(experiment).downlink(0)
    return [codec.encode(downlink), codec.encode(replace(downlink, round=2))]


def test_what_was_trained_and_not_delivered_is_given_again_with_its_memory(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "WHOLE_BYTES", 0)
    model, later = models(experiment)
    undisturbed = Line()
    memory = asked(experiment, tmp_path / "undisturbed", model, undisturbed, trains)
    with pytest.raises(KeyboardInterrupt):
        asked(experiment, tmp_path / "own", model, Line(breaks=True), trains)
    again = Line()
    recalled = asked(experiment, tmp_path / "own", model, again, may_not_train)
    assert recalled.tensors.keys() == memory.tensors.keys() != set()
    assert all(tensor.equal(recalled.tensors[name]) for name, tensor in memory.tensors.items())
    [upload] = again.uploads
    assert upload.get(say.TICKET) == "a ticket of its own"
    assert upload.get(say.NUM_SAMPLES) == undisturbed.uploads[0].get(say.NUM_SAMPLES)
    assert same_weights(experiment, upload, undisturbed.uploads[0])
    with pytest.raises(AssertionError, match="it was trained already"):
        asked(experiment, tmp_path / "own", later, Line(), may_not_train)
    assert not (tmp_path / "own" / ANSWER_NAME).exists()  # it was to another model


def same_weights(experiment: Experiment, *uploads: AnyMessage) -> bool:
    codec = Codec(experiment.method.problem.layout, Agreement.of(experiment))
    one, other = (codec.decode(upload.get(say.MODEL))[0] for upload in uploads)
    return all(tensor.equal(other.weights[name]) for name, tensor in one.weights.items())


def test_a_damaged_answer_costs_another_training(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeping, "WHOLE_BYTES", 0)
    model = models(experiment)[0]
    asked(experiment, tmp_path, model, Line(), trains)
    (tmp_path / ANSWER_NAME).write_bytes(b"nonsense")
    asked(experiment, tmp_path, model, line := Line(), trains)
    assert len(line.uploads) == 1
    assert "cannot be read, and this device trains the round again" in caplog.text


def test_a_small_answer_is_not_kept(experiment: Experiment, tmp_path: Path) -> None:
    model = models(experiment)[0]
    asked(experiment, tmp_path, model, line := Line(), trains)
    assert len(line.uploads[0].get(say.MODEL)) < keeping.WHOLE_BYTES
    assert not (tmp_path / ANSWER_NAME).exists()


@pytest.mark.parametrize("method", ["scaffold", "fedbn", "moon", "ditto", "fedper", "feddyn", "fedavg"])
def test_a_round_that_diverges_leaves_no_trace_in_what_is_remembered(
    tiny_settings: Callable[..., Settings], tmp_path: Path, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    personal = "personal_layers=norms" if method == "fedavg" else "personal_layers=none"
    experiment = build_experiment(tiny_settings(f"method={method}", personal))
    codec = Codec(experiment.method.problem.layout, Agreement.of(experiment))
    sound = Server(experiment).downlink(0)
    ruined = {name: w * 1e30 if w.is_floating_point() else w for name, w in sound.weights.items()}
    before = asked(experiment, tmp_path, codec.encode(sound), Line(), trains)
    assert is_finite(before.tensors.values())
    after = asked(experiment, tmp_path, codec.encode(replace(sound, round=2, weights=ruined)), Line(), trains)
    assert after.values == before.values
    assert after.tensors.keys() == before.tensors.keys()
    assert all(tensor.equal(before.tensors[name]) for name, tensor in after.tensors.items())
    assert "client 0: round 2: training ended in NaN or infinity; what it remembers stays as it was" in caplog.text
    again = Line()
    assert is_finite(asked(experiment, tmp_path, codec.encode(replace(sound, round=3)), again, trains).tensors.values())
    [upload] = again.uploads
    assert is_finite(codec.decode(upload.get(say.MODEL))[0].weights.values())
