"""The work that every simulator is given, and how it says what it did.

A simulator is a module that is run with a file, a :class:`Work` as JSON, and a folder for its :class:`Diary`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from fedml_dapper.config import ModelArgs
from fedml_dapper.models import build_backbone

MODEL = "resnet18"
CLASSES = 10
SIDE = 32
SEED = 1
_ROUNDS_NAME = "rounds.txt"
_STEPS_NAME = "steps"
_WEIGHTS_NAME = "weights.safetensors"


@dataclass(frozen=True)
class Work:
    """Rounds of FedAvg: every client trains in each, by SGD without momentum or weight decay, and none is tested."""

    clients: int
    images: int
    """Number of pictures of each client."""
    width: int
    """Channels of the network's first layer."""
    epochs: int
    batch: int
    rounds: int
    rate: float = 0.01
    processes: int = 2
    """Clients that train at a time, each in a process of one thread."""
    device: str = "cpu"

    @classmethod
    def read(cls, path: Path) -> Work:
        """Read the work in a file of :meth:`write`."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @property
    def steps(self) -> int:
        """Steps of SGD in all rounds together."""
        return self.rounds * self.clients * self.epochs * -(-self.images // self.batch)

    def network(self) -> nn.Module:
        """Return the network with its first weights, which are the same in every process."""
        return build_backbone(ModelArgs(model=MODEL, width=self.width), CLASSES, SEED)

    def pictures(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's pictures, float32 of shape (images, 3, 32, 32), and their classes, int64."""
        generator = torch.Generator().manual_seed(client)
        pictures = torch.randn(self.images, 3, SIDE, SIDE, generator=generator)
        return pictures, torch.arange(self.images) % CLASSES

    def train(self, network: nn.Module, client: int) -> None:
        """Train ``network`` as a client does: in plain torch, for simulators that leave training to their user."""
        pictures, classes = (tensor.to(self.device) for tensor in self.pictures(client))
        network.train()
        optimizer = torch.optim.SGD(network.parameters(), lr=self.rate)
        for _ in range(self.epochs):
            for batch in self._batches():
                optimizer.zero_grad()
                F.cross_entropy(network(pictures[batch]), classes[batch]).backward()  # type: ignore[no-untyped-call]  # torch's
                optimizer.step()

    def _batches(self) -> tuple[Tensor, ...]:
        return torch.split(torch.randperm(self.images), self.batch)


class ServerSGD(torch.optim.SGD):
    """What moves a global model, for simulators that ask for an optimizer; its steps are none of a client's."""


class Diary:
    """What a simulator writes down of its run, below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._rounds = folder / _ROUNDS_NAME
        self._steps = folder / _STEPS_NAME
        self._weights = folder / _WEIGHTS_NAME

    def round_ended(self) -> None:
        """Note the time; the clock is the same in all processes of a machine."""
        with self._rounds.open("a", encoding="utf-8") as file:
            file.write(f"{time.monotonic()}\n")

    def count_steps(self) -> None:
        """Count the clients' steps of this process, and of those that it forks."""
        file = os.open(self._steps, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

        def count(optimizer: Optimizer, *_: object) -> None:
            if not isinstance(optimizer, ServerSGD):
                os.write(file, b".")

        register_optimizer_step_post_hook(count)

    def keep(self, network: nn.Module) -> None:
        """Keep the parameters of the global model, without BatchNorm's statistics, which not every simulator sums."""
        save_file({name: one.detach().cpu().contiguous() for name, one in network.named_parameters()}, self._weights)

    @property
    def rounds(self) -> list[float]:
        """When each round ended, by :func:`time.monotonic`."""
        return [float(line) for line in self._rounds.read_text(encoding="utf-8").splitlines()]

    @property
    def steps(self) -> int:
        """Steps of all processes."""
        return self._steps.stat().st_size

    @property
    def weights(self) -> dict[str, Tensor]:
        return load_file(self._weights)


def given() -> tuple[Work, Path]:
    """Return what this process was started with: the work, and the folder for its diary."""
    return Work.read(Path(sys.argv[1])), Path(sys.argv[2])


@cache
def network_of_process(work: Work, folder: Path) -> nn.Module:
    """Return the one network in which this process trains, by one thread; its steps are counted from now on."""
    torch.set_num_threads(1)
    Diary(folder).count_steps()
    return work.network().to(work.device)
