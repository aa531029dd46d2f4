"""Two ends on loopback: what gets through, once and in order, and who is let in."""

from __future__ import annotations

import gc
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from fedml.core.distributed.communication.message import Message

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation.wire.vocabulary import REFUSED
from fedml_dapper.operations.credentials import read_credentials
from fedml_dapper.secure_grpc import server as server_module
from fedml_dapper.secure_grpc import silo as silo_module
from fedml_dapper.secure_grpc.link import CALLS_AT_ONCE, LARGEST_AT_ONCE, MAX_FETCHES
from fedml_dapper.secure_grpc.parcel import FRAME_BYTES, MIB
from fedml_dapper.secure_grpc.server import REFUSALS_AT_ONCE, SiloAwayError

from ...waiting import wait_until
from .conftest import MAX_MESSAGE_MB, NUM_SILOS, READY, Clock, Running, Starter
from .raw_silo import (
    CHECK,
    DELIVER,
    FETCH,
    FINISH,
    MODEL,
    OWN_CONNECTION,
    SECONDS,
    STATUS,
    TRY_DOWN,
    TRY_UP,
    UPLOAD,
    RawSilo,
    begun,
    parcel,
    refused,
)

CONNECTIONS = 5
"""Of eight calls each, as many as one may have: more than the server has threads, and fewer than it lets wait."""
HELD = 1 + MAX_FETCHES + 1
"""Calls of a silo that go on at a time: a delivery, fetches, and a trial of its line."""


def message(kind: int, sender: int, receiver: int, **params: Any) -> Message:
    made = Message(kind, sender, receiver)
    for key, value in params.items():
        made.add_params(key, value)
    return made


@pytest.fixture
def raw(config: SecureGrpcConfig) -> Callable[[int], RawSilo]:
    return lambda rank: RawSilo(config, read_credentials(config, rank))


def still_works(server: Running, silo: Running) -> None:
    """A well-meant message passes in each direction, and nothing was told before it."""
    silo.transport.send_message(message(STATUS, 1, 0, client_status="ONLINE"))
    told = server.next()
    assert (told.get_sender_id(), told.get("client_status")) == (1, "ONLINE")
    server.transport.send_message(message(CHECK, 0, 1))
    assert silo.next().get_type() == CHECK


# What gets through


def test_messages_pass_both_ways_whole(start: Starter) -> None:
    server, silo = start(0), start(1)
    payload = os.urandom(3 * FRAME_BYTES + 5)
    silo.transport.send_message(message(UPLOAD, 1, 0, model_params=payload, num_samples=12, share=0.5, note=None))
    told = server.next()
    assert (told.get_type(), told.get_sender_id(), told.get_receiver_id()) == (UPLOAD, 1, 0)
    assert told.get("model_params") == payload
    assert (told.get("num_samples"), told.get("share"), told.get("note")) == (12, 0.5, None)
    server.transport.send_message(message(CHECK, 0, 1))
    server.transport.send_message(message(MODEL, 0, 1, model_params=payload[::-1], client_idx="0"))
    assert [silo.next().get_type(), (last := silo.next()).get_type()] == [CHECK, MODEL]
    assert (last.get("model_params"), last.get("client_idx")) == (payload[::-1], "0")
    assert server.nothing_else()
    assert server.nothing_else(silo)


def test_a_silo_is_sent_only_what_is_its_own(start: Starter) -> None:
    server, first, second = start(0), start(1), start(2)
    server.transport.send_message(message(MODEL, 0, 2, model_params=b"for two"))
    assert second.next().get("model_params") == b"for two"
    assert server.nothing_else(first)


def test_a_repeated_message_arrives_once(start: Starter) -> None:
    server, silo = start(0), start(1)
    status = message(STATUS, 1, 0, client_status="ONLINE")
    silo.transport.send_message(status)
    silo.transport.send_message(status)  # as after a reply that was lost
    silo.transport.send_message(message(STATUS, 1, 0, client_status="IDLE"))
    assert [server.next().get("client_status"), server.next().get("client_status")] == ["ONLINE", "IDLE"]
    assert server.nothing_else()


def test_a_message_the_silo_did_not_acknowledge_is_fetched_again(start: Starter, raw: Callable[[int], RawSilo]) -> None:
    server = start(0)
    raw(1).deliver(parcel(kind=STATUS).frames())  # which makes it connected
    server.transport.send_message(message(MODEL, 0, 1, model_params=b"model"))
    assert raw(1).fetch()[1] == b"model"  # and dies
    silo = start(1)
    assert silo.next().get("model_params") == b"model"
    assert server.nothing_else(silo)


def test_what_a_silo_was_told_last_is_not_told_its_next_process(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silo_module, "FAREWELL_SECONDS", SECONDS)
    server, silo = start(0), start(1)
    server.transport.send_message(message(CHECK, 0, 1))  # as a refusal, at which a silo's process ends
    assert silo.next().get_type() == CHECK
    silo.stop()
    assert server.nothing_else(start(1))


def test_a_newer_model_takes_the_place_of_one_not_fetched(start: Starter, raw: Callable[[int], RawSilo]) -> None:
    server = start(0)
    raw(1).deliver(parcel(kind=STATUS).frames())
    for text in (b"old", b"new"):
        server.transport.send_message(message(MODEL, 0, 1, model_params=text))
    silo = start(1)
    assert silo.next().get("model_params") == b"new"
    assert server.nothing_else(silo)


def test_what_a_silo_does_not_fetch_does_not_pile_up(start: Starter, raw: Callable[[int], RawSilo]) -> None:
    server = start(0)
    raw(1).deliver(parcel(kind=STATUS).frames())
    for number in range(100):
        server.transport.send_message(message(REFUSED, 0, 1, dapper_refused=f"for the reason {number}"))
        server.transport.send_message(message(CHECK, 0, 1))
        for behind in (3, 4):  # to an edge, about two of its silos
            server.transport.send_message(message(REFUSED, 0, 1, dapper_refused=str(number), silo=behind))
    silo = start(1)
    told = [silo.next() for _ in range(4)]
    assert [(one.get_type(), one.get("silo"), one.get("dapper_refused")) for one in told] == [
        (REFUSED, None, "for the reason 99"), (CHECK, None, None), (REFUSED, 3, "99"), (REFUSED, 4, "99")
    ]  # fmt: skip
    assert server.nothing_else(silo)


@pytest.mark.long
def test_silos_start_first_and_find_a_server_that_comes_back(start: Starter, config: SecureGrpcConfig) -> None:
    silo = start(1, ready=False)
    server = start(0)
    assert silo.next().get_type() == READY
    still_works(server, silo)  # so it was told that once, not before the server was there
    server.stop()
    with pytest.raises(grpc.RpcError):
        silo.transport.send_message(message(STATUS, 1, 0))
    again = start(0)
    assert silo.next().get_type() == READY  # so that it says again that it is there
    still_works(again, silo)


def test_a_silo_that_finds_no_server_says_so_again_and_again_and_gives_up(
    start: Starter, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silo_module, "LAST_PAUSE_SECONDS", 0.02)
    silo = start(1, ready=False, clock=clock)

    def said() -> list[str]:
        return [record.message for record in caplog.records if record.message.startswith("no server at localhost")]

    for times in range(1, 4):
        wait_until(lambda times=times: len(said()) == times)
        assert said()[-1].endswith("looking for it for 300 s in all")
        clock.now += silo_module.REMIND_SECONDS + 1
    assert silo.failures.empty()
    clock.now = SECONDS + 1
    assert "for 300 s, this silo gives up" in str(silo.failures.get(timeout=60))


def test_a_name_that_no_machine_has_is_said_at_once(start: Starter, config: SecureGrpcConfig) -> None:
    try:
        socket.getaddrinfo("nobody.invalid", None)
    except socket.gaierror as error:
        if error.errno != socket.EAI_NONAME:
            pytest.skip("no name server here")
    silo = start(1, config.model_copy(update={"server_address": "nobody.invalid:8890"}), ready=False)
    failure = silo.failures.get(timeout=60)
    assert isinstance(failure, ConfigError)
    assert "no machine has the name `nobody.invalid`" in str(failure)


def test_what_waits_is_fetched_before_the_server_ends(
    start: Starter, raw: Callable[[int], RawSilo], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "LAST_MESSAGES_SECONDS", SECONDS)
    server = start(0)
    raw(1).deliver(parcel(kind=STATUS).frames())
    server.transport.send_message(message(FINISH, 0, 1))
    ending = threading.Thread(target=server.stop)
    ending.start()
    wait_until(server.transport._stopped.is_set)
    assert len(raw(1).fetch()) == 1
    ending.join(SECONDS)
    assert not ending.is_alive()


def test_a_silo_that_is_not_there_is_told_at_once(start: Starter) -> None:
    server = start(0)
    with pytest.raises(SiloAwayError, match="silo-2 is not connected"):
        server.transport.send_message(message(CHECK, 0, 2))


def test_the_second_process_of_a_silo_ends_the_first(start: Starter) -> None:
    server, first = start(0), start(1)
    second = start(1)
    assert "start each silo once" in str(first.failures.get(timeout=60))
    still_works(server, second)


# Who is let in


def test_without_a_certificate_nobody_gets_in(start: Starter, config: SecureGrpcConfig) -> None:
    server, silo = start(0), start(1)
    assert refused(lambda: RawSilo(config, None).deliver(parcel().frames()))[0] is grpc.StatusCode.UNAVAILABLE
    plain = grpc.insecure_channel(config.server_address)
    status, _ = refused(lambda: plain.stream_unary(DELIVER)(parcel().frames(), timeout=5))
    assert status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    still_works(server, silo)


def test_a_certificate_of_another_authority_is_refused(
    start: Starter, config: SecureGrpcConfig, other_certificates: Path
) -> None:
    server, silo = start(0), start(1)
    foreign = config.model_copy(update={"certificates": other_certificates})
    outsider = RawSilo(config, read_credentials(foreign, 1))
    assert refused(lambda: outsider.deliver(parcel().frames()))[0] is grpc.StatusCode.UNAVAILABLE
    still_works(server, silo)


def test_a_silo_does_not_trust_a_server_of_another_authority(
    start: Starter, config: SecureGrpcConfig, other_certificates: Path
) -> None:
    start(0, config.model_copy(update={"certificates": other_certificates}))
    silo = start(1, ready=False)
    failure = silo.failures.get(timeout=60)
    assert isinstance(failure, ConfigError)
    assert "ca.pem does not vouch for" in str(failure)


def test_a_silo_does_not_trust_another_silo_as_server(config: SecureGrpcConfig, start: Starter) -> None:
    impostor = grpc.server(ThreadPoolExecutor(1))
    two = read_credentials(config, 2)
    tls = grpc.ssl_server_credentials([(two.key, two.certificate)], two.authority, require_client_auth=True)
    impostor.add_secure_port(config.server_address, tls)
    impostor.start()
    try:
        failure = start(1, ready=False).failures.get(timeout=60)
        assert isinstance(failure, ConfigError)
    finally:
        impostor.stop(None)


def test_a_silo_cannot_speak_for_another(
    start: Starter, raw: Callable[[int], RawSilo], caplog: pytest.LogCaptureFixture
) -> None:
    server, silo = start(0), start(1)
    status, reason = refused(lambda: raw(2).deliver(parcel(sender=1).frames()))
    assert status is grpc.StatusCode.PERMISSION_DENIED
    assert reason == "silo-2 sent a message in the name of silo-1"
    assert reason in caplog.text
    status, _ = refused(lambda: raw(2).deliver(parcel(sender=0).frames()))
    assert status is grpc.StatusCode.PERMISSION_DENIED
    still_works(server, silo)


def test_a_silo_more_than_the_federation_has_is_refused(start: Starter, raw: Callable[[int], RawSilo]) -> None:
    server, silo = start(0), start(1)
    status, reason = refused(lambda: raw(NUM_SILOS + 1).deliver(parcel(sender=NUM_SILOS + 1).frames()))
    assert status is grpc.StatusCode.PERMISSION_DENIED
    assert "`silo-3` is no silo's of this federation of 2" in reason
    still_works(server, silo)


def test_the_server_s_certificate_is_no_silo_s(start: Starter, config: SecureGrpcConfig) -> None:
    server, silo = start(0), start(1)
    with_its_certificate = RawSilo(config, read_credentials(config, 0))
    assert refused(lambda: with_its_certificate.deliver(parcel().frames()))[0] is grpc.StatusCode.UNAVAILABLE
    still_works(server, silo)


def test_the_token_is_asked_for(start: Starter, config: SecureGrpcConfig, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("a-token-of-many-characters\n")
    asking = config.model_copy(update={"token_file": secret})
    server, silo = start(0, asking), start(1, asking)
    for token in (None, "", "another-token-of-characters", "a-token-of-many-character"):
        peer = RawSilo(config, read_credentials(config, 1), token)
        assert refused(lambda peer=peer: peer.deliver(parcel().frames()))[0] is grpc.StatusCode.UNAUTHENTICATED
        assert refused(peer.fetch)[0] is grpc.StatusCode.UNAUTHENTICATED
    without = start(2, ready=False)
    assert isinstance(without.failures.get(timeout=60), ConfigError)
    with pytest.raises(ConfigError, match="silo-2 shows no token"):
        without.transport.send_message(message(STATUS, 2, 0))
    still_works(server, silo)


# What is refused of those who are in


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "expected an envelope"),
        ([b"\x80\x04N."], "malformed envelope"),
        ([b"x" * (1 << 17)], "expected an envelope of 1 to 65536 bytes, found 131072"),
        (parcel(payload_bytes=2**50, payload_key="model_params").frames(), "max_message_mb allows 4"),
        (parcel(b"abc", payload_bytes=4).frames(), "ended after 3 of the 4 bytes"),
        (parcel(b"abc", payload_bytes=2).frames(), "a frame of 3 bytes after 0 of the 2"),
        (parcel(b"abc", payload_bytes=0).frames(), "declared no payload"),
        (parcel(params={"sender": 2}).frames(), "stands for what the envelope says elsewhere"),
        (parcel(b"abc", payload_key="sender").frames(), "`sender` cannot be a payload"),
        (parcel(payload_bytes=3).frames(), "without the name of its parameter"),
        (parcel(receiver=2).frames(), "a message for rank 2"),
        (parcel(kind=READY).frames(), "server's own connection"),
    ],
)
def test_what_is_no_message_is_refused_and_nobody_hears_of_it(
    start: Starter, raw: Callable[[int], RawSilo], frames: Iterable[bytes], reason: str
) -> None:
    server, silo = start(0), start(1)
    status, said = refused(lambda: raw(1).deliver(iter(frames)))
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert reason in said
    still_works(server, silo)


def test_a_call_without_a_deadline_is_refused(start: Starter, raw: Callable[[int], RawSilo]) -> None:
    start(0)
    status, reason = refused(lambda: raw(1).deliver(parcel().frames(), timeout=None))
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert "deadline" in reason


def test_a_replayed_message_is_dropped(
    start: Starter, raw: Callable[[int], RawSilo], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = start(0)
    peer = raw(1)
    for counter in (1, 3, 3, 2, 1):
        assert peer.deliver(parcel(counter=counter, params={"n": counter}).frames()) == b""
    peer.deliver(parcel(counter=1, session="1" * 32, params={"n": "next start"}).frames())
    assert [server.next().get("n") for _ in range(3)] == [1, 3, "next start"]
    assert server.nothing_else()
    assert caplog.text.count("it is here already") == 3


def test_a_stream_that_breaks_off_is_dropped_and_may_be_repeated(
    start: Starter, raw: Callable[[int], RawSilo], caplog: pytest.LogCaptureFixture
) -> None:
    server = start(0)
    whole = parcel(os.urandom(2 * FRAME_BYTES))
    go_on = threading.Event()

    def half() -> Iterator[bytes]:
        frames = whole.frames()
        yield next(frames)
        yield next(frames)
        go_on.wait(SECONDS)

    broken = begun(lambda: raw(1), half)
    assert refused(lambda: raw(1).deliver(whole.frames()))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED  # one at a time
    broken.cancel()
    go_on.set()
    ended = "silo-1 ended early|silo-1 .*: the message ended after"  # whichever is seen first
    wait_until(lambda: re.search(ended, caplog.text))
    assert server.nothing_else()
    raw(1).deliver(whole.frames())
    assert server.next().get("model_params") == whole.payload


def test_a_silo_cannot_fill_the_server_s_memory(start: Starter, raw: Callable[[int], RawSilo]) -> None:
    server = start(0)
    payload = bytes(MAX_MESSAGE_MB * MIB)
    raw(1).deliver(parcel(payload, counter=1).frames())
    assert refused(lambda: raw(1).deliver(parcel(payload, counter=2).frames()))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    raw(1).deliver(parcel(counter=3).frames())  # a small one still fits
    raw(2).deliver(parcel(payload, sender=2).frames())  # as does another silo's
    for _ in range(3):
        server.next()
    gc.collect()
    raw(1).deliver(parcel(payload, counter=4).frames())
    assert server.next().get("model_params") == payload


def test_compressed_frames_are_refused_unopened(start: Starter, raw: Callable[[int], RawSilo]) -> None:
    server = start(0)
    bomb = [next(parcel(bytes(MIB)).frames()), bytes(64 * MIB)]  # 64 KiB on the wire, below any limit of a frame
    status, _ = refused(lambda: raw(1).deliver(iter(bomb), compression=grpc.Compression.Gzip))
    assert status is grpc.StatusCode.UNIMPLEMENTED
    assert server.nothing_else()


def test_a_silo_that_stops_reading_takes_only_its_own_place(start: Starter, raw: Callable[[int], RawSilo]) -> None:
    server, other = start(0), start(2)
    raw(1).deliver(parcel(kind=STATUS).frames())
    server.next()
    server.transport.send_message(message(MODEL, 0, 1, model_params=bytes(MAX_MESSAGE_MB * MIB)))
    calls = []
    for _ in range(2):  # each is being sent the message before the next comes, or it would make room for that
        calls.append(raw(1).begin_fetch())
        next(calls[-1])
    calls += [raw(1).begin_fetch() for _ in range(28)]
    wait_until(lambda: sum(not call.is_active() for call in calls) >= 28)
    server.transport.send_message(message(MODEL, 0, 2, model_params=b"for two"))
    assert other.next().get("model_params") == b"for two"
    assert refused(raw(1).fetch)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED  # so two calls hold on to their places
    ended = [call.code() for call in calls if not call.is_active()]
    assert ended.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == len(ended) == 28
    for call in calls:
        call.cancel()
    assert start(1).next().get("model_params") == bytes(MAX_MESSAGE_MB * MIB)  # it tries until they have ended


@pytest.mark.parametrize("method", [DELIVER, FETCH, TRY_UP, TRY_DOWN])
def test_strangers_that_say_nothing_take_nobody_s_place(start: Starter, config: SecureGrpcConfig, method: str) -> None:
    server, silo = start(0), start(1)
    nobody = read_credentials(config, NUM_SILOS + 1)
    calls = [
        peer.begin_wordless(method)
        for peer in [RawSilo(config, nobody, options=OWN_CONNECTION) for _ in range(CONNECTIONS)]
        for _ in range(8)
    ]
    still_works(server, silo)
    assert {refused(lambda call=call: next(call))[0] for call in calls} == {grpc.StatusCode.PERMISSION_DENIED}


def test_a_silo_that_says_nothing_takes_only_its_own_place(start: Starter, config: SecureGrpcConfig) -> None:
    server, other = start(0), start(2)
    own = read_credentials(config, 1)
    calls = [
        peer.begin_wordless(method)
        for peer in [RawSilo(config, own, options=OWN_CONNECTION) for _ in range(CONNECTIONS)]
        for method in (DELIVER, FETCH, TRY_UP, TRY_DOWN) * 2
    ]
    wait_until(lambda: sum(call.done() for call in calls) == len(calls) - HELD)
    other.transport.send_message(message(STATUS, 2, 0, client_status="ONLINE"))
    assert server.next().get_sender_id() == 2
    server.transport.send_message(message(CHECK, 0, 2))
    assert other.next().get_type() == CHECK


def test_a_silo_that_calls_too_often_is_told_so(clock: Clock, start: Starter, raw: Callable[[int], RawSilo]) -> None:
    server, other = start(0, clock=clock), start(2)
    peer = raw(1)
    with pytest.raises(grpc.RpcError) as caught:  # noqa: PT012  # one of them, no matter which
        for counter in range(1, 10_000):
            peer.deliver(parcel(counter=counter, kind=STATUS).frames())
            server.next()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "more than 50 times a second" in caught.value.details()
    assert counter > CALLS_AT_ONCE
    other.transport.send_message(message(STATUS, 2, 0))
    assert server.next().get_sender_id() == 2
    clock.now += 0.2
    peer.deliver(parcel(counter=counter, kind=STATUS).frames())
    assert server.next().get_sender_id() == 1


@pytest.mark.nightly
def test_a_silo_that_delivers_too_much_is_told_so(clock: Clock, start: Starter, raw: Callable[[int], RawSilo]) -> None:
    server = start(0, clock=clock)
    peer, other, payload = raw(1), raw(2), bytes(MAX_MESSAGE_MB * MIB)
    with pytest.raises(grpc.RpcError) as caught:  # noqa: PT012  # one of them, no matter which
        for counter in range(1, 100):
            peer.deliver(parcel(payload, counter=counter).frames())
            server.next()
            other.deliver(parcel(counter=counter, kind=STATUS, sender=2).frames())
            server.next()  # so the server has let go of the one before it
            gc.collect()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "more bytes a second" in caught.value.details()
    assert counter > LARGEST_AT_ONCE


def test_the_log_tells_of_some_refused_calls_not_of_all(
    clock: Clock, start: Starter, config: SecureGrpcConfig, caplog: pytest.LogCaptureFixture
) -> None:
    start(0, clock=clock)
    peer = RawSilo(config, read_credentials(config, NUM_SILOS + 1))
    said = {refused(lambda: peer.deliver(parcel().frames())) for _ in range(200)}
    assert {status for status, _ in said} == {grpc.StatusCode.PERMISSION_DENIED}
    assert caplog.text.count("is no silo's of this federation") == REFUSALS_AT_ONCE


def test_what_cannot_travel_is_refused_where_it_is_sent(start: Starter) -> None:
    start(0)
    silo = start(1)
    with pytest.raises(ProtocolError, match=r"plain values besides its payload: `params.weights"):
        silo.transport.send_message(message(UPLOAD, 1, 0, weights={"w": 1}))
    with pytest.raises(ProtocolError, match="one payload of bytes; this one has a, b"):
        silo.transport.send_message(message(UPLOAD, 1, 0, a=b"1", b=b"2"))
    with pytest.raises(ProtocolError, match=r"a message of 5 MiB; .*max_message_mb allows 4"):
        silo.transport.send_message(message(UPLOAD, 1, 0, model_params=bytes(MAX_MESSAGE_MB * MIB + 1)))


def test_two_servers_do_not_share_a_port(start: Starter, config: SecureGrpcConfig) -> None:
    start(0)
    with pytest.raises(ConfigError, match=f"cannot listen on {config.server_address}"):
        start(0)


# Large messages


@pytest.mark.nightly
def test_a_message_of_one_and_a_half_gib_passes_both_ways(start: Starter, config: SecureGrpcConfig) -> None:
    roomy = config.model_copy(update={"max_message_mb": 2048})
    server, silo = start(0, roomy), start(1, roomy)
    payload = os.urandom(MIB) * 1536
    silo.transport.send_message(message(UPLOAD, 1, 0, model_params=payload))
    assert server.next(120).get("model_params") == payload
    gc.collect()
    server.transport.send_message(message(MODEL, 0, 1, model_params=payload))
    assert silo.next(120).get("model_params") == payload
