"""What a client trains on and what everyone is tested on, a batch at a time."""

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
from fedml_dapper.seeding import Stream, torch_generator

if TYPE_CHECKING:
    from typing_extensions import Self


class DomainData(ABC):
    """Samples of one domain. Iterating gives every one once, in order and not augmented, where they lie."""

    domain: str

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """How many."""

    @abstractmethod
    def take(self, indices: Tensor) -> Self:
        """The same with the samples at ``indices`` int64 (M,) alone."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Self:
        """The same with its samples resident on ``device``, where they are held in memory."""

    @abstractmethod
    def __iter__(self) -> Iterator[Batch]:
        """Every sample once, as a ``DataLoader`` would."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of batches that iterating yields."""


class ClientData(DomainData):
    """The training samples of one client, as methods see them.

    Its batches depend on nothing but ``(seed, client_id, round, epoch)``: any method, runner or device sees the same.
    """

    client_id: int

    @property
    @abstractmethod
    def labels(self) -> Tensor | None:
        """The classes of all samples, int64 (N,); None where a target is something else than one class."""

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int:
        """Number of batches that :meth:`batches` yields."""

    @abstractmethod
    def batches(self, round: int, epoch: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """Shuffled batches of one epoch, augmented where the data says how, on ``device``."""


class TestData(DomainData):
    """Test samples of one domain, in order and not augmented."""

    __test__ = False  # the name would make pytest collect it

    @abstractmethod
    def batches(self, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """Every sample once, on ``device``."""


@dataclass(frozen=True, eq=False)
class ClientSamples(ClientData):
    """A client that holds :class:`Samples`.

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
        for indices in torch.split(order, self.batch_size)[: self.steps_per_epoch]:
            yield samples.draw(indices, generator)

    def __iter__(self) -> Iterator[Batch]:
        return self.samples.batches(self.batch_size)

    def __len__(self) -> int:
        return ceil(self.num_samples / self.batch_size)


@dataclass(frozen=True, eq=False)
class TestSamples(TestData):
    """Test data that are :class:`Samples`."""

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
    """What a client's own model is tested on; ``validation`` where the partition sets samples aside for it."""

    test: TestData
    validation: TestData | None = None

    def to(self, device: torch.device | str) -> ClientTests:
        """The same with its samples resident on ``device``."""
        return ClientTests(self.test.to(device), None if self.validation is None else self.validation.to(device))
