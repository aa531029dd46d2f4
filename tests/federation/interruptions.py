"""Runs that are cut short, and what must come out of them all the same."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedml_dapper.config import Settings
from fedml_dapper.federation import (
    LEDGER_NAME,
    MODEL_NAME,
    RoundRecord,
    RunObserver,
    Server,
    build_experiment,
    simulate,
)
from fedml_dapper.federation.run_folder.checkpoint import Checkpoint
from fedml_dapper.methods import Memory
from fedml_dapper.pruning import Tensors

SECONDS = re.compile(r'"seconds":(\{[^}]*\}|[0-9.e-]+)')
FEW = (
    "width=8", "client_num_in_total=4", "client_num_per_round=3", "client_share=0.03", "epochs=2", "batch_size=16",
    "comm_round=4", "checkpoint_every=1", "image_size=16",
)  # fmt: skip
"""A run of four rounds that takes a second; two epochs, as some methods do different things in them."""


class Stop(RunObserver):
    """Interrupts the last client of a round after its first step: the others have trained and remember it."""

    def __init__(self, round_: int) -> None:
        self._round = round_
        self._last: int | None = None

    def round_started(self, round_: int, client_ids: Sequence[int]) -> None:
        self._last = client_ids[-1] if round_ == self._round else None

    def client_stepped(self, client_id: int, done: int, total: int) -> None:
        if client_id == self._last:
            raise KeyboardInterrupt


def run_until(round_: int, settings: Settings, run_dir: Path) -> None:
    """Begin a run or go on with it, and interrupt it in the middle of ``round_``."""
    try:
        simulate(build_experiment(settings), [Stop(round_)], run_dir, resume=True)
    except KeyboardInterrupt:
        return
    raise AssertionError("it was not interrupted")


def resumed(settings: Settings, run_dir: Path) -> tuple[Server, list[RoundRecord]]:
    """Go on in what might be another process: nothing is left of the first but its files."""
    torch.manual_seed(12345)
    np.random.seed(12345)
    random.seed(12345)
    return simulate(build_experiment(settings), run_dir=run_dir, resume=True)


def ledger_of(run_dir: Path) -> str:
    return SECONDS.sub('"seconds":0', (run_dir / LEDGER_NAME).read_text())


@dataclass(frozen=True)
class Ended:
    """A run that came to its end: what server and clients held then, and its folder, in which nothing may change."""

    held: Checkpoint
    run_dir: Path

    @property
    def rounds(self) -> list[str]:
        """The ledger but for its first line, which is about the run."""
        return ledger_of(self.run_dir).splitlines()[1:]

    @property
    def model_file(self) -> bytes:
        return (self.run_dir / MODEL_NAME).read_bytes()


def assert_same_end(first: Ended, server: Server, run_dir: Path) -> None:
    """Bit for bit the same global model, memories and ledger, the latter but for its seconds."""
    second = Ended(server.checkpoint(), run_dir)
    assert_same_held(first.held, second.held)
    assert ledger_of(first.run_dir) == ledger_of(second.run_dir)
    assert first.model_file == second.model_file


def assert_same_held(first: Checkpoint, second: Checkpoint) -> None:
    """Bit for bit the same global model and memories, which is all that a checkpoint holds but its seconds."""
    assert first.round == second.round
    assert_same_tensors(first.weights, second.weights)
    assert_same_memory(first.memory, second.memory)
    assert list(first.memories) == list(second.memories)
    for client_id, memory in first.memories.items():
        assert_same_memory(memory, second.memories[client_id])
    assert (first.best, first.best_validation) == (second.best, second.best_validation)


def assert_same_memory(first: Memory, second: Memory) -> None:
    assert_same_tensors(first.tensors, second.tensors)
    assert repr(first.values) == repr(second.values)  # also NaN, and 1 apart from 1.0


def assert_same_tensors(first: Tensors, second: Tensors) -> None:
    assert list(first) == list(second)  # sums depend on the order
    for name, tensor in first.items():
        assert (tensor.dtype, tensor.shape) == (second[name].dtype, second[name].shape), name
        assert torch.equal(bits(tensor), bits(second[name])), name


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def unfinished_in(run_dir: Path) -> list[Path]:
    """What only a write in progress may leave in a run's folder."""
    return [path for path in run_dir.rglob("*") if path.name.startswith(".")]
