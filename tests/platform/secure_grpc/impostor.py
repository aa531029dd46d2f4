"""Somebody with a silo's certificate, who answers the server's model with whatever a test wants."""

from __future__ import annotations

import json
import pickle
import random
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.federation import Agreement, ClientSide, Codec, Experiment
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.operations.credentials import read_credentials

from .raw_silo import MODEL, STATUS, RawSilo, parcel


class Crafted:
    """Whoever loads its pickle makes a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self._file,)


class Impostor:
    """Takes the place of silo ``rank``. Raises what gRPC raises when the server is away."""

    def __init__(self, config: SecureGrpcConfig, rank: int, experiment: Experiment) -> None:
        self._raw = RawSilo(config, read_credentials(config, rank))
        self._rank = rank
        self._codec = Codec(experiment.method.problem.layout, Agreement.of(experiment))
        self._experiment = experiment
        self._session, self._counter = secrets.token_hex(16), 0
        self.ticket = ""
        """Of the last model."""

    def come_online(self, life: str | None = None) -> None:
        self.say(kind=STATUS, params={"client_status": "ONLINE", "life": life or self._session})

    def say_goodbye(self) -> None:
        self.say(kind=STATUS, params={"client_status": "FINISHED", "life": self._session})

    def model(self, seconds: float) -> Downlink | None:
        """The next round's model; None where the server sends none in so many seconds, as it has perhaps ended."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            envelope, *payload = self._raw.fetch(left)
            fields = json.loads(envelope)
            if fields["kind"] == MODEL:
                self.ticket = fields["params"]["ticket"]
                downlink, _ = self._codec.decode(b"".join(payload))
                assert isinstance(downlink, Downlink)
                return downlink
        return None

    def trained(self, downlink: Downlink) -> Upload:
        """What the silo itself would answer, of a method that remembers nothing."""
        return ClientSide(self._experiment).update(downlink, self._experiment.clients[downlink.client_id])

    def encoded(self, upload: Upload) -> bytes:
        return self._codec.encode(upload)

    def answer(self, payload: bytes, ticket: str | None = None) -> None:
        """Send ``payload`` as the upload for the last model, or the one with ``ticket``."""
        self.say(payload, params={"ticket": ticket or self.ticket})

    def say(self, payload: bytes = b"", **changes: object) -> None:
        self._counter += 1
        message = parcel(payload, sender=self._rank, session=self._session, counter=self._counter, **changes)
        self._raw.deliver(message.frames())


Garbage = Callable[[random.Random, Impostor, Upload], bytes]


def garbage(made: Path, num_clients: int) -> Mapping[str, Garbage]:
    """Payloads no server may take, by name; loading the pickle among them would make the file ``made``."""
    return {
        "noise": lambda chance, _, __: chance.randbytes(chance.randrange(1, 100_000)),
        "a pickle": lambda _, __, ___: pickle.dumps(Crafted(made)),
        "cut off": lambda chance, sender, upload: _cut(chance, sender.encoded(upload)),
        "flipped bits": lambda chance, sender, upload: _flipped(chance, sender.encoded(upload)),
        "not finite": lambda _, sender, upload: sender.encoded(_filled(upload, float("nan"))),
        "huge": lambda _, sender, upload: sender.encoded(_filled(upload, 1e30)),
        "another client's": lambda _, sender, upload: sender.encoded(
            replace(upload, client_id=(upload.client_id + 1) % num_clients)
        ),
        # not of the next one: that may have opened when it arrives, and then it is in form
        "of a round to come": lambda _, sender, upload: sender.encoded(replace(upload, round=upload.round + 1000)),
        "more samples than it has": lambda _, sender, upload: sender.encoded(
            replace(upload, num_samples=1000 * upload.num_samples)
        ),
    }


def _cut(chance: random.Random, message: bytes) -> bytes:
    return message[: chance.randrange(1, len(message))]


def _flipped(chance: random.Random, message: bytes) -> bytes:
    damaged = bytearray(message)
    for place in chance.sample(range(len(damaged)), 8):
        damaged[place] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def _filled(upload: Upload, value: float) -> Upload:
    weights = {
        name: torch.full_like(tensor, value) if tensor.is_floating_point() else tensor
        for name, tensor in upload.weights.items()
    }
    return replace(upload, weights=weights)
