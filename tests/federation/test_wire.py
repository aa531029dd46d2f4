from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import (
    Agreement,
    ClientSide,
    Codec,
    Experiment,
    Server,
    SharedSettings,
    build_experiment,
    framed,
)
from fedml_dapper.federation.wire.codec import _LENGTH_BYTES, _START, MAGIC
from fedml_dapper.methods import Downlink, Memory, Upload, payload_bytes
from fedml_dapper.pruning import PruningPlan

DIGITS = Path(__file__).parents[2] / "config" / "digits_offline.yaml"
SettingsFactory = Callable[..., Settings]


def codec_of(experiment: Experiment) -> Codec:
    return Codec(experiment.method.problem.layout, Agreement.of(experiment))


def messages_of(experiment: Experiment) -> tuple[Server, list[Upload]]:
    server, clients = Server(experiment), ClientSide(experiment)
    server.round_clients()
    return server, [clients.update(server.downlink(data.client_id), data) for data in experiment.clients]


def same(one: Downlink | Upload, other: Downlink | Upload) -> bool:
    return (
        list(one.weights) == list(other.weights)
        and all(tensor.equal(other.weights[name]) for name, tensor in one.weights.items())
        and all(tensor.dtype == other.weights[name].dtype for name, tensor in one.weights.items())
        and one.plan.kept.keys() == other.plan.kept.keys()
        and all(kept.equal(other.plan.kept[name]) for name, kept in one.plan.kept.items())
        and all(tensor.equal(other.extras[name]) for name, tensor in one.extras.items())
        and (one.round, one.client_id) == (other.round, other.client_id)
    )


def test_every_level_survives_the_wire_bit_for_bit(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("epochs=2"))
    codec, (server, uploads) = codec_of(experiment), messages_of(experiment)
    for upload in uploads:
        received, _ = codec.decode(codec.encode(upload))
        assert isinstance(received, Upload)
        assert same(upload, received)
        assert (upload.num_samples, upload.metrics, upload.unsliced) == (
            received.num_samples, received.metrics, received.unsliced
        )  # fmt: skip
        assert same(server.downlink(upload.client_id), codec.decode(codec.encode(server.downlink(upload.client_id)))[0])


@pytest.mark.parametrize("other", [str, float, lambda _: True], ids=["text", "fraction", "truth"])
def test_counts_are_whole_numbers_and_nothing_like_them(
    tiny_settings: SettingsFactory, other: Callable[[int], object]
) -> None:
    experiment = build_experiment(tiny_settings("epochs=2", "method=fedavg"))
    codec, (_, uploads) = codec_of(experiment), messages_of(experiment)
    data = codec.encode(uploads[1])
    size = int.from_bytes(data[_START - _LENGTH_BYTES : _START], "little")
    header, body = data[_START : _START + size], data[_START + size :]
    assert same(codec.decode(framed(header, body))[0], uploads[1])
    for key in ("round", "client_id", "num_samples", "steps"):
        changed = json.loads(header)
        place = changed["metrics"] if key == "steps" else changed
        place[key] = other(place[key])
        with pytest.raises(ProtocolError, match=f"header is malformed at `.*{key}`"):
            codec.decode(framed(json.dumps(changed).encode(), body))


def test_no_client_trains_for_longer_than_any_round(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("epochs=1", "method=fedavg"))
    codec, (_, uploads) = codec_of(experiment), messages_of(experiment)
    for seconds in (1.7e308, inf, -1.0):
        sent = codec.encode(replace(uploads[1], metrics=replace(uploads[1].metrics, seconds=0.0)))
        size = int.from_bytes(sent[_START - _LENGTH_BYTES : _START], "little")
        header, body = json.loads(sent[_START : _START + size]), sent[_START + size :]
        header["metrics"]["seconds"] = seconds
        with pytest.raises(ProtocolError, match=r"header is malformed at `.*seconds`"):
            codec.decode(framed(json.dumps(header).encode(), body))


@pytest.mark.long
def test_bytes_on_the_wire_are_the_accounted_ones_within_two_percent() -> None:
    experiment = build_experiment(load_settings([DIGITS], ["client_share=0.05", "epochs=1"]))
    codec, (server, uploads) = codec_of(experiment), messages_of(experiment)
    layout = experiment.method.problem.layout
    for message in (*uploads, server.downlink(0)):
        accounted = payload_bytes(message, layout)
        assert accounted <= len(codec.encode(message)) <= 1.02 * accounted


@pytest.mark.parametrize("uplink", ["fp16", "bf16", "int8"])
def test_uploads_in_fewer_bits_arrive_as_the_client_rounded_them(tiny_settings: SettingsFactory, uplink: str) -> None:
    experiment = build_experiment(tiny_settings("epochs=1", f"uplink={uplink}", "width=16"))
    codec, (server, uploads) = codec_of(experiment), messages_of(experiment)
    layout = experiment.method.problem.layout
    for upload, profile in zip(uploads, experiment.profiles, strict=True):
        data = codec.encode(upload)
        assert same(upload, codec.decode(data)[0])
        accounted = payload_bytes(upload, layout)
        assert accounted == experiment.method.footprint(profile.ratio).bytes_up
        assert accounted <= len(data) <= accounted + 2500
    whole = server.downlink(0)
    assert same(whole, codec.decode(codec.encode(whole))[0])
    assert payload_bytes(uploads[0], layout) < 0.55 * payload_bytes(whole, layout)


@pytest.mark.parametrize("uplink", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("value", [nan, inf])
def test_an_upload_that_is_not_finite_is_sent_in_every_format_and_refused(
    tiny_settings: SettingsFactory, uplink: str, value: float
) -> None:
    experiment = build_experiment(tiny_settings("epochs=1", "method=fedavg", f"uplink={uplink}"))
    codec = codec_of(experiment)
    _, uploads = messages_of(experiment)
    name = next(name for name, tensor in uploads[0].weights.items() if tensor.dim() == 4)
    broken = uploads[0].weights[name].clone()
    broken[0, 0, 0, 0] = value
    sent = codec.encode(replace(uploads[0], weights={**uploads[0].weights, name: broken}))
    with pytest.raises(ProtocolError, match=r"^message holds values that are not finite, in `"):
        codec.decode(sent)


def test_parts_of_a_model_and_extras_travel_too(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("epochs=1"))
    codec, (_, uploads) = codec_of(experiment), messages_of(experiment)
    head = {name: tensor for name, tensor in uploads[0].weights.items() if name.startswith("predictor")}
    plan = PruningPlan({}, omitted=frozenset(uploads[0].weights) - head.keys())
    partial = replace(
        uploads[0],
        weights=head,
        plan=plan,
        unsliced=frozenset(),
        extras={"prototypes/3": torch.randn(2, 5), "classes": torch.tensor([True, False, True])},
    )
    received, memory = codec.decode(codec.encode(partial))
    assert same(partial, received)
    assert received.extras["classes"].dtype == torch.bool
    assert received.plan.omitted == plan.omitted
    assert memory is None


def test_what_several_clients_are_sent_is_encoded_once_a_round(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("epochs=1"))
    codec, (server, _) = codec_of(experiment), messages_of(experiment)
    sent = [replace(server.downlink(client), extras={"mean": torch.ones(2)}) for client in (0, 1)]
    sent.append(replace(sent[1], extras=sent[0].extras))
    bodies = []
    for downlink in (sent[0], sent[0], sent[2], sent[1]):
        received, _ = codec.decode(codec.encode(downlink))
        assert same(downlink, received)
        bodies.append(codec._last.content)  # type: ignore[union-attr]
    assert [body is bodies[0] for body in bodies] == [True, True, True, False]  # the last has other extras
    changed = replace(sent[0], weights={name: tensor + 1 for name, tensor in sent[0].weights.items()})
    assert same(changed, codec.decode(codec.encode(changed))[0])
    for tensor in changed.weights.values():
        tensor.add_(1)  # as no server does within a round
    later = replace(changed, round=2)
    assert same(later, codec.decode(codec.encode(later))[0])


def test_a_clients_memory_travels_with_its_messages(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("epochs=1"))
    codec, (server, _) = codec_of(experiment), messages_of(experiment)
    sent = Memory({"a/w": torch.randn(3), "a/n": torch.tensor(7)}, {"seen": 3, "arms": [0.25, {"pulls": 2}]})
    message, received = codec.decode(codec.encode(server.downlink(0), sent))
    assert same(message, server.downlink(0))
    assert received is not None
    assert received.values == sent.values
    assert received.tensors.keys() == sent.tensors.keys()
    assert all(tensor.equal(received.tensors[name]) for name, tensor in sent.tensors.items())


def test_a_memory_of_training_that_diverged_travels_as_it_is(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("epochs=1"))
    codec, server = codec_of(experiment), Server(experiment)
    server.round_clients()
    values = {"trained_figures": {"test": {"headline": 10.0, "loss": float("inf")}}}
    _, received = codec.decode(codec.encode(server.downlink(0), Memory({}, values)))
    assert received is not None
    assert received.values == values


@pytest.mark.long
def test_foreign_experiments_are_refused_naming_both_values(tiny_settings: SettingsFactory) -> None:
    ours, theirs = (build_experiment(tiny_settings(f"method={name}", "epochs=1")) for name in ("dapperfl", "fedavg"))
    _, uploads = messages_of(theirs)
    with pytest.raises(ProtocolError, match="method is fedavg there and dapperfl here"):
        codec_of(ours).decode(codec_of(theirs).encode(uploads[0]))
    slower = build_experiment(tiny_settings("epochs=1", "learning_rate=0.5"))
    with pytest.raises(ProtocolError, match=r"settings digest is [0-9a-f]+ there and [0-9a-f]+ here"):
        codec_of(ours).decode(codec_of(slower).encode(messages_of(slower)[1][0]))


def test_settings_of_the_machine_do_not_matter_and_others_are_named(tiny_settings: SettingsFactory) -> None:
    def shared(*overrides: str) -> SharedSettings:
        return SharedSettings.of_experiment(build_experiment(tiny_settings(*overrides)))

    ours = shared()
    assert shared("output_dir=elsewhere", "threads=2", "round_timeout_s=5", "comm_round=7") == ours
    assert shared("learning_rate=0.5").difference(ours) == "train_args.learning_rate is 0.5 there and 0.01 here"


@pytest.fixture(scope="module")
def encoded() -> tuple[Codec, Upload, bytes]:
    small = ["width=8", "client_share=0.08", "epochs=1", "client_num_in_total=4", "client_num_per_round=4"]
    experiment = build_experiment(load_settings([DIGITS], [*small, "ratios=[0.5]"]))
    codec, (_, uploads) = codec_of(experiment), messages_of(experiment)
    return codec, uploads[0], codec.encode(uploads[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": {"predictor.bias": torch.full((10,), float("nan"))}}, "not finite"),
        ({"plan": PruningPlan({})}, "values for its plan"),
        ({"unsliced": frozenset()}, "values for its plan"),
        ({"unsliced": frozenset({"nowhere"})}, "which the model does not have"),
    ],
)
def test_content_that_does_not_fit_is_refused(
    encoded: tuple[Codec, Upload, bytes], change: dict[str, object], message: str
) -> None:
    codec, upload, _ = encoded
    if "weights" in change:
        change = {"weights": {**upload.weights, **change["weights"]}}  # type: ignore[dict-item]
    with pytest.raises(ProtocolError, match=message):
        codec.decode(codec.encode(replace(upload, **change)))  # type: ignore[arg-type]


@pytest.mark.parametrize("cut", [0, 3, 7, 8, 40, 1000, -1])
def test_truncated_messages_are_refused(encoded: tuple[Codec, Upload, bytes], cut: int) -> None:
    codec, _, data = encoded
    with pytest.raises(ProtocolError):
        codec.decode(data[:cut])


@pytest.mark.parametrize("place", [0, 4, 35, 36, 40, 300, -1])
def test_a_single_flipped_bit_is_noticed(encoded: tuple[Codec, Upload, bytes], place: int) -> None:
    codec, _, data = encoded
    damaged = bytearray(data)
    damaged[place] ^= 1
    with pytest.raises(ProtocolError):
        codec.decode(bytes(damaged))
    damaged[place] ^= 1
    codec.decode(bytes(damaged))


@given(noise=st.binary(max_size=200))
def test_noise_is_refused(encoded: tuple[Codec, Upload, bytes], noise: bytes) -> None:
    for data in (noise, MAGIC + noise, framed(noise, b""), framed(b"{}", noise), framed(noise, noise)):
        with pytest.raises(ProtocolError):
            encoded[0].decode(data)
