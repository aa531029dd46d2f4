from collections.abc import Callable
from pathlib import Path

from fedml_dapper.config import DataArgs
from fedml_dapper.datasets import load_suite, partition


def test_small_svhn_and_the_stand_in_make_a_subset(real_data: Callable[..., Path]) -> None:
    files = ("digits_mnist.npz", "digits_usps.npz", "digits_svhn_small.npz", "digits_mnistm_subset.npz")
    suite = load_suite(DataArgs(dataset="digits", data_cache_dir=real_data(*files)))
    found = [(domain.name, len(domain.train), len(domain.test), domain.is_subset) for domain in suite.domains]
    assert found == [
        ("mnist", 60_000, 10_000, False),
        ("usps", 7_291, 2_007, False),
        ("svhn", 1_083, 486, True),
        ("mnistm", 6_000, 2_000, True),
    ]
    assert suite.label == "digits (subset)"
    sizes = {600, 72, 10, 60}
    assert {len(held) for held in partition(suite, 10, None, seed=1).indices} == sizes
