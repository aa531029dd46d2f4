from collections.abc import Callable
from pathlib import Path

import torch

from fedml_dapper.config import DataArgs
from fedml_dapper.datasets import load_suite, partition
from fedml_dapper.datasets.office_caltech import OFFICE_CALTECH


def test_split_and_client_sizes_are_those_of_the_paper(real_data: Callable[..., Path]) -> None:
    names = [f"office_caltech10_{name}.npz" for name in ("caltech", "amazon", "webcam", "dslr")]
    suite = load_suite(DataArgs(dataset="office_caltech10", data_cache_dir=real_data(*names)))
    assert [(domain.name, len(domain.train), len(domain.test)) for domain in suite.domains] == [
        ("caltech", 899, 224),
        ("amazon", 768, 190),
        ("webcam", 237, 58),
        ("dslr", 127, 30),
    ]
    assert suite.label == "office_caltech10"
    division = partition(suite, 10, None, seed=1, max_per_domain=5)
    for index, held in zip(division.domains, division.indices, strict=True):
        assert len(held) == (179, 153, 47, 25)[index]
        assert len(suite.domains[index].train.labels[held].unique()) == 10
    assert all(torch.equal(domain.train.labels.unique(), torch.arange(10)) for domain in suite.domains)


def test_the_expected_counts_are_those_of_the_split_rule() -> None:
    for recipe, total in zip(OFFICE_CALTECH.domains, (1123, 958, 295, 157), strict=True):
        train = sum(position % 10 <= 7 for position in range(total))
        assert recipe.full_size == (train, total - train)
