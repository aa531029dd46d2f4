"""Everyone's data as FedML's eight-part dataset tuple."""

from __future__ import annotations

from typing import TypeAlias

from fedml_dapper.datasets import ClientData, Division, TestData

FedMLDataset: TypeAlias = tuple[
    int, int, list[ClientData], list[TestData], dict[int, int], dict[int, ClientData], dict[int, TestData], int
]
"""(train samples, test samples, all training data, all test data, samples per client, training data per client, test
data per client, classes); the data objects iterate over (images, labels) batches as a DataLoader does."""


def fedml_dataset(division: Division, num_classes: int) -> FedMLDataset:
    """``division`` in FedML's order."""
    clients = division.clients
    tests = division.domain_tests
    return (
        sum(client.num_samples for client in clients),
        sum(test.num_samples for test in tests),
        list(clients),
        list(tests),
        {client.client_id: client.num_samples for client in clients},
        {client.client_id: client for client in clients},
        {client.client_id: own.test for client, own in zip(clients, division.client_tests, strict=True)},
        num_classes,
    )
