"""Adaptation without labels by information maximisation, for networks without BatchNorm.

Gains and biases of norms and of standardised convolutions move, nothing else: TENT's choice (Wang et al., ICLR 2021).
The loss of a batch is SHOT's (Liang et al., ICML 2020), L = mean H(p_i) - H(mean p_i): each prediction is to be
certain, and all of them together diverse. TENT's own loss is the first term alone, which is least where everything is
of one class; on the embedded digits it cost accuracy more often than it won any. All the same, a pass is taken back,
and is the last, where the diversity of predictions falls too far.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor, nn

from fedml_dapper.datasets import ClientData
from fedml_dapper.inputs import Inputs, joined, moved
from fedml_dapper.methods.contract.optimizers import uncompiled
from fedml_dapper.models import Backbone
from fedml_dapper.models.norms import WITHOUT_BATCHES
from fedml_dapper.models.standardised import StandardisedConv2d
from fedml_dapper.randomness.seeding import Stream, torch_generator

PASSES = 6
LEARNING_RATE = 1e-3
"""Learning rate of Adam, as TENT has it for small images."""
BATCH = 64
"""Number of samples over which diversity is measured in a step; fewer would not hold all classes."""
LEAST_DIVERSITY = 0.9
"""Share of the diversity before the adaptation that has to be left."""


@dataclass(frozen=True)
class Adaptation:
    """Outcome of an adaptation; entropies are means over the samples, in nats."""

    passes: int
    """Number of passes that were kept; 0 where the model is as before."""
    before: float
    after: float


def gains_and_biases(model: nn.Module) -> list[nn.Parameter]:
    """Parameters that :func:`maximise_information` moves."""
    found: list[nn.Parameter] = []
    for layer in model.modules():
        if isinstance(layer, StandardisedConv2d):
            found += [parameter for name, parameter in layer.named_parameters() if name != "weight"]
        elif isinstance(layer, WITHOUT_BATCHES):
            found += list(layer.parameters())
    return found


def maximise_information(model: Backbone, data: ClientData, device: torch.device, seed: int) -> Adaptation:
    """Adapt a classifier to the inputs of ``data``, whose labels are not looked at; ``model`` itself changes."""
    model.to(device).eval().requires_grad_(False)
    moving = gains_and_biases(model)
    for parameter in moving:
        parameter.requires_grad_()
    optimizer = uncompiled(torch.optim.Adam)(moving, LEARNING_RATE)
    before, diversity = _look(model, data, device)
    after = before
    kept = 0
    for number in range(1, PASSES + 1):
        known = [parameter.detach().clone() for parameter in moving]
        for inputs in _shuffled(data, torch_generator(seed, Stream.METHOD, number)):
            shares = model(moved(inputs, device)).softmax(dim=1)
            optimizer.zero_grad()
            (_entropy(shares).mean() - _entropy(shares.mean(dim=0))).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        certainty, left = _look(model, data, device)
        if not left >= LEAST_DIVERSITY * diversity:  # also where it is no number any more
            with torch.no_grad():
                for parameter, value in zip(moving, known, strict=True):
                    parameter.copy_(value)
            break
        after = certainty
        kept = number
    model.requires_grad_()
    return Adaptation(kept, before, after)


def _shuffled(data: ClientData, generator: torch.Generator) -> Iterator[Inputs]:
    """Batches of about the same size with all inputs once, in random order."""
    order = torch.randperm(data.num_samples, generator=generator)
    for indices in torch.chunk(order, ceil(data.num_samples / BATCH)):
        yield joined([inputs for inputs, _ in data.take(indices)])


@torch.no_grad()
def _look(model: Backbone, data: ClientData, device: torch.device) -> tuple[float, float]:
    """Mean entropy of the predictions, and their diversity: the entropy of their mean."""
    shares = torch.cat([model(moved(inputs, device)).softmax(dim=1) for inputs, _ in data])
    return float(_entropy(shares).mean()), float(_entropy(shares.mean(dim=0)))


def _entropy(shares: Tensor) -> Tensor:
    """Entropy over the last axis, in nats."""
    entropy: Tensor = torch.special.entr(shares).sum(dim=-1)
    return entropy
