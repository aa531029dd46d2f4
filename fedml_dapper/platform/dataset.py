"""An experiment's data as FedML's eight-part dataset tuple."""

from __future__ import annotations

from itertools import chain
from typing import TypeAlias

from fedml_dapper.datasets import ClientData, TestData
from fedml_dapper.federation import Experiment

FedMLDataset: TypeAlias = tuple[
    int, int, list[ClientData], list[TestData], dict[int, int], dict[int, ClientData], dict[int, TestData], int
]
"""(train samples, test samples, all training data, all test data, samples per client, training data per client, test
data per client, classes); the data objects iterate over (images, labels) batches as a DataLoader does."""


def fedml_dataset(experiment: Experiment) -> FedMLDataset:
    """``experiment``'s data in FedML's order."""
    clients, tests, own = experiment.clients, experiment.tests, experiment.client_tests
    return (
        sum(client.num_samples for client in clients),
        sum(test.num_samples for test in tests),
        list(chain(clients)),
        list(chain(tests)),
        {client.client_id: client.num_samples for client in clients},
        {client.client_id: client for client in clients},
        {client.client_id: mine.test for client, mine in zip(clients, own, strict=True)},
        experiment.num_classes,
    )
