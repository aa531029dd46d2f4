"""Recipes of suites: their domains, where each may come from, and how they are read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from fedml_dapper.datasets.domain import Domain, Suite
from fedml_dapper.datasets.image_set import ImageSet
from fedml_dapper.datasets.preprocessing import Preprocessing
from fedml_dapper.datasets.sources import Request, Source, Splits, TorchvisionSet
from fedml_dapper.errors import DataError


@dataclass(frozen=True)
class DomainRecipe:
    """A domain and its sources, best first."""

    name: str
    sources: tuple[Source, ...]
    full_size: tuple[int, int] | int | None = None
    """Published numbers of training and test images, or their sum where the split does not matter; with fewer images
    the domain is a subset."""
    full_side: int = 0
    """Least side of the published images in pixels, where it matters; smaller ones are reduced copies."""
    stand_in: DomainRecipe | None = None
    """Another domain that serves when no source has anything."""

    def find(self, request: Request) -> Domain | None:
        """Return the domain from the first source that has it; None where none has.

        Raises:
            DataError: The files of a source are damaged or incomplete.
        """
        for source in self.sources:
            splits = source.read(request)
            if splits is not None:
                return Domain(
                    self.name,
                    splits.train,
                    splits.test,
                    source=source.place,
                    is_subset=self._is_subset(splits),
                    validation=splits.validation,
                    notes=splits.notes,
                )
        stand_in = self.stand_in.find(request) if self.stand_in else None
        return replace(stand_in, is_subset=True) if stand_in else None

    def exists(self, root: Path) -> bool:
        """Whether :meth:`find` would find something, sound or damaged."""
        stand_in = self.stand_in is not None and self.stand_in.exists(root)
        return stand_in or any(source.exists(root) for source in self.sources)

    @property
    def places(self) -> tuple[str, ...]:
        """Every place where :meth:`find` looks, relative to the root of the data."""
        return tuple(source.place for source in self.sources) + (self.stand_in.places if self.stand_in else ())

    @property
    def can_download(self) -> bool:
        return any(isinstance(source, TorchvisionSet) for source in self.sources)

    def is_reduced(self, domain: Domain, input_size: int) -> bool:
        """Whether the images of ``domain`` lack detail that the published ones show at ``input_size``."""
        return _side(domain) < min(self.full_side, input_size)

    def _is_subset(self, splits: Splits) -> bool:
        if self.full_size is None:
            return False
        if isinstance(self.full_size, int):
            return len(splits.train) + len(splits.test) < self.full_size
        return len(splits.train) < self.full_size[0] or len(splits.test) < self.full_size[1]


@dataclass(frozen=True)
class SuiteRecipe:
    """All of a suite but its images; see :class:`Suite`."""

    name: str
    classes: tuple[str, ...]
    domains: tuple[DomainRecipe, ...]
    preprocessing: Preprocessing
    client_share: float | None
    swap_in_missing_classes: bool
    partition: str = "domain_shares"
    measured_on: Literal["training", "all"] | None = None
    """Images of the suite that give mean and standard deviation to normalise by; None for those in ``preprocessing``.
    """
    notes: tuple[str, ...] = ()

    def request(self, root: Path, download: bool = False, image_size: int | None = None) -> Request:
        """Return what to ask the sources of this suite for."""
        return Request(root, self.classes, image_size or self.preprocessing.input_size, download)

    def load(
        self, root: Path, download: bool = False, image_size: int | None = None, only: Collection[str] | None = None
    ) -> Suite:
        """Return the suite with its images.

        Args:
            root: Folder of the data.
            download: Whether to fetch missing data.
            image_size: Height and width of the input; the suite's own by default.
            only: Names of the domains to load, which may be none; all by default.

        Raises:
            DataError: A domain is nowhere below ``root``, or damaged.
        """
        request = self.request(root, download, image_size)
        wanted = tuple(domain for domain in self.domains if only is None or domain.name in only)
        domains = tuple(self._require(domain, request) for domain in wanted)
        preprocessing = replace(self.preprocessing, input_size=request.size)
        if self.measured_on is not None and domains:
            kept = slice(1) if self.measured_on == "training" else slice(2)
            preprocessing = preprocessing.fitted_to(
                samples.images for domain in domains for samples in _image_sets(domain)[kept]
            )
        return Suite(
            name=self.name,
            domains=tuple(_prepared(domain, preprocessing) for domain in domains),
            classes=self.classes,
            client_share=self.client_share,
            swap_in_missing_classes=self.swap_in_missing_classes,
            partition=self.partition,
            remarks=self._remarks(wanted, domains, request.size),
            notes=(*self.notes, *(note for domain in domains for note in domain.notes)),
            empty_example=torch.zeros(1, 3, request.size, request.size),
            preprocessing=preprocessing,
        )

    def _remarks(
        self, recipes: tuple[DomainRecipe, ...], domains: tuple[Domain, ...], input_size: int
    ) -> tuple[str, ...]:
        pairs = zip(recipes, domains, strict=True)
        reduced = [_side(domain) for recipe, domain in pairs if recipe.is_reduced(domain, input_size)]
        remarks = [f"images reduced to {min(reduced)}x{min(reduced)}"] if reduced else []
        if input_size != self.preprocessing.input_size:
            remarks.append(f"input {input_size}x{input_size}")
        return tuple(remarks)

    def _require(self, recipe: DomainRecipe, request: Request) -> Domain:
        domain = recipe.find(request)
        if domain is None:
            download = ", or data_args.download=true" if recipe.can_download and not request.download else ""
            raise DataError(
                f"{self.name}: no images of domain {recipe.name}; looked in {request.root.absolute()} for"
                f" {', '.join(recipe.places)}; set DAPPER_DATA or data_args.data_cache_dir to the folder that has"
                f" them{download} (data/README.md says how to get them)"
            )
        return domain


def _image_sets(domain: Domain) -> list[ImageSet]:
    """The domain's images for training, for testing and, where there are any, for validation."""
    sets = (domain.train, domain.test, domain.validation)
    return [samples for samples in sets if isinstance(samples, ImageSet)]


def _prepared(domain: Domain, preprocessing: Preprocessing) -> Domain:
    train, test, *rest = (replace(samples, preprocessing=preprocessing) for samples in _image_sets(domain))
    return replace(domain, train=train, test=test, validation=rest[0] if rest else None)


def _side(domain: Domain) -> int:
    return min(side for samples in _image_sets(domain) for side in samples.images.shape[2:])
