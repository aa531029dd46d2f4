"""Damaged and forged messages; ``benchmarks/fuzz_messages.py`` sends 100,000 of them."""

from __future__ import annotations

import json
import random
import resource
import time
import tracemalloc

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.fuzz_messages import Target, damaged, forged, main
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import framed

FUZZED = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.build()


def test_what_was_not_changed_is_accepted(target: Target) -> None:
    assert [target.outcome(message) for message in target.messages] == ["unchanged", "unchanged"]


@FUZZED
@given(rng=st.randoms())
def test_damaged_messages_are_refused_or_mean_the_same(target: Target, rng: random.Random) -> None:
    assert target.outcome(damaged(rng, *target.messages)) in ("refused", "unchanged")


@FUZZED
@given(rng=st.randoms())
def test_forged_messages_are_refused_or_in_form(target: Target, rng: random.Random) -> None:
    target.outcome(forged(rng, *target.messages))  # anything but a ProtocolError comes through


def test_without_the_checksum_damage_would_be_taken_for_weights(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above can fail: a mantissa's bit is as good as another to everything but the checksum."""
    changed = bytearray(target.messages[0])
    changed[-1000] ^= 1
    assert target.outcome(bytes(changed)) == "refused"
    monkeypatch.setattr("fedml_dapper.federation.wire.codec._digest", lambda *parts: bytes(changed[4:36]))
    assert target.outcome(bytes(changed)) == "different"


def body_of(listed: dict[str, object], data: bytes = b"", size: int | None = None) -> bytes:
    text = json.dumps(listed).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


HOSTILE_BODIES = {
    "a list of 2**64 - 1 bytes": body_of({}, size=2**64 - 1),
    "a list of 99 MB": body_of({}, size=99_000_000),
    "2**62 values": body_of({"float32": entry([2**62], 0, 2**64)}),
    "a petabyte that is not there": body_of({"float32": entry([2**48], 0, 2**50)}, b"\0" * 64),
    "sizes whose product overflows": body_of({"float32": entry([2**33, 2**33], 0, 0)}),
    "an empty tensor of huge shape": body_of({"extra/x": entry([0, 2**62], 0, 0)}),
    "negative sizes": body_of({"float32": entry([-1, -1], 0, 4)}, b"\0" * 4),
    "values shared by two tensors": body_of({"float32": entry([1], 0, 4), "extra/x": entry([1], 0, 4)}, b"\0" * 4),
    "20,000 empty tensors": body_of({f"extra/{number}": entry([0], 0, 0) for number in range(15_000)}),
    "a deep nest": (10_000).to_bytes(8, "little") + b"[" * 10_000,
}
HOSTILE_HEADERS = {
    "a deep nest": b'{"memory": ' + b"[" * 500_000 + b"]" * 500_000 + b"}",
    "a number of a million digits": b'{"round": ' + b"9" * 1_000_000 + b"}",
    "half a million lists": b'{"memory": {"a": [' + b"[]," * 330_000 + b"[]]}}",
    "a million characters of a name": b'{"omitted": ["' + b"a" * 1_000_000 + b'"]}',
    "bytes that are no text": b"\xff" * 1000,
}


def measured(target: Target, message: bytes) -> tuple[float, float, float]:
    """Seconds of computing, MB of Python's memory and MB of the process's that refusing ``message`` took."""
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            target.codec.decode(message)
        peak = tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()
    return time.thread_time() - started, peak, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


@pytest.mark.parametrize("what", HOSTILE_BODIES)
def test_small_bodies_cannot_ask_for_much(target: Target, what: str) -> None:
    message = target.messages[0]
    size = int.from_bytes(message[36:40], "little")
    seconds, traced, resident = measured(target, framed(message[40 : 40 + size], HOSTILE_BODIES[what]))
    assert seconds < 2
    assert traced < 64
    assert resident < 128


@pytest.mark.parametrize("what", HOSTILE_HEADERS)
def test_small_headers_cannot_ask_for_much(target: Target, what: str) -> None:
    seconds, traced, resident = measured(target, framed(HOSTILE_HEADERS[what], b""))
    assert seconds < 2
    assert traced < 64
    assert resident < 256


def test_the_script_counts_and_ends_well() -> None:
    result = CliRunner().invoke(main, ["--messages", "200"])
    assert result.exit_code == 0, result.output
    assert "damaged" in result.stdout
    assert result.stdout.count("crashed 0") == 2
