"""Data sets whose items are rows of tensors are read batch by batch, with what a ``DataLoader`` would collate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Subset, TensorDataset, default_collate

from fedml_dapper.config import DataArgs
from fedml_dapper.datasets.own_data import own_suite
from fedml_dapper.datasets.rows import rows_at

IMAGES = torch.randn(7, 3, 8, 8, generator=torch.Generator().manual_seed(1))
CLASSES = torch.arange(7) % 3
WHOLE = TensorDataset(IMAGES, CLASSES)


class Noisy(TensorDataset):
    """Its items are not its rows."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        inputs, target = super().__getitem__(index)
        return inputs + torch.rand(()), target


@pytest.mark.parametrize("dataset", [WHOLE, Subset(WHOLE, [6, 2, 4]), Subset(Subset(WHOLE, [5, 1, 3]), [2, 0, 1])])
def test_rows_are_what_items_collate_to(dataset: TensorDataset | Subset[tuple[Tensor, ...]]) -> None:
    rows = rows_at(dataset, torch.tensor([2, 0]))
    assert rows is not None
    for found, expected in zip(rows, default_collate([dataset[2], dataset[0]]), strict=True):
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()


@pytest.mark.parametrize(
    "dataset",
    [
        Noisy(IMAGES, CLASSES),
        TensorDataset(IMAGES),
        TensorDataset(IMAGES.to_sparse(), CLASSES),
        Subset(WHOLE, [1, 99]),
        Subset(WHOLE, np.array([6, 2, 4, 1, 0, 3, 5], dtype=np.uint8)),
        Subset({"first": WHOLE[0], "second": WHOLE[1]}, ["first", "second"]),
        list(WHOLE),
    ],
)
def test_other_data_sets_are_asked_item_by_item(dataset: object) -> None:
    assert rows_at(dataset, torch.tensor([1])) is None


class Halved(Subset[tuple[Tensor, ...]]):
    """A part whose items are other ones than those of the whole."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        inputs, target = super().__getitem__(index)
        return inputs / 0, target // 2

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, ...]]:
        return [self[index] for index in indices]


class Decoded(TensorDataset):
    """Rows of which the targets are one-hot, and items of which they are classes."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        inputs, target = super().__getitem__(index)
        return inputs, target.argmax()


@pytest.mark.parametrize(
    ("dataset", "classes"),
    [(Halved(WHOLE, range(7)), [0, 0, 1, 0, 0, 1, 0]), (Decoded(IMAGES, F.one_hot(CLASSES)), CLASSES.tolist())],
)
def test_classes_are_those_of_the_items_and_not_of_what_lies_below(dataset: object, classes: list[int]) -> None:
    suite = own_suite(lambda: {"a": (dataset, dataset)}, "mine", DataArgs(dataset="mine.py:load"))
    labels = suite.domains[0].train.labels
    assert labels is not None
    assert labels.tolist() == classes
    assert len(suite.classes) == max(classes) + 1


def test_rows_of_one_number_that_are_not_finite_are_named() -> None:
    rows = TensorDataset(torch.tensor([0.5, torch.nan, 1.5]), torch.arange(3))
    suite = own_suite(lambda: {"a": (rows, rows)}, "mine", DataArgs(dataset="mine.py:load"))
    assert "domain a, train: item 1 is not finite" in suite.notes[0]


def test_images_of_ones_own_have_their_channels_last() -> None:
    """As those of built-in suites, whatever kind of data set they lie in."""

    def load() -> dict[str, tuple[object, object]]:
        return {"rows": (WHOLE, WHOLE), "items": (Noisy(IMAGES, CLASSES), Noisy(IMAGES, CLASSES))}

    suite = own_suite(load, "mine", DataArgs(dataset="mine.py:load"))
    for domain in suite.domains:
        batch = domain.train.draw(torch.arange(4), torch.Generator().manual_seed(2))
        assert isinstance(batch.inputs, Tensor)
        assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
