"""What a client or a domain holds, sample by sample, whatever the samples are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedml_dapper.inputs import Inputs, rows


class Batch(NamedTuple):
    """``inputs``: what a network takes, (B, ...), or several of these; for images float32 (B, 3, S, S), normalised.
    ``targets``: what it is to say of them, (B, ...); for classification the classes, int64 (B,)."""

    inputs: Inputs
    targets: Tensor

    def pieces(self, size: int) -> Iterator[Batch]:
        """The same samples, at most ``size`` at a time."""
        for start in range(0, len(self.targets), size):
            piece = slice(start, start + size)
            yield Batch(rows(self.inputs, piece), self.targets[piece])


class Samples(ABC):
    """Samples in a fixed order, each an input and its target, and what makes a batch of them."""

    labels: Tensor | None
    """The classes, int64 (N,); None where a target is something else than one class."""

    @abstractmethod
    def __len__(self) -> int:
        """How many."""

    @property
    @abstractmethod
    def example(self) -> Inputs:
        """A batch of one input, on the CPU: its shapes and dtypes are those of all others."""

    @property
    @abstractmethod
    def first(self) -> Batch:
        """The first sample as a batch on the CPU, with nothing random."""

    @abstractmethod
    def take(self, indices: Tensor) -> Samples:
        """The samples at ``indices`` int64 (M,), in that order."""

    def view(self, indices: Tensor) -> Samples:
        """The same as :meth:`take`, without a copy where there can be one."""
        return self.take(indices)

    @abstractmethod
    def split(self, sizes: Sequence[int]) -> list[Samples]:
        """Consecutive parts of these ``sizes``, which add up to all; nothing is copied."""

    @abstractmethod
    def joined(self, others: Sequence[Samples]) -> Samples:
        """These samples and then those of ``others``, which are of the same kind."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Samples:
        """The same samples with their batches on ``device``."""

    @abstractmethod
    def draw(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """A batch to train on, the samples at ``indices``; what is random in it comes from ``generator`` alone."""

    @abstractmethod
    def pictures(self, indices: Tensor) -> Tensor | None:
        """The samples at ``indices`` as people look at them, uint8 (M, 3, H, W); None where they are no pictures."""

    @abstractmethod
    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Every sample once, in order, with nothing random."""
