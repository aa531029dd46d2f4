"""What every data set becomes: a suite of domains, each a training and a test set of uint8 images in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedml_dapper.config import PartitionName
from fedml_dapper.datasets.preprocessing import Preprocessing, resize
from fedml_dapper.errors import DataError


@dataclass(frozen=True, eq=False)
class ImageSet:
    """``images`` uint8 (N, 3, H, W) and their ``labels`` int64 (N,), on one device."""

    images: Tensor
    labels: Tensor

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
        """Do the three channels share one buffer? Copies keep it so, for a third of the memory."""
        return self.images.stride(1) == 0

    def take(self, indices: Tensor) -> ImageSet:
        """The samples at ``indices`` int64 (M,), in that order, as a copy."""
        indices = indices.to(self.labels.device)
        if self.is_grey:
            return ImageSet(self.images[indices, :1].expand(-1, 3, -1, -1), self.labels[indices])
        return ImageSet(self.images[indices], self.labels[indices])

    def to(self, device: torch.device | str) -> ImageSet:
        """The same samples on ``device``; no copy when they are there already."""
        return ImageSet(self.images.to(device), self.labels.to(device))


def concatenate(image_sets: Sequence[ImageSet]) -> ImageSet:
    """The samples of all ``image_sets``, in order; where these differ in size, all at the largest."""
    side = max(max(samples.images.shape[2:]) for samples in image_sets)
    if len({samples.images.shape[2:] for samples in image_sets}) > 1:
        image_sets = [ImageSet(resize(samples.images, side), samples.labels) for samples in image_sets]
    labels = torch.cat([samples.labels for samples in image_sets])
    if all(samples.is_grey for samples in image_sets):
        grey = torch.cat([samples.images[:, :1] for samples in image_sets])
        return ImageSet(grey.expand(-1, 3, -1, -1), labels)
    return ImageSet(torch.cat([samples.images for samples in image_sets]), labels)


@dataclass(frozen=True, eq=False)
class Domain:
    """One way the classes can look, e.g. ``usps``; ``is_subset`` when it is not the published data set in full."""

    name: str
    train: ImageSet
    test: ImageSet
    source: str
    """Where the images came from, for result records; never an absolute path."""
    is_subset: bool

    def merged(self) -> ImageSet:
        """All images of the domain, training set first."""
        return concatenate([self.train, self.test])

    def merged_labels(self) -> Tensor:
        """The labels of :meth:`merged`, without touching its images."""
        return torch.cat([self.train.labels, self.test.labels])


@dataclass(frozen=True, eq=False)
class Suite:
    """Domains that share their classes, and how a federation uses them."""

    name: str
    domains: tuple[Domain, ...]
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    client_share: float
    """Share of its domain's training set that one client holds, unless the settings say otherwise."""
    swap_in_missing_classes: bool
    """Whether a client gets a sample of every class its domain has."""
    partition: PartitionName = "domain_shares"
    """Who holds what, unless the settings say otherwise."""
    remarks: tuple[str, ...] = ()
    """In what the images differ from the published benchmark, beside being a subset."""

    @property
    def label(self) -> str:
        """The name to print beside results; says so when they cannot be compared with published ones."""
        remarks = ["subset"] if any(domain.is_subset for domain in self.domains) else []
        remarks += self.remarks
        return f"{self.name} ({', '.join(remarks)})" if remarks else self.name

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def input_size(self) -> int:
        """Height and width of the images, in pixels."""
        return self.preprocessing.input_size
