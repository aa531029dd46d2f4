"""An experiment's data as FedML's eight-part dataset tuple."""

from __future__ import annotations

from typing import TypeAlias

from fedml_dapper.datasets import ClientData, Division, TestData

FedMLDataset: TypeAlias = tuple[
    int, int, list[ClientData], list[TestData], dict[int, int], dict[int, ClientData], dict[int, TestData], int
]
"""FedML's dataset tuple: number of training samples, number of test samples, all training data, all test data, number
of samples per client, training data per client, test data per client, number of classes. The data objects iterate over
(inputs, targets) batches as a DataLoader does."""


def fedml_dataset(division: Division, num_classes: int) -> FedMLDataset:
    """Return ``division`` as FedML's tuple."""
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
