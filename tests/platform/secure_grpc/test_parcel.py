"""Messages as frames, by hand and by hypothesis."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from fedml.core.distributed.communication.message import Message
from hypothesis import given
from hypothesis import strategies as st

from fedml_dapper.errors import ProtocolError
from fedml_dapper.secure_grpc.parcel import (
    FRAME_BYTES,
    MAX_ENVELOPE_BYTES,
    MAX_SESSIONS,
    Arrivals,
    Numbering,
    Parcel,
    read_envelope,
    read_payload,
)

from .raw_silo import parcel

LIMIT = 4 * FRAME_BYTES
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)


def read(frames: Iterator[bytes]) -> Parcel:
    envelope = read_envelope(frames, LIMIT)
    return Parcel(envelope, read_payload(frames, envelope))


@given(params=st.dictionaries(st.text(min_size=1), PLAIN, max_size=5), payload=st.binary(max_size=50))
def test_whatever_can_travel_arrives_as_it_was(params: dict[str, object], payload: bytes) -> None:
    message = Message(3, 2, 0)
    for key, value in params.items():
        if key not in message.get_params():
            message.add_params(key, value)
    message.add_params("weights and all", payload)
    arrived = read(Numbering(LIMIT).parcel(message).frames()).message()
    assert arrived.get_params() == message.get_params()
    assert {key: type(value) for key, value in arrived.get_params().items()} == {
        key: type(value) for key, value in message.get_params().items()
    }
    assert (arrived.get_type(), arrived.get_sender_id(), arrived.get_receiver_id()) == (3, 2, 0)


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_arbitrary_frames_are_refused_in_words(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        read(iter(frames))


@given(at=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_read_as_a_message_of_the_same_size(at: int, value: int) -> None:
    frames = list(parcel(b"payload", params={"n": 1, "text": "abc"}).frames())
    envelope = bytearray(frames[0])
    envelope[at % len(envelope)] = value
    try:
        arrived = read(iter([bytes(envelope), *frames[1:]]))
    except ProtocolError:
        return
    assert arrived.payload == b"payload"


def test_frames_are_of_the_size_that_grpc_is_set_up_for() -> None:
    sizes = [len(frame) for frame in parcel(bytes(2 * FRAME_BYTES + 1)).frames()]
    assert sizes[0] <= MAX_ENVELOPE_BYTES
    assert sizes[1:] == [FRAME_BYTES, FRAME_BYTES, 1]


def test_nothing_is_read_beyond_the_frame_that_breaks_the_promise() -> None:
    taken = []

    def endless() -> Iterator[bytes]:
        yield next(parcel(b"x" * 10, payload_bytes=FRAME_BYTES + 10).frames())
        while True:
            taken.append(1)
            yield bytes(FRAME_BYTES)

    with pytest.raises(ProtocolError, match=f"a frame of {FRAME_BYTES} bytes after {FRAME_BYTES} of the"):
        read(endless())
    assert len(taken) == 2


@pytest.mark.parametrize("value", [[1], {"a": 1}, float("nan"), object(), b"bytes"])
def test_only_plain_values_travel_beside_the_payload(value: object) -> None:
    message = Message(3, 1, 0)
    message.add_params("payload", b"payload")
    message.add_params("other", value)
    with pytest.raises(ProtocolError):
        Numbering(LIMIT).parcel(message)


def test_deep_json_is_refused() -> None:
    fields = json.loads(next(parcel().frames()))
    text = json.dumps(fields)[:-1] + ', "params": {"n": ' + "[" * 30_000 + "]" * 30_000 + "}}"
    assert len(text) < MAX_ENVELOPE_BYTES
    with pytest.raises(ProtocolError, match="malformed envelope"):
        read(iter([text.encode()]))


def test_sessions_that_are_remembered_are_bounded() -> None:
    arrivals = Arrivals()
    for number in range(MAX_SESSIONS):
        arrivals.take(parcel(session=f"{number:032x}").envelope)
    arrivals.take(parcel(session="f" * 32).envelope)
    assert not arrivals.seen(parcel(session="0" * 32).envelope)  # the first, of 1001 starts
    assert arrivals.seen(parcel(session=f"{1:032x}").envelope)
    assert arrivals.seen(parcel(session="f" * 32).envelope)


def test_what_is_said_of_a_long_unknown_key_is_short() -> None:
    text = json.dumps(json.loads(next(parcel().frames())) | {"k" * 60_000: 1})
    with pytest.raises(ProtocolError) as caught:
        read(iter([text.encode()]))
    assert len(str(caught.value)) < 500
