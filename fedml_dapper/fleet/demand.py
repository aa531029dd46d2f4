"""Demand of a level: peak memory of training, multiply-accumulates and bytes each way of a client's round.

Memory is counted, not measured: the received message, and what training takes (``models/training_memory.py``) at the
batch size or that of its pieces. Left out is what a method keeps beside networks (control variates, prototypes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedml_dapper.methods import ClientProfile, Method, Pass, Phase
from fedml_dapper.methods.contract.local_training import training_memory
from fedml_dapper.models.training_memory import NetworkMemory


@dataclass(frozen=True)
class Work:
    """Training steps of one kind in a round."""

    epochs: float
    macs: tuple[int, ...]
    """Multiply-accumulates per sample of each network that runs in a step, backward passes included."""


@dataclass(frozen=True)
class Demand:
    """What a client of a level needs for a round."""

    level: int
    ratio: float
    memory_bytes: int
    """Peak of training at the batch size."""
    work: tuple[Work, ...]
    bytes_down: int
    bytes_up: int

    @property
    def round_macs(self) -> int:
        """Multiply-accumulates of a whole local round for each of the client's samples."""
        return round_macs(self.work)


def local_work(method: Method[Any], profile: ClientProfile) -> tuple[Work, ...]:
    """Return the training steps of a client like ``profile`` in a round."""
    return tuple(
        Work(phase.epochs, tuple(method.pass_macs(one) for one in phase.passes))
        for phase in method.local_phases(profile)
    )


def round_macs(work: Iterable[Work]) -> int:
    """Return the multiply-accumulates of ``work`` for each of the client's samples."""
    return round(sum(one.epochs * sum(one.macs) for one in work))


def demands(method: Method[Any]) -> tuple[Demand, ...]:
    """Return the demand of every capability level whose clients train, strongest first."""
    ratios = enumerate(method.problem.ratios, start=1)
    counter = DemandCounter(method)
    return tuple(counter.demand(level, ratio) for level, ratio in ratios if method.takes_part(level))


class DemandCounter:
    """Counts demands, and each network's memory only once, however many levels run it."""

    def __init__(self, method: Method[Any]) -> None:
        self._method = method
        self._known = dict[object, NetworkMemory]()

    def demand(self, level: int, ratio: float) -> Demand:
        """Return the demand of a client that prunes by ``ratio``."""
        method = self._method
        profile = ClientProfile(0, "", level, ratio, 0)
        phases = method.local_phases(profile)
        cost = method.footprint(ratio)
        return Demand(
            level=level,
            ratio=ratio,
            memory_bytes=cost.bytes_down + max(self._peak(phase) for phase in phases),
            work=local_work(method, profile),
            bytes_down=cost.bytes_down,
            bytes_up=cost.bytes_up,
        )

    def _peak(self, phase: Phase) -> int:
        """Peak memory of a phase: all networks' weights, what the trained one needs besides, and the largest pass."""
        batch = self._method.problem.training.samples_at_a_time
        passes = [(self._memory(one), one.backward) for one in phase.passes]
        trained, has_backward = passes[0]
        held = sum(memory.weights for memory, _ in passes) + (trained.gradients + trained.optimizer) * has_backward
        running = (memory.running(batch) for memory, backward in passes if backward)
        return held + round(max(running, default=0))

    def _memory(self, one: Pass) -> NetworkMemory:
        key = (tuple(sorted(one.plan.widths.items())), one.plan.omitted, one.trained)
        if key not in self._known:
            self._known[key] = network_memory(self._method, one)
        return self._known[key]


def network_memory(method: Method[Any], one: Pass) -> NetworkMemory:
    """Count the memory of training the network of a pass, in fp32."""
    return training_memory(method.pass_model(one), method.problem.example, method.problem.training)
