"""Demand of a level: peak memory of training, multiply-accumulates and bytes each way of a client's round.

Memory is counted, not measured: the received message, weights, gradients, optimizer state, the tensors that autograd
saves for the backward pass, and the gradients of one layer's input and output, at the batch size or that of its pieces.
Left out are the loss itself, other working memory of layers, the interpreter and its libraries, and what a method keeps
beside networks (control variates, prototypes).
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
"""Multiply-accumulates of a backward pass relative to the forward pass: gradients of inputs and of weights."""
_SMALL = 2
_LARGE = 3
"""Two batch sizes, which tell the part of saved memory that grows with the batch from the part that does not."""


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
        Work(
            phase.epochs,
            tuple(method.model_size(one.plan)[1] * (1 + BACKWARD * one.backward) for one in phase.passes),
        )
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
        passes = [(self._memory(one.plan), one.backward) for one in phase.passes]
        trained, has_backward = passes[0]
        held = sum(memory.weights for memory, _ in passes) + (trained.gradients + trained.optimizer) * has_backward
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
    """Parameters and buffers."""
    gradients: int
    optimizer: int
    saved_per_sample: float
    """Tensors saved for the backward pass, per sample of the batch."""
    saved_always: float
    """Tensors saved for the backward pass, whatever the batch."""
    working_per_sample: float
    """Gradients, per sample, of the layer where the backward pass holds most: those of its input and of its output,
    each as large as the largest saved tensor."""

    def saved(self, batch_size: int) -> int:
        """Return the bytes that autograd holds for the backward pass of a batch."""
        return round(self.saved_always + batch_size * self.saved_per_sample)


def network_memory(method: Method[Any], plan: PruningPlan) -> NetworkMemory:
    """Count the memory of the network that ``plan`` leaves, in fp32. It is run forward twice, on small batches."""
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
    """Return the bytes that autograd saves in a forward pass, and those of its largest tensor.

    Parameters and buffers are left out; the largest tensor is one that grows with the batch.
    """
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
    """Bytes of optimizer state of ``parameters``."""
    optimizer = new_optimizer(method.problem.training, parameters, rate=0.0)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    states = optimizer.state.values()
    return _bytes(tensor for state in states for tensor in state.values() if isinstance(tensor, Tensor))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
