"""Sequences of unequal length: padded to the longest of their batch, by hand and in a data set of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedml_dapper.config import DataArgs
from fedml_dapper.datasets import load_suite
from fedml_dapper.datasets.padding import padded
from fedml_dapper.errors import DataError


def ids(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


def test_inputs_get_zeros_and_targets_what_counts_nowhere() -> None:
    (first, following), (second, later) = padded([(ids(5, 6, 7), ids(6, 7, 8)), (ids(9), ids(4))])
    assert (first.tolist(), following.tolist()) == ([5, 6, 7], [6, 7, 8])
    assert (second.tolist(), later.tolist()) == ([9, 0, 0], [4, -100, -100])


@pytest.mark.parametrize("dtype", [np.int32, np.bool_])
def test_arrays_and_masks_are_padded_by_name(dtype: Any) -> None:
    items = [({"input_ids": ids(*range(n)), "attention_mask": np.ones(n, dtype)}, n) for n in (2, 3)]
    short, long = padded(items)
    assert short[0]["attention_mask"].tolist() == [1, 1, 0]
    assert short[0]["input_ids"].tolist() == [0, 1, 0]
    assert short[1] == 2
    assert long[0]["attention_mask"] is items[1][0]["attention_mask"] or long[0]["attention_mask"].tolist() == [1, 1, 1]


def test_tuples_are_padded_by_place() -> None:
    [(found, _), _] = padded([((ids(1), torch.ones(2)), 0), ((ids(1, 2), torch.ones(2)), 1)])
    assert found[0].tolist() == [1, 0]
    assert found[1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "items",
    [
        [(torch.ones(2), 0), (torch.ones(3), 1)],
        [({"a": ids(1)}, 0), ({"b": ids(1, 2)}, 1)],
        [(ids(1), torch.tensor([1], dtype=torch.uint8)), (ids(2), torch.tensor([1, 2], dtype=torch.uint8))],
        [ids(1), ids(1, 2)],
    ],
)
def test_what_differs_otherwise_stays(items: list[Any]) -> None:
    assert all(given is found or given[1] is found[1] for given, found in zip(items, padded(items), strict=True))


DATA = """
import torch


def load(kind=torch.int64):
    short, long = torch.arange(3), torch.arange(5)
    if kind == "float":
        short, long = short.float(), long.float()
    return {"short": ([(short, 0), (long, 1)], [(short, 0)]), "long": ([(long, 0), (short, 1)], [(long, 0)])}
"""


def test_domains_of_unequal_texts_go_together(tmp_path: Path) -> None:
    (tmp_path / "texts.py").write_text(DATA)
    suite = load_suite(DataArgs(dataset=f"{tmp_path / 'texts.py'}:load"))
    [batch] = suite.domains[0].train.batches(2)
    assert batch.inputs.tolist() == [[0, 1, 2, 0, 0], [0, 1, 2, 3, 4]]  # type: ignore[union-attr]
    assert batch.targets.tolist() == [0, 1]


def test_numbers_of_unequal_length_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "texts.py").write_text(DATA)
    with pytest.raises(DataError, match="of one shape and dtype in all items; sequences of whole numbers may differ"):
        load_suite(DataArgs(dataset=f"{tmp_path / 'texts.py'}:load", arguments={"kind": "float"}))
