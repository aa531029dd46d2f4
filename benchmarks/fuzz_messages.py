"""What a server makes of messages that are damaged or forged.

    python -m benchmarks.fuzz_messages --messages 100000 --seed 1

Each message is a valid upload with one to four seeded mutations, decoded and then checked as the server would. Damaged
ones are as a bad line leaves them: none may be taken for something else than what was sent. Forged ones have a checksum
that fits again, as a hostile sender would see to, so that they reach all checks behind it; their sender may say what it
likes as long as it is in form. Nothing but ``ProtocolError`` may come out in either case.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
import torch

from fedml_dapper.config import load_settings
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import (
    Agreement,
    ClientSide,
    Codec,
    Experiment,
    Server,
    UploadCheck,
    build_experiment,
    framed,
)
from fedml_dapper.federation.round.update_norm import UpdateNorms
from fedml_dapper.methods import Upload

DIGITS = Path(__file__).parents[1] / "config" / "digits_offline.yaml"
SMALL = (
    "width=4", "client_share=0.05", "epochs=1", "client_num_in_total=4", "client_num_per_round=4", "ratios=[0.5]",
    "dapper_args.defence.max_change=10",
)  # fmt: skip

Outcome = Literal["refused", "unchanged", "different"]
Mutation = Callable[[random.Random, bytes, bytes], bytes]
"""(randomness, message, another valid message) -> a changed message."""
_START = len(framed(b"", b""))
_NUMBERS = (-1, 0, 1, 2, 2**31, 2**62, 2**63, 2**64, 10**400, -(10**400), 0.5, 1e308)
_ODD: tuple[Any, ...] = (
    *_NUMBERS,
    None,
    True,
    "",
    "A" * 1000,
    "\0",
    [],
    {},
    [[]],
    ["conv1.weight"] * 2,
    {"a": {"b": [1]}},
)
_NEST = "deep-nest"


@dataclass(frozen=True)
class Target:
    """A server in its first round, and two valid uploads."""

    server: Server
    codec: Codec
    check: UploadCheck
    messages: tuple[bytes, bytes]
    uploads: tuple[Upload, Upload]

    @classmethod
    def build(cls) -> Target:
        """A tiny federation on the embedded suite."""
        experiment: Experiment = build_experiment(load_settings([DIGITS], list(SMALL)))
        codec = Codec(experiment.method.problem.layout, Agreement.of(experiment))
        server, clients = Server(experiment), ClientSide(experiment)
        server.round_clients()
        first, second = (clients.update(server.downlink(i), experiment.clients[i]) for i in (0, 1))
        encoded = (codec.encode(first), codec.encode(second))
        return cls(server, codec, UploadCheck(experiment), encoded, (first, second))

    def outcome(self, message: bytes) -> Outcome:
        """What the server makes of ``message``; anything but a :class:`ProtocolError` is raised."""
        try:
            received, _ = self.codec.decode(message)
            if not isinstance(received, Upload) or received.client_id >= len(self.server.state.profiles):
                return "refused"
            self.check.check_form(self.server.state, received)
            self.check.check_change(self.server.state, received, UpdateNorms())
        except ProtocolError:
            return "refused"
        self._assert_well_formed(received)
        return "unchanged" if any(same(received, upload) for upload in self.uploads) else "different"

    def _assert_well_formed(self, received: Upload) -> None:
        sent = self.uploads[0].weights
        assert received.weights.keys() == sent.keys()
        for name, tensor in received.weights.items():
            assert (tensor.shape, tensor.dtype) == (sent[name].shape, sent[name].dtype)
            assert not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def same(one: Upload, other: Upload) -> bool:
    """Whether two uploads mean the same in every respect."""
    plain = ("round", "client_id", "num_samples", "metrics", "unsliced")
    return (
        all(getattr(one, name) == getattr(other, name) for name in plain)
        and one.plan.equals(other.plan)
        and one.extras.keys() == other.extras.keys()
        and one.weights.keys() == other.weights.keys()
        and all(torch.equal(tensor, other.weights[name]) for name, tensor in one.weights.items())
    )


def damaged(rng: random.Random, message: bytes, other: bytes) -> bytes:
    """``message`` after one to four accidents."""
    for _ in range(rng.randint(1, 4)):
        message = rng.choice(ACCIDENTS)(rng, message, other)
    return message


def forged(rng: random.Random, message: bytes, other: bytes) -> bytes:
    """``message`` after one to four accidents or lies in its parts, with a checksum that fits."""
    parts = [*_split(message)]
    others = _split(other)
    for _ in range(rng.randint(1, 4)):
        which = rng.randrange(2)
        lie = (_header_lie, _body_lie)[which]
        change = rng.choice((*ACCIDENTS, *[lie] * len(ACCIDENTS)))
        parts[which] = change(rng, parts[which], others[which])
    return framed(*parts)


# Accidents, to any bytes


def _place(rng: random.Random, message: bytes) -> int:
    """Half of the time near the start, where the meaning is dense."""
    return rng.randrange(max(1, min(len(message), 2000) if rng.random() < 0.5 else len(message)))


def _flip_bit(rng: random.Random, message: bytes, other: bytes) -> bytes:
    changed, place = bytearray(message), _place(rng, message)
    if changed:
        changed[place] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _overwrite(rng: random.Random, message: bytes, other: bytes) -> bytes:
    place = _place(rng, message)
    return message[:place] + rng.randbytes(rng.randint(1, 8)) + message[place + 8 :]


def _truncate(rng: random.Random, message: bytes, other: bytes) -> bytes:
    return message[: _place(rng, message)]


def _extend(rng: random.Random, message: bytes, other: bytes) -> bytes:
    return message + rng.randbytes(rng.randint(1, 64))


def _repeat(rng: random.Random, message: bytes, other: bytes) -> bytes:
    start = _place(rng, message)
    end = start + rng.randint(1, 64)
    return message[:end] + message[start:end] + message[end:]


def _splice(rng: random.Random, message: bytes, other: bytes) -> bytes:
    place = _place(rng, message)
    length = rng.randint(1, 4096)
    return message[:place] + other[place : place + length] + message[place + length :]


def _join(rng: random.Random, message: bytes, other: bytes) -> bytes:
    return message[: _place(rng, message)] + other[_place(rng, other) :]


ACCIDENTS: tuple[Mutation, ...] = (_flip_bit, _overwrite, _truncate, _extend, _repeat, _splice, _join)


# Lies, to parts of a message


def _split(message: bytes) -> tuple[bytes, bytes]:
    size = int.from_bytes(message[_START - 4 : _START], "little")
    return message[_START : _START + size], message[_START + size :]


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _dumped(values: dict[str, Any]) -> bytes:
    nest = "[" * 5000 + "]" * 5000
    return json.dumps(values).replace(f'"{_NEST}"', nest).encode()


def _edit(rng: random.Random, values: dict[str, Any]) -> None:
    """Change, drop, copy or add one entry, at any depth."""
    places: list[tuple[dict[str, Any] | list[Any], Any]] = []
    waiting: list[Any] = [values]
    while waiting:
        node = waiting.pop()
        items = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
        places += [(node, key) for key, _ in items]
        waiting += [value for _, value in items if isinstance(value, dict | list)]
    odd = _NEST if rng.random() < 0.02 else rng.choice(_ODD)
    if not places or rng.random() < 0.2:
        values[rng.choice(("memory", "settings", "extra", "kind", ""))] = odd
        return
    node, key = rng.choice(places)
    match rng.randrange(4):
        case 0:
            del node[key]
        case 1 if isinstance(node, list):
            node.append(node[key])
        case 2 if isinstance(node[key], int) and not isinstance(node[key], bool):
            node[key] += rng.choice((-8, -1, 1, 8))
        case _:
            node[key] = odd


def _header_lie(rng: random.Random, header: bytes, other: bytes) -> bytes:
    values = _parsed(header)
    if values is None:
        return header
    _edit(rng, values)
    return _dumped(values)


def _body_lie(rng: random.Random, body: bytes, other: bytes) -> bytes:
    """Lies in the safetensors' own list of tensors, some with sizes changed to match."""
    size = int.from_bytes(body[:8], "little")
    listed, data = _parsed(body[8 : 8 + size]), body[8 + size :]
    if listed is None or rng.random() < 0.1:
        return (
            rng.choice((0, 1, abs(size - 1), size // 2, 2**20, 2**32, 2**63, 2**64 - 1)).to_bytes(8, "little")
            + body[8:]
        )
    match rng.randrange(4):
        case 0:  # another tensor, with data of its own
            count, name = rng.randint(0, 4), rng.choice(("extra/x", "memory/x", "float64", "int32", "float16"))
            listed[name] = {"dtype": "F32", "shape": [count], "data_offsets": [len(data), len(data) + 4 * count]}
            data += rng.randbytes(4 * count)
        case 1:  # none of its values, in a shape that is empty and huge
            empty = {"dtype": "F32", "shape": [0, rng.choice((1, 2**40, 2**62))], "data_offsets": [len(data)] * 2}
            listed["extra/empty"] = empty
        case 2:  # the same bytes read as other numbers
            entry = listed.get(rng.choice(sorted(listed)) if listed else "")
            if isinstance(entry, dict):
                entry["dtype"] = rng.choice(("F64", "I64", "F16", "BF16", "U8", "BOOL", "F8_E4M3", "I32", "nothing"))
                if isinstance(entry.get("shape"), list) and rng.random() < 0.5:
                    entry["shape"] = [rng.choice((1, 2, 4)), *entry["shape"]]
        case _:
            _edit(rng, listed)
    text = _dumped(listed)
    return len(text).to_bytes(8, "little") + text + data


@click.command()
@click.option("--messages", default=100_000, show_default=True, help="How many, half damaged and half forged.")
@click.option("--seed", default=1, show_default=True)
def main(messages: int, seed: int) -> None:
    """Send mutated uploads to a server and count what becomes of them."""
    torch.set_num_threads(1)
    target, mutations = Target.build(), {"damaged": damaged, "forged": forged}
    counts: Counter[tuple[str, str]] = Counter()
    slowest, memory = 0.0, partial(resource.getrusage, resource.RUSAGE_SELF)
    before, started = memory().ru_maxrss, time.perf_counter()
    for number in range(messages):
        kind = ("damaged", "forged")[number % 2]
        message = mutations[kind](random.Random(f"{seed}/{number}"), *target.messages)
        begun = time.perf_counter()
        try:
            result: str = target.outcome(message)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is a finding
            result = "crashed"
            click.echo(f"\nmessage {number} ({kind}): {type(error).__name__}: {error}", err=True)
        slowest = max(slowest, time.perf_counter() - begun)
        counts[kind, result] += 1
        if number % 1000 == 999 or number + 1 == messages:
            click.echo(f"\r{number + 1}/{messages}", nl=False, err=True)
    click.echo(err=True)
    for kind in mutations:
        row = "  ".join(
            f"{result} {counts[kind, result]}" for result in ("refused", "unchanged", "different", "crashed")
        )
        click.echo(f"{kind:8} {row}")
    seconds, grown = time.perf_counter() - started, (memory().ru_maxrss - before) / 1024
    click.echo(f"{seconds:.0f} s, slowest message {1000 * slowest:.0f} ms, memory grew by {grown:.0f} MB at its peak")
    if counts["damaged", "different"] or counts["damaged", "crashed"] or counts["forged", "crashed"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
