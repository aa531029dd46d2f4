"""Images in memory as uint8 pixels, cropped and flipped a whole batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedml_dapper.datasets.preprocessing import Preprocessing, resize
from fedml_dapper.datasets.samples import Batch, Samples
from fedml_dapper.errors import DataError
from fedml_dapper.process.transfers import sent_to


@dataclass(frozen=True, eq=False)
class ImageSet(Samples):
    """Images uint8 (N, 3, H, W) and labels int64 (N,) on one device, with the transforms that make them input."""

    images: Tensor
    labels: Tensor
    preprocessing: Preprocessing = field(default_factory=Preprocessing)

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or self.images.shape[1] != 3:
            raise DataError(
                f"images are {self.images.dtype} {tuple(self.images.shape)};"
                " convert them to uint8 of shape (N, 3, H, W)"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise DataError(
                f"labels are {self.labels.dtype} {tuple(self.labels.shape)};"
                f" convert them to int64 of shape ({len(self.images)},), one an image"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_grey(self) -> bool:
        """Whether the three channels share one buffer. Copies keep it so, for a third of the memory."""
        return self.images.stride(1) == 0

    @property
    def example(self) -> Tensor:
        """A black image of the size that a network gets, not normalised."""
        size = self.preprocessing.input_size
        return torch.zeros(1, 3, size, size)

    @property
    def first(self) -> Batch:
        return Batch(self.preprocessing.evaluate(self.images[:1]).cpu(), self.labels[:1].cpu())

    def take(self, indices: Tensor) -> ImageSet:
        """Copy the samples at ``indices`` int64 (M,), in that order."""
        indices = indices.to(self.labels.device)
        if self.is_grey:
            return replace(self, images=self.images[indices, :1].expand(-1, 3, -1, -1), labels=self.labels[indices])
        return replace(self, images=self.images[indices], labels=self.labels[indices])

    def view(self, indices: Tensor) -> ImageView:
        return ImageView(self, indices.to(self.labels.device))

    def split(self, sizes: Sequence[int]) -> list[Samples]:
        parts = zip(torch.split(self.images, list(sizes)), torch.split(self.labels, list(sizes)), strict=True)
        return [replace(self, images=images, labels=labels) for images, labels in parts]

    def joined(self, others: Sequence[Samples]) -> ImageSet:
        return concatenate([self, *images_of(others)])

    def to(self, device: torch.device | str) -> ImageSet:
        """Return the same samples on ``device``; the object itself when they are there already."""
        if self.labels.device == torch.device(device):
            return self
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def draw(self, indices: Tensor, generator: torch.Generator) -> Batch:
        [batch] = self.draw_each([indices], generator)
        return batch

    def draw_each(self, batches: Sequence[Tensor], generator: torch.Generator) -> Iterator[Batch]:
        together = max(1, self.preprocessing.most_at_once // max(map(len, batches), default=1))
        for first in range(0, len(batches), together):
            yield from self._drawn_together(batches[first : first + together], generator)

    def _drawn_together(self, batches: Sequence[Tensor], generator: torch.Generator) -> Iterator[Batch]:
        """Draw ``batches`` by the operations that one of them takes."""
        draws = torch.cat([self.preprocessing.draws(len(indices), generator) for indices in batches], dim=1)
        # one transfer to the device instead of two
        numbers = sent_to(torch.cat([torch.cat([*batches]).cpu()[None], draws]), self.labels.device)
        drawn = self.take(numbers[0])
        inputs = self.preprocessing.augmented(drawn.images, numbers[1:])
        sizes = [len(indices) for indices in batches]
        yield from map(Batch, torch.split(inputs, sizes), torch.split(drawn.labels, sizes))

    def pictures(self, indices: Tensor) -> Tensor:
        return self.take(indices).images

    def batches(self, batch_size: int) -> Iterator[Batch]:
        pieces = zip(torch.split(self.images, batch_size), torch.split(self.labels, batch_size), strict=True)
        for images, labels in pieces:
            yield Batch(self.preprocessing.evaluate(images), labels)


@dataclass(frozen=True, eq=False)
class ImageView(Samples):
    """The images of ``whole`` at ``places``, int64 (N,), copied only when a batch needs them."""

    whole: ImageSet
    places: Tensor

    @property
    def labels(self) -> Tensor:  # type: ignore[override]  # read-only here, as nobody sets it
        return self.whole.labels[self.places]

    def __len__(self) -> int:
        return len(self.places)

    @property
    def example(self) -> Tensor:
        return self.whole.example

    @property
    def first(self) -> Batch:
        return self.whole.take(self.places[:1]).first

    def copied(self) -> ImageSet:
        """Copy these images into a set of their own."""
        return self.whole.take(self.places)

    def take(self, indices: Tensor) -> ImageView:
        return replace(self, places=self.places[indices.to(self.places.device)])

    def split(self, sizes: Sequence[int]) -> list[Samples]:
        return [replace(self, places=places) for places in torch.split(self.places, list(sizes))]

    def joined(self, others: Sequence[Samples]) -> ImageSet:
        return self.copied().joined(others)

    def to(self, device: torch.device | str) -> Samples:
        """Return the object itself if it is on ``device``, otherwise a copy there."""
        return self if self.places.device == torch.device(device) else self.copied().to(device)

    def draw(self, indices: Tensor, generator: torch.Generator) -> Batch:
        return self.whole.draw(self.places[indices.to(self.places.device)], generator)

    def draw_each(self, batches: Sequence[Tensor], generator: torch.Generator) -> Iterator[Batch]:
        return self.whole.draw_each([self.places[each.to(self.places.device)] for each in batches], generator)

    def pictures(self, indices: Tensor) -> Tensor:
        return self.take(indices).copied().images

    def batches(self, batch_size: int) -> Iterator[Batch]:
        for places in torch.split(self.places, batch_size):
            yield from self.whole.take(places).batches(batch_size)


def images_of(samples: Sequence[Samples]) -> list[ImageSet]:
    """Return those of ``samples`` that are images in memory."""
    copied = (one.copied() if isinstance(one, ImageView) else one for one in samples)
    return [one for one in copied if isinstance(one, ImageSet)]


def concatenate(image_sets: Sequence[ImageSet]) -> ImageSet:
    """Join all ``image_sets`` in order; where they differ in size, all are resized to the largest.

    The first set's preprocessing is kept.
    """
    side = max(max(samples.images.shape[2:]) for samples in image_sets)
    if len({samples.images.shape[2:] for samples in image_sets}) > 1:
        image_sets = [replace(samples, images=resize(samples.images, side)) for samples in image_sets]
    labels = torch.cat([samples.labels for samples in image_sets])
    if all(samples.is_grey for samples in image_sets):
        images = torch.cat([samples.images[:, :1] for samples in image_sets]).expand(-1, 3, -1, -1)
    else:
        images = torch.cat([samples.images for samples in image_sets])
    return replace(image_sets[0], images=images, labels=labels)
