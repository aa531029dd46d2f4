"""What a client trains on and what everyone is tested on, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedml_dapper.datasets.domain import ImageSet
from fedml_dapper.datasets.preprocessing import Preprocessing
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.seeding import Stream, torch_generator


class Batch(NamedTuple):
    """``inputs``: images, float32 (B, 3, S, S), normalised; ``targets``: their classes, int64 (B,)."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True, eq=False)
class ClientData:
    """The training samples of one client.

    Its batches depend on nothing but ``(seed, client_id, round, epoch)``: any method, runner or device sees the same.
    A last batch of exactly one sample is dropped, as BatchNorm cannot train on it; iterating over the object
    instead gives every sample once, in order and not augmented, as a ``DataLoader`` would.
    """

    client_id: int
    domain: str
    samples: ImageSet
    preprocessing: Preprocessing
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if self.batch_size < 2:
            raise ConfigError(f"batch_size is {self.batch_size}; BatchNorm needs batches of 2 or more")
        if len(self.samples) < 2:
            held = ("no sample", "one sample")[len(self.samples)]
            raise DataError(
                f"client {self.client_id} (domain {self.domain}) is a client with {held}; training needs 2 or more:"
                " raise data_args.client_share"
            )

    @property
    def num_samples(self) -> int:
        return len(self.samples)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches that :meth:`batches` yields."""
        full, rest = divmod(self.num_samples, self.batch_size)
        return full + (rest > 1)

    def to(self, device: torch.device | str) -> ClientData:
        """The same client with its samples resident on ``device``."""
        return replace(self, samples=self.samples.to(device))

    def batches(self, round: int, epoch: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """Shuffled, augmented batches of one epoch, on ``device``."""
        samples = self.samples.to(device)
        generator = torch_generator(self.seed, Stream.BATCHES, self.client_id, round, epoch)
        order = torch.randperm(len(samples), generator=generator)
        for indices in torch.split(order, self.batch_size)[: self.steps_per_epoch]:
            drawn = samples.take(indices)
            yield Batch(self.preprocessing.augment(drawn.images, generator), drawn.labels)

    def __iter__(self) -> Iterator[Batch]:
        return _in_order(self.samples, self.preprocessing, self.batch_size)

    def __len__(self) -> int:
        return _num_batches(self.samples, self.batch_size)


@dataclass(frozen=True, eq=False)
class TestData:
    """Test samples of one domain, in order and not augmented."""

    __test__ = False  # the name would make pytest collect it

    domain: str
    samples: ImageSet
    preprocessing: Preprocessing
    batch_size: int = 256

    @property
    def num_samples(self) -> int:
        return len(self.samples)

    def to(self, device: torch.device | str) -> TestData:
        """The same data with its samples resident on ``device``."""
        return replace(self, samples=self.samples.to(device))

    def batches(self, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """Every sample once, on ``device``."""
        return _in_order(self.samples.to(device), self.preprocessing, self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return _in_order(self.samples, self.preprocessing, self.batch_size)

    def __len__(self) -> int:
        return _num_batches(self.samples, self.batch_size)


@dataclass(frozen=True)
class ClientTests:
    """What a client's own model is tested on; ``validation`` where the partition sets samples aside for it."""

    test: TestData
    validation: TestData | None = None

    def to(self, device: torch.device | str) -> ClientTests:
        """The same with its samples resident on ``device``."""
        return ClientTests(self.test.to(device), None if self.validation is None else self.validation.to(device))


def _in_order(samples: ImageSet, preprocessing: Preprocessing, batch_size: int) -> Iterator[Batch]:
    batches = zip(torch.split(samples.images, batch_size), torch.split(samples.labels, batch_size), strict=True)
    for images, labels in batches:
        yield Batch(preprocessing.evaluate(images), labels)


def _num_batches(samples: ImageSet, batch_size: int) -> int:
    return -(-len(samples) // batch_size)
