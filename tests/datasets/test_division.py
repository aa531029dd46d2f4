from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedml_dapper.config import DataArgs
from fedml_dapper.datasets import Division, Suite, divide, partition
from fedml_dapper.errors import ConfigError

MakeSuite = Callable[..., Suite]


def divided(suite: Suite, num_clients: int, **settings: Any) -> Division:
    return divide(suite, DataArgs(dataset="small", **settings), num_clients, batch_size=4, seed=1)


def rows(images: torch.Tensor) -> list[tuple[int, ...]]:
    return sorted(tuple(image.flatten().tolist()) for image in images)


def test_shares_of_domains_are_tested_on_their_domains(small_suite: MakeSuite) -> None:
    suite = small_suite([100, 40])
    division = divided(suite, 5)
    expected = partition(suite, 5, None, seed=1)
    assert [client.domain for client in division.clients] == [f"d{domain}" for domain in expected.domains]
    assert [client.samples.labels.tolist() for client in division.clients] == [
        suite.domains[domain].train.labels[held].tolist()
        for domain, held in zip(expected.domains, expected.indices, strict=True)
    ]
    assert [test.samples for test in division.domain_tests] == [domain.test for domain in suite.domains]
    for domain, tests in zip(expected.domains, division.client_tests, strict=True):
        assert tests.test is division.domain_tests[domain]
        assert tests.validation is None
    assert division.notes == expected.notes


def test_a_domain_each_is_split_in_three(small_suite: MakeSuite) -> None:
    suite = small_suite([96, 46])
    division = divided(suite, 2, partition="one_per_domain")
    for domain, client, tests, of_domain in zip(
        suite.domains, division.clients, division.client_tests, division.domain_tests, strict=True
    ):
        assert tests.validation is not None
        assert client.domain == tests.test.domain == tests.validation.domain == of_domain.domain == domain.name
        parts = [client.samples, tests.validation.samples, tests.test.samples]
        assert rows(torch.cat([part.images for part in parts])) == rows(domain.merged().images)
        assert torch.equal(of_domain.samples.images, tests.test.samples.images)
        assert torch.equal(of_domain.samples.labels, tests.test.samples.labels)
    assert [client.client_id for client in division.clients] == [0, 1]
    assert [len(client.samples) for client in division.clients] == [80, 40]


def test_a_data_set_is_tested_on_all_its_clients_test_halves(small_suite: MakeSuite) -> None:
    suite = small_suite([300])
    division = divided(suite, 4, partition="dirichlet", dirichlet_alpha=1.0)
    [of_domain] = division.domain_tests
    tests = [entry.test.samples for entry in division.client_tests]
    assert torch.equal(of_domain.samples.images, torch.cat([samples.images for samples in tests]))
    assert torch.equal(of_domain.samples.labels, torch.cat([samples.labels for samples in tests]))
    training = torch.cat([client.samples.images for client in division.clients])
    assert rows(torch.cat([training, of_domain.samples.images])) == rows(suite.domains[0].merged().images)
    assert all(entry.validation is None for entry in division.client_tests)
    # a client's test images are a piece of the domain's, not a copy
    assert tests[1].images.untyped_storage().data_ptr() == of_domain.samples.images.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partition": "dirichlet"}, "data_args.partition dirichlet needs data_args.dirichlet_alpha: "),
        (
            {"dirichlet_alpha": 0.1},
            "data_args.dirichlet_alpha .0.1. needs data_args.partition dirichlet .it is domain_shares.",
        ),
        (
            {"partition": "one_per_domain", "client_order": "official"},
            "data_args.client_order .* needs data_args.partition domain_shares .it is one_per_domain.",
        ),
        (
            {"partition": "dirichlet", "dirichlet_alpha": 0.1, "max_clients_per_domain": 3},
            "data_args.max_clients_per_domain .3. needs data_args.partition domain_shares .it is dirichlet.",
        ),
    ],
)
def test_settings_of_another_partition_are_refused(
    small_suite: MakeSuite, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        divided(small_suite([400]), 1, **settings)
