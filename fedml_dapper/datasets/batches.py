"""Training data of clients and test data, as streams of batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedml_dapper.datasets.samples import Batch, Samples
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.randomness.seeding import Stream, torch_generator

if TYPE_CHECKING:
    from typing_extensions import Self


class DomainData(ABC):
    """Samples of one domain. Iterating yields every sample once, in order and not augmented."""

    domain: str

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """Number of samples, N."""

    @abstractmethod
    def take(self, indices: Tensor) -> Self:
        """Return the same client or domain with the samples at ``indices`` int64 (M,) alone."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Self:
        """Return the same data with its samples on ``device``, if they are kept in memory."""

    @abstractmethod
    def __iter__(self) -> Iterator[Batch]:
        """Yield every sample once, in batches on the device that holds them, as a ``DataLoader`` would."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of batches that iterating yields."""


class ClientData(DomainData):
    """The training samples of one client, as methods see them.

    Batches depend on nothing but ``(seed, client_id, round, epoch)``: every method, runner and device gets the same.
    """

    client_id: int

    @property
    @abstractmethod
    def labels(self) -> Tensor | None:
        """Classes of all samples, int64 (N,); None where a target is something else than one class."""

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int:
        """Number of batches that :meth:`batches` yields."""

    @abstractmethod
    def batches(self, round: int, epoch: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """Yield the shuffled batches of one epoch on ``device``, augmented where the data say how."""


class TestData(DomainData):
    """Test samples of one domain, in order and not augmented."""

    __test__ = False  # the name would make pytest collect it

    @abstractmethod
    def batches(self, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """Yield every sample once, in batches on ``device``."""


@dataclass(frozen=True, eq=False)
class ClientSamples(ClientData):
    """Training data of a client that holds :class:`Samples`.

    A last batch of exactly one sample is dropped, as BatchNorm cannot train on it.
    """

    client_id: int
    domain: str
    samples: Samples
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if self.batch_size < 2:
            raise ConfigError(f"batch_size is {self.batch_size}; BatchNorm needs batches of 2 or more")
        if len(self.samples) < 2:
            held = ("no sample", "one sample")[len(self.samples)]
            raise DataError(
                f"client {self.client_id} (domain {self.domain}) is a client with {held}; training needs 2 or more"
            )

    @property
    def labels(self) -> Tensor | None:
        return self.samples.labels

    @property
    def num_samples(self) -> int:
        return len(self.samples)

    @property
    def steps_per_epoch(self) -> int:
        full, rest = divmod(self.num_samples, self.batch_size)
        return full + (rest > 1)

    def take(self, indices: Tensor) -> ClientSamples:
        return replace(self, samples=self.samples.take(indices))

    def to(self, device: torch.device | str) -> ClientSamples:
        moved = self.samples.to(device)
        return self if moved is self.samples else replace(self, samples=moved)

    def batches(self, round: int, epoch: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        samples = self.samples.to(device)
        generator = torch_generator(self.seed, Stream.BATCHES, self.client_id, round, epoch)
        order = torch.randperm(len(samples), generator=generator)
        yield from samples.draw_each(torch.split(order, self.batch_size)[: self.steps_per_epoch], generator)

    def __iter__(self) -> Iterator[Batch]:
        return self.samples.batches(self.batch_size)

    def __len__(self) -> int:
        return ceil(self.num_samples / self.batch_size)


@dataclass(frozen=True, eq=False)
class TestSamples(TestData):
    """Test data that consist of :class:`Samples`."""

    domain: str
    samples: Samples
    batch_size: int = 256

    @property
    def num_samples(self) -> int:
        return len(self.samples)

    def take(self, indices: Tensor) -> TestSamples:
        return replace(self, samples=self.samples.take(indices))

    def to(self, device: torch.device | str) -> TestSamples:
        moved = self.samples.to(device)
        return self if moved is self.samples else replace(self, samples=moved)

    def batches(self, device: torch.device | str = "cpu") -> Iterator[Batch]:
        return self.samples.to(device).batches(self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return self.samples.batches(self.batch_size)

    def __len__(self) -> int:
        return ceil(self.num_samples / self.batch_size)


@dataclass(frozen=True)
class ClientTests:
    """Data that a client's own model is tested on, and validation data where the partition sets some aside."""

    test: TestData
    validation: TestData | None = None

    def to(self, device: torch.device | str) -> ClientTests:
        """Return the same data with their samples on ``device``."""
        return ClientTests(self.test.to(device), None if self.validation is None else self.validation.to(device))
