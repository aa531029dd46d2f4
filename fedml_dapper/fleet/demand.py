"""What a client of a level needs for a round: peak memory of training, multiply-accumulates, bytes each way.

Memory is counted, not measured: the message that was received, weights, gradients, what the optimizer remembers, the
tensors that autograd saves for the backward pass, and the gradients of one layer's input and output, at the batch size
or that of its pieces. What is left out: the loss
itself, other working space of layers, the interpreter and its libraries, and what a method keeps beside networks
(control variates, prototypes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from fedml_dapper.inputs import Inputs, count, expanded, mapped, tensors_of
from fedml_dapper.methods import ClientProfile, Method, Phase
from fedml_dapper.methods.contract.local_training import new_optimizer
from fedml_dapper.pruning import PruningPlan

BACKWARD = 2
"""Multiply-accumulates of a backward pass over those of its forward pass: gradients of inputs and of weights."""
_SMALL = 2
_LARGE = 3
"""Two batch sizes: what is saved grows in proportion to the batch, but for what does not depend on it."""


@dataclass(frozen=True)
class Work:
    """Steps of one kind in a round."""

    epochs: float
    macs: tuple[int, ...]
    """Multiply-accumulates of a sample in each network that runs in a step, backward passes included."""


@dataclass(frozen=True)
class Demand:
    """What a client of a level needs."""

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
    """Of a client like ``profile`` in a round."""
    return tuple(
        Work(
            phase.epochs,
            tuple(method.model_size(one.plan)[1] * (1 + BACKWARD * one.backward) for one in phase.passes),
        )
        for phase in method.local_phases(profile)
    )


def round_macs(work: Iterable[Work]) -> int:
    """Multiply-accumulates of ``work`` for each of the client's samples."""
    return round(sum(one.epochs * sum(one.macs) for one in work))


def demands(method: Method[Any]) -> tuple[Demand, ...]:
    """Of every capability level whose clients train, strongest first."""
    ratios = enumerate(method.problem.ratios, start=1)
    counter = DemandCounter(method)
    return tuple(counter.demand(level, ratio) for level, ratio in ratios if method.takes_part(level))


class DemandCounter:
    """Counts each network once, however many levels run it."""

    def __init__(self, method: Method[Any]) -> None:
        self._method = method
        self._known = dict[object, NetworkMemory]()

    def demand(self, level: int, ratio: float) -> Demand:
        """Of a client that prunes by ``ratio``."""
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
        """All networks' weights, gradients and what is remembered of the trained one, and the pass that holds most."""
        batch = self._method.problem.training.samples_at_a_time
        passes = [(self._memory(one.plan), one.backward) for one in phase.passes]
        trained, steps = passes[0]
        held = sum(memory.weights for memory, _ in passes) + (trained.gradients + trained.optimizer) * steps
        running = (memory.saved(batch) + batch * memory.working_per_sample for memory, backward in passes if backward)
        return held + round(max(running, default=0))

    def _memory(self, plan: PruningPlan) -> NetworkMemory:
        key = (tuple(sorted(plan.widths.items())), plan.omitted)
        if key not in self._known:
            self._known[key] = network_memory(self._method, plan)
        return self._known[key]


@dataclass(frozen=True)
class NetworkMemory:
    """Bytes that training a network takes."""

    weights: int
    """Buffers included."""
    gradients: int
    optimizer: int
    saved_per_sample: float
    saved_always: float
    working_per_sample: float
    """Gradients of the layer where the backward pass holds most: of its input and of its output, each as large as the
    largest tensor that is saved."""

    def saved(self, batch_size: int) -> int:
        """What autograd holds for the backward pass of a batch."""
        return round(self.saved_always + batch_size * self.saved_per_sample)


def network_memory(method: Method[Any], plan: PruningPlan) -> NetworkMemory:
    """Of the network that ``plan`` leaves, in fp32; it runs forward twice, on small batches."""
    model = method.local_model(plan).train()
    example = method.problem.example
    model.to(tensors_of(example)[0].device)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    (small, _), (large, largest) = (_saved_bytes(model, expanded(example, size)) for size in (_SMALL, _LARGE))
    slope = (large - small) / (_LARGE - _SMALL)
    return NetworkMemory(
        weights=_bytes(model.state_dict().values()),
        gradients=_bytes(parameters),
        optimizer=_remembered(method, parameters),
        saved_per_sample=slope,
        saved_always=small - _SMALL * slope,
        working_per_sample=2 * largest / _LARGE,
    )


def _saved_bytes(model: nn.Module, inputs: Inputs) -> tuple[int, int]:
    """Memory behind what autograd saves in a forward pass of ``inputs``, but for parameters and buffers; and the
    largest piece of it that grows with the batch."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    held: dict[int, torch.UntypedStorage] = {}
    of_samples = [0]
    samples = (count(inputs),)

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage
            if tensor.shape[:1] == samples:
                of_samples.append(storage.nbytes())
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = model(mapped(inputs, torch.clone))
    del outputs
    return sum(storage.nbytes() for storage in held.values()), max(of_samples)


def _remembered(method: Method[Any], parameters: list[nn.Parameter]) -> int:
    """What the optimizer of ``method`` keeps of ``parameters`` from one step to the next."""
    optimizer = new_optimizer(method.problem.training, parameters, rate=0.0)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    states = optimizer.state.values()
    return _bytes(tensor for state in states for tensor in state.values() if isinstance(tensor, Tensor))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
