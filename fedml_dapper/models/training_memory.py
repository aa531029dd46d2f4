"""Memory that training a network takes, counted and not measured.

Counted are weights, gradients, optimizer state, the tensors that autograd saves for the backward pass, the holes
between these (``holes``), and the gradients of one layer's input and output. Parameters without ``requires_grad`` have
neither gradients nor optimizer state, and what runs before the first one that has some saves nothing. The loss is taken
for one that keeps logarithms of all probabilities, as cross-entropy does. Left out are what operations take within
themselves, the interpreter and its libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from fedml_dapper.inputs import Inputs, count, expanded, mapped, tensors_of
from fedml_dapper.models.adopt import bare
from fedml_dapper.models.compiled import uncompiled
from fedml_dapper.models.holes import Change, HeapChanges, Holes

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
    holes: Holes
    """Memory between the saved tensors that was freed and is too small for others."""

    def saved(self, batch_size: int) -> int:
        """Return the bytes that autograd holds for the backward pass of a batch."""
        return round(self.saved_always + batch_size * self.saved_per_sample)

    def running(self, batch_size: int) -> float:
        """Return the bytes that a backward pass of a batch holds at most, beside weights, gradients and optimizer."""
        return self.saved(batch_size) + self.holes.lost(batch_size) + batch_size * self.working_per_sample

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
    small, large = (forward_memory(model, expanded(example, size)) for size in (_SMALL, _LARGE))
    slope = (large.saved - small.saved) / (_LARGE - _SMALL)
    return NetworkMemory(
        weights=_bytes(model.state_dict().values()),
        gradients=_bytes(parameters),
        optimizer=_remembered(parameters, optimizer),
        saved_per_sample=slope,
        saved_always=small.saved - _SMALL * slope,
        working_per_sample=2 * large.largest / _LARGE,
        holes=Holes.of(small.changes, large.changes, (_SMALL, _LARGE)),
    )


@dataclass(frozen=True)
class ForwardMemory:
    """What a forward pass of one batch takes, beside parameters and buffers."""

    saved: int
    """Bytes that autograd saves."""
    largest: int
    """Those of the largest saved tensor that grows with the batch."""
    changes: tuple[Change, ...]
    """Blocks that were taken and given back on the way."""


def forward_memory(model: nn.Module, inputs: Inputs) -> ForwardMemory:
    """Run ``model`` and a loss forward and return what that takes."""
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

    given = mapped(inputs, torch.clone)
    known = own | {tensor.untyped_storage().data_ptr() for tensor in tensors_of(given)}
    with uncompiled(bare(model)), HeapChanges(known) as heap, saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = model(given)
        logarithms = outputs.reshape(len(outputs), -1).log_softmax(dim=1)
    del outputs, logarithms
    saved = sum(storage.nbytes() for storage in held.values())
    return ForwardMemory(saved, max(of_samples), tuple(heap.changes))


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
