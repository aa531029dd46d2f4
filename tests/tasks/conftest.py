"""Small federations on tensors made on the spot, whatever their shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import Settings
from fedml_dapper.datasets import Batch, ClientData, ClientTests, TestData
from fedml_dapper.federation import Experiment
from fedml_dapper.methods import ClientProfile, Problem, build_method
from fedml_dapper.models import Backbone
from fedml_dapper.seeding import Stream, torch_generator
from fedml_dapper.tasks import build_task

Samples = tuple[Tensor, Tensor]
"""Inputs and targets."""


@dataclass(frozen=True, eq=False)
class Samplewise:
    """Samples of a client, or of a test set, in batches of 16."""

    domain: str
    samples: Samples
    client_id: int = 0

    @property
    def num_samples(self) -> int:
        return len(self.samples[0])

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.num_samples // 16)

    def to(self, device: object) -> Samplewise:
        del device
        return self

    def batches(self, *place: Any) -> Iterator[Batch]:
        """In order for a test set; shuffled for a client, whose place is (round, epoch, device)."""
        order = torch.arange(self.num_samples)
        if len(place) == 3:
            generator = torch_generator(1, Stream.BATCHES, self.client_id, *place[:2])
            order = torch.randperm(self.num_samples, generator=generator)
        for indices in torch.split(order, 16):
            yield Batch(*(part[indices] for part in self.samples))

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def __len__(self) -> int:
        return self.steps_per_epoch


@pytest.fixture
def federation(tiny_settings: Callable[..., Settings]) -> Callable[..., Experiment]:
    """``federation(model, {domain: (train, test)}, "key=value", ...)``: one client a domain, levels 1 and 5 in turn."""

    def make(model: Backbone, domains: Mapping[str, tuple[Samples, Samples]], *overrides: str) -> Experiment:
        number = len(domains)
        counts = (f"client_num_in_total={number}", f"client_num_per_round={number}")
        settings = tiny_settings("method=fedavg", *counts, *overrides)
        training, levels = settings.train_args, settings.dapper_args.levels.ratios
        problem = Problem(
            backbone=model,
            input_size=next(iter(domains.values()))[0][0].shape[-1],
            training=training,
            pruning=settings.dapper_args.pruning,
            uniform_weights=False,
            seed=1,
            ratios=levels,
            task=build_task(training),
        )
        clients = [Samplewise(domain, train, index) for index, (domain, (train, _)) in enumerate(domains.items())]
        tests = cast("list[TestData]", [Samplewise(domain, test) for domain, (_, test) in domains.items()])
        profiles = tuple(
            ClientProfile(c.client_id, c.domain, 1 + 4 * (i % 2), levels[4 * (i % 2)], c.num_samples)
            for i, c in enumerate(clients)
        )
        return Experiment(
            settings=settings,
            method=build_method(settings.dapper_args, problem),
            clients=tuple(cast("list[ClientData]", clients)),
            profiles=profiles,
            tests=tuple(tests),
            validations=(),
            client_tests=tuple(ClientTests(test) for test in tests),
            unseen=None,
            suite_label="made on the spot",
            num_classes=2,
            device=torch.device("cpu"),
            notes=(),
        )

    return make
