"""What every data set becomes: a suite of domains, each with samples for training and for testing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedml_dapper.datasets.preprocessing import Preprocessing
from fedml_dapper.datasets.samples import Samples
from fedml_dapper.inputs import Inputs

PARTS = ("train", "test", "validation")
"""What a domain's parts are called."""


@dataclass(frozen=True, eq=False)
class Domain:
    """One way the classes can look, e.g. ``usps``; ``is_subset`` when it is not the published data set in full."""

    name: str
    train: Samples
    test: Samples
    source: str
    """Where the samples came from, for result records; never an absolute path."""
    is_subset: bool
    validation: Samples | None = None
    """For choosing rounds and settings; nobody trains or is tested on them."""
    notes: tuple[str, ...] = ()
    """What reading the samples came upon."""

    @property
    def parts(self) -> tuple[Samples, ...]:
        """For training, for testing and, where there are any, for validation."""
        return (self.train, self.test) if self.validation is None else (self.train, self.test, self.validation)

    def merged(self) -> Samples:
        """All samples of the domain, in the order of its :attr:`parts`."""
        first, *others = self.parts
        return first.joined(others)

    def merged_labels(self) -> Tensor | None:
        """The labels of :meth:`merged`, without touching its samples; None where there are none."""
        labels = [samples.labels for samples in self.parts if samples.labels is not None]
        return torch.cat(labels) if len(labels) == len(self.parts) else None


@dataclass(frozen=True, eq=False)
class Suite:
    """Domains that share their classes, and how a federation uses them."""

    name: str
    domains: tuple[Domain, ...]
    classes: tuple[str, ...]
    client_share: float | None
    """Share of its domain's training set that one client holds, unless the settings say otherwise; None where the
    clients of a domain share it evenly."""
    swap_in_missing_classes: bool
    """Whether a client gets a sample of every class its domain has."""
    partition: str = "domain_shares"
    """Who holds what, unless the settings say otherwise."""
    remarks: tuple[str, ...] = ()
    """In what the images differ from the published benchmark, beside being a subset."""
    notes: tuple[str, ...] = ()
    """What reading the data came upon, to be logged."""
    empty_example: Inputs | None = None
    """A batch of one input, for a suite without domains, which has none to show."""
    preprocessing: Preprocessing | None = None
    """From pictures to input; None where samples are something else, or come as input."""

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
    def example(self) -> Inputs:
        """A batch of one input, on the CPU, as networks get it."""
        if self.domains:
            return self.domains[0].train.example
        assert self.empty_example is not None
        return self.empty_example
