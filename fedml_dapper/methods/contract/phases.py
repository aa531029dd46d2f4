"""Phases of a client's local round, for estimates of memory, time and energy."""

from __future__ import annotations

from dataclasses import dataclass

from fedml_dapper.pruning import PruningPlan

BACKWARD = 2
"""Multiply-accumulates of a backward pass relative to the forward pass: gradients of inputs and of weights."""


@dataclass(frozen=True)
class Pass:
    """A run of a network over a batch."""

    plan: PruningPlan
    """Part of the global model that the network is."""
    backward: bool = True
    """Whether gradients are taken; :data:`BACKWARD` times the forward pass's multiply-accumulates more."""
    trained: frozenset[str] | None = None
    """Parameters that get gradients, by name; all where None."""


@dataclass(frozen=True)
class Phase:
    """Epochs whose steps are all alike."""

    epochs: float
    """Number of epochs; a fraction where steps of several kinds take turns."""
    passes: tuple[Pass, ...]
    """Passes of each step, one after the other: first the network that the optimizer steps, then those beside it.
    All have their weights in memory meanwhile."""


def forward_only(plan: PruningPlan, epochs: float = 1) -> Phase:
    """Epochs in which a network runs over a client's samples and learns nothing."""
    return Phase(epochs, (Pass(plan, backward=False),))
