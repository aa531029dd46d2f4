"""FedML's eight-part tuple of loaders, as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from fedml_dapper.datasets import loaded_division
from fedml_dapper.datasets.loaded import LoadedClient, LoadedTest
from fedml_dapper.errors import DataError


def samples(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(2.0 * count).view(count, 2), torch.arange(count) % 3)


def loader(count: int, batch_size: int = 4, **options: Any) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(samples(count), batch_size, **options)


def eight(train: dict[int, Any], **changed: Any) -> tuple[Any, ...]:
    parts = {
        "train_num": 0, "test_num": 0, "train": None, "test": loader(5), "counts": {},
        "local": train, "local_test": {client: loader(3) for client in train}, "classes": 3,
    }  # fmt: skip
    return tuple((parts | changed).values())


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Nine samples, one after another."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(*samples(9).tensors, strict=True)

    def __len__(self) -> int:
        return 9


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        (loader(8), [4, 4]),
        (loader(10), [4, 4, 2]),
        (loader(9), [4, 4]),  # a last batch of one is left out
        (loader(9, drop_last=True), [4, 4]),
        (loader(3, 1), [1, 1, 1]),  # as asked
        (list(loader(9)), [4, 4]),
        (loader(9, 4, sampler=torch.utils.data.SubsetRandomSampler(range(6))), [4, 2]),
        (DataLoader(samples(9), batch_sampler=[[0, 1, 2], [3, 4], [5]]), [3, 2]),
        (DataLoader(Stream(), 6), [6, 3]),
        (DataLoader(Stream(), 4, drop_last=True), [4, 4]),
    ],
)
def test_batches_are_the_loader_s(given: Any, sizes: list[int]) -> None:
    client = LoadedClient(0, given, 9)
    assert [len(batch.targets) for batch in client.batches(1, 1)] == sizes
    assert client.steps_per_epoch == len(sizes)
    assert client.first.inputs.shape == (1, 2)


def test_every_sample_is_seen_in_the_loader_s_order() -> None:
    client = LoadedClient(0, loader(6), 6)
    seen = torch.cat([batch.inputs for batch in client.batches(3, 2)])
    assert torch.equal(seen, samples(6).tensors[0])
    assert client.labels is not None
    assert torch.equal(client.labels, samples(6).tensors[1])
    assert (len(client), LoadedTest(loader(6)).num_samples) == (2, 6)


def test_shuffling_follows_torch_s_generator_and_looking_leaves_it_alone() -> None:
    client, orders = LoadedClient(0, loader(8, shuffle=True), 8), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        assert client.labels is not None
        client.first  # noqa: B018
        assert torch.equal(torch.get_rng_state(), state)
        orders.append(torch.cat([batch.inputs for batch in client.batches(1, 1)]))
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])


@pytest.mark.parametrize("batch", [(torch.zeros(2, 3), torch.zeros(2)), (torch.zeros(2), torch.arange(2))])
@pytest.mark.parametrize("place", [0, 1])
def test_tensors_without_values_are_refused(batch: tuple[Tensor, Tensor], place: int) -> None:
    given = [part.to("meta") if number == place else part for number, part in enumerate(batch)]
    with pytest.raises(DataError, match=r"client 0: a batch has a tensor that is on the device meta, which keeps no"):
        loaded_division(eight({0: [given]}, counts={0: 2}))


def test_targets_that_are_no_classes_give_no_labels() -> None:
    assert LoadedClient(0, [(torch.zeros(2, 3), torch.zeros(2, 4))], 2).labels is None
    assert LoadedClient(0, [(torch.zeros(2, 3), torch.zeros(2, 4, 4, dtype=torch.int64))], 2).labels is None
    whole = LoadedClient(0, [(torch.zeros(2, 3), torch.tensor([0, 1], dtype=torch.int32))], 2)
    assert next(whole.batches(1, 1)).targets.dtype == torch.int64


def test_the_tuple_says_who_holds_what() -> None:
    division, first, classes = loaded_division(eight({0: loader(8), 1: list(loader(6))}, counts={0: 7, 1: 6}))
    assert [client.num_samples for client in division.clients] == [7, 6]  # as FedML counts
    assert [own.test.num_samples for own in division.client_tests] == [3, 3]
    assert [(test.domain, test.num_samples) for test in division.domain_tests] == [("all", 5)]
    assert (first.inputs.shape, classes) == ((1, 2), 3)


def test_tests_that_are_missing_are_stood_in_for() -> None:
    division, _, _ = loaded_division(eight({0: loader(8), 1: loader(6)}, local_test={0: loader(3), 1: None}))
    assert [own.test.num_samples for own in division.client_tests] == [3, 5]
    division, _, _ = loaded_division(eight({0: loader(8), 1: loader(6)}, test=None))
    assert [test.num_samples for test in division.domain_tests] == [6]


def test_a_loader_that_is_used_up_is_said() -> None:
    class UsedUp:
        def __init__(self) -> None:
            self.batches = iter(loader(4))

        def __iter__(self) -> Iterator[Any]:
            return self.batches

        def __len__(self) -> int:
            return 1

    client = LoadedClient(0, UsedUp(), 4)
    assert len(list(client.batches(1, 1))) == 1
    with pytest.raises(DataError, match="client 0: the loader gives no batch; it has to begin anew"):
        list(client.batches(1, 2))


def test_inputs_that_are_not_finite_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    inputs = torch.zeros(8, 2)
    inputs[5, 0] = torch.nan
    client = LoadedClient(3, DataLoader(TensorDataset(inputs, torch.arange(8) % 3), 4), 8)
    for epoch in (1, 2):
        list(client.batches(1, epoch))
    [warning] = caplog.messages
    assert warning.startswith("client 3, batch 1: item 1 is not finite (NaN or infinity)")


class Endless(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield torch.zeros(2)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ((1, 2), "passes 2 parts as its dataset, expected FedML's eight: train samples"),
        ({}, "passes dict as its dataset"),
        (eight({1: loader(4)}), "should be a dict with keys 0 to N - 1"),
        (eight({0: loader(1)}), "client 0 has 1 training samples; training needs 2 or more"),
        (eight({0: loader(4)}, test=[]), "test data without samples"),
        (eight({0: loader(4)}, test=None, local_test=None), "no test data, neither global nor of any client"),
        (eight({0: DataLoader(Endless())}, counts={0: 9}), "client 0: data without length"),
        (eight({0: [torch.zeros(3)]}, counts={0: 9}), r"client 0: a batch of Tensor, expected \(inputs, targets\)"),
        (
            eight({0: loader(4), 1: loader(4, 8, drop_last=True)}, counts={1: 4}),
            "client 1: its loader gives no batch, an",
        ),
        (eight({0: []}), "client 0 has 0 training samples"),
        (
            eight({0: loader(4)}, classes=None),
            r"its eighth part \(the number of classes\) is None \(NoneType\), and has to",
        ),
        (
            eight({0: loader(4)}, counts={0: "four"}),
            r"its fifth part \(samples of client 0\) is four \(str\), and has to be",
        ),
        (eight({0: loader(4, None)}, counts={0: 4}), "client 0: a single sample where a batch belongs"),
        (eight({0: [(torch.zeros(3, 2), torch.zeros(2))]}, counts={0: 3}), "tensors of 3 rows, with 2 targets"),
        (
            eight({0: [(["a", "b"], torch.zeros(2))]}, counts={0: 2}),
            "client 0: inputs of a batch are a list of str, no tensor or numb",
        ),
        (
            eight({0: [(torch.zeros(2, 2), ["a", "b"])]}, counts={0: 2}),
            "client 0: targets of a batch are a list of str, no tensor",
        ),
        (eight({0: loader(4)}, test=[(torch.zeros(2, 2), None)]), "the test data: targets of a batch are a NoneType"),
    ],
)
def test_what_cannot_be_used_is_one_line(dataset: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        loaded_division(dataset)
    assert "\n" not in str(caught.value)
