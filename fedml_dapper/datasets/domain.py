"""Suites of domains with training and test samples: the form that every data set is brought to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedml_dapper.datasets.preprocessing import Preprocessing
from fedml_dapper.datasets.samples import Samples
from fedml_dapper.inputs import Inputs

PARTS = ("train", "test", "validation")
"""Names of a domain's parts."""


@dataclass(frozen=True, eq=False)
class Domain:
    """Samples in which the classes look one way, e.g. ``usps``."""

    name: str
    train: Samples
    test: Samples
    source: str
    """Origin of the samples, for result records; never an absolute path."""
    is_subset: bool
    """Whether it is less than the published data set."""
    validation: Samples | None = None
    """Samples for choosing rounds and settings; nobody trains or is tested on them."""
    notes: tuple[str, ...] = ()
    """Messages on what was noticed while reading the samples."""

    @property
    def parts(self) -> tuple[Samples, ...]:
        """Samples for training, for testing and, where there are any, for validation."""
        return (self.train, self.test) if self.validation is None else (self.train, self.test, self.validation)

    def merged(self) -> Samples:
        """Return all samples of the domain, in the order of its :attr:`parts`."""
        first, *others = self.parts
        return first.joined(others)

    def merged_labels(self) -> Tensor | None:
        """Return the labels of :meth:`merged`, without touching its samples; None without labels."""
        labels = [samples.labels for samples in self.parts if samples.labels is not None]
        return torch.cat(labels) if len(labels) == len(self.parts) else None


@dataclass(frozen=True, eq=False)
class Suite:
    """Domains that share their classes, and how a federation uses them."""

    name: str
    domains: tuple[Domain, ...]
    classes: tuple[str, ...]
    client_share: float | None
    """Share of its domain's training set that one client holds, unless the settings say otherwise. None where the
    clients of a domain share it evenly."""
    swap_in_missing_classes: bool
    """Whether a client gets a sample of every class its domain has."""
    partition: str = "domain_shares"
    """Name of the partition, unless the settings say otherwise."""
    remarks: tuple[str, ...] = ()
    """Differences between the images and the published benchmark, beside being a subset."""
    notes: tuple[str, ...] = ()
    """Messages on what was noticed while reading the data, to be logged."""
    empty_example: Inputs | None = None
    """A batch of one input, for a suite without domains."""
    preprocessing: Preprocessing | None = None
    """Transforms from pictures to input; None where samples are something else, or come as input."""

    @property
    def label(self) -> str:
        """The name to print beside results; it says so when they cannot be compared with published ones."""
        remarks = ["subset"] if any(domain.is_subset for domain in self.domains) else []
        remarks += self.remarks
        return f"{self.name} ({', '.join(remarks)})" if remarks else self.name

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def example(self) -> Inputs:
        """A batch of one input, on the CPU, as networks get it."""
        if self.domains:
            return self.domains[0].train.example
        assert self.empty_example is not None
        return self.empty_example
