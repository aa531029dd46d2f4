"""Memory that training a network takes, counted and not measured.

Counted are weights, gradients, optimizer state, the tensors that autograd saves for the backward pass, and the
gradients of one layer's input and output. Parameters without ``requires_grad`` have neither gradients nor optimizer
state, and what runs before the first one that has some saves nothing. Left out are the loss itself, other working
memory of layers, the interpreter and its libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from fedml_dapper.inputs import Inputs, count, expanded, mapped, tensors_of

_SMALL = 2
_LARGE = 3
"""Two batch sizes, which tell the part of saved memory that grows with the batch from the part that does not."""
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Function that makes the optimizer of some parameters."""


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

    def running(self, batch_size: int) -> float:
        """Return the bytes that a backward pass of a batch holds at most, beside weights, gradients and optimizer."""
        return self.saved(batch_size) + batch_size * self.working_per_sample

    def peak(self, batch_size: int) -> int:
        """Return the bytes that training by batches of this size holds at most."""
        return self.weights + self.gradients + self.optimizer + round(self.running(batch_size))


def network_memory(model: nn.Module, example: Inputs, optimizer: MakeOptimizer) -> NetworkMemory:
    """Count the memory of training ``model`` in fp32.

    It is put in training mode, and run forward twice, on small batches like ``example``, which is one of one input.
    """
    model.train()
    model.to(tensors_of(example)[0].device)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    (small, _), (large, largest) = (saved_bytes(model, expanded(example, size)) for size in (_SMALL, _LARGE))
    slope = (large - small) / (_LARGE - _SMALL)
    return NetworkMemory(
        weights=_bytes(model.state_dict().values()),
        gradients=_bytes(parameters),
        optimizer=_remembered(parameters, optimizer),
        saved_per_sample=slope,
        saved_always=small - _SMALL * slope,
        working_per_sample=2 * largest / _LARGE,
    )


def saved_bytes(model: nn.Module, inputs: Inputs) -> tuple[int, int]:
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


def _remembered(parameters: list[nn.Parameter], make: MakeOptimizer) -> int:
    """Bytes of optimizer state of ``parameters``."""
    if not parameters:
        return 0
    optimizer = make(parameters)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    states = optimizer.state.values()
    return _bytes(tensor for state in states for tensor in state.values() if isinstance(tensor, Tensor))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
