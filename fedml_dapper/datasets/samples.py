"""Samples of a client or a domain, whatever their kind, and batches of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedml_dapper.inputs import Inputs, rows


class Batch(NamedTuple):
    """Inputs and targets of some samples."""

    inputs: Inputs
    """What a network takes, (B, ...), or several such tensors; for images float32 (B, 3, S, S), normalised."""
    targets: Tensor
    """What it should predict, (B, ...); for classification the classes, int64 (B,)."""

    def pieces(self, size: int) -> Iterator[Batch]:
        """Yield the same samples, at most ``size`` at a time."""
        for start in range(0, len(self.targets), size):
            piece = slice(start, start + size)
            yield Batch(rows(self.inputs, piece), self.targets[piece])


class Samples(ABC):
    """Samples in a fixed order, each an input and its target, which make batches."""

    labels: Tensor | None
    """Classes, int64 (N,); None where a target is something else than one class."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of samples."""

    @property
    @abstractmethod
    def example(self) -> Inputs:
        """A batch of one input, on the CPU, with the shapes and dtypes of all others."""

    @property
    @abstractmethod
    def first(self) -> Batch:
        """The first sample as a batch on the CPU, the same at every call."""

    @abstractmethod
    def take(self, indices: Tensor) -> Samples:
        """Return the samples at ``indices`` int64 (M,), in that order."""

    def view(self, indices: Tensor) -> Samples:
        """Return the samples at ``indices`` as :meth:`take` does, without a copy if possible."""
        return self.take(indices)

    @abstractmethod
    def split(self, sizes: Sequence[int]) -> list[Samples]:
        """Return consecutive parts of these ``sizes``, which add up to all samples; nothing is copied."""

    @abstractmethod
    def joined(self, others: Sequence[Samples]) -> Samples:
        """Return these samples followed by those of ``others``, which are of the same kind."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Samples:
        """Return the same samples with their batches on ``device``."""

    @abstractmethod
    def draw(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Return the samples at ``indices`` as a batch to train on; augmentation is drawn from ``generator`` alone."""

    def draw_each(self, batches: Sequence[Tensor], generator: torch.Generator) -> Iterator[Batch]:
        """Yield what :meth:`draw` returns for the indices of one batch after another."""
        for indices in batches:
            yield self.draw(indices, generator)

    @abstractmethod
    def pictures(self, indices: Tensor) -> Tensor | None:
        """Return the samples at ``indices`` as pictures, uint8 (M, 3, H, W); None where they are none."""

    @abstractmethod
    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield every sample once, in order, the same at every call."""
