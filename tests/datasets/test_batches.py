from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fedml_dapper.datasets import Batch, ClientSamples, ImageSet, Preprocessing, TestSamples
from fedml_dapper.errors import ConfigError, DataError

PLAIN = Preprocessing(8, crop_padding=0)
AUGMENTED = Preprocessing(8, crop_padding=2, horizontal_flip=True)

Make = Callable[..., ImageSet]


def augmented(samples: ImageSet) -> ImageSet:
    return replace(samples, preprocessing=AUGMENTED)


def client(samples: ImageSet, batch_size: int = 4, client_id: int = 3, seed: int = 1) -> ClientSamples:
    return ClientSamples(client_id, "d0", augmented(samples), batch_size, seed)


def same(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets)
        for a, b in zip(first, second, strict=True)
    )


def test_batches_depend_on_seed_client_round_and_epoch_alone(image_set: Make) -> None:
    samples = image_set(torch.arange(20))
    stream = list(client(samples).batches(2, 1))
    assert same(stream, list(client(samples).batches(2, 1)))
    others = [
        client(samples).batches(2, 2),
        client(samples).batches(1, 1),
        client(samples).batches(1, 2),
        client(samples, client_id=4).batches(2, 1),
        client(samples, seed=2).batches(2, 1),
    ]
    assert not any(same(stream, list(other)) for other in others)


def test_an_epoch_has_every_sample_once_with_its_own_label(image_set: Make) -> None:
    samples = image_set(torch.arange(10))
    batches = list(ClientSamples(0, "d0", replace(samples, preprocessing=PLAIN), 4, 1).batches(1, 1))
    labels = torch.cat([batch.targets for batch in batches])
    assert sorted(labels.tolist()) == list(range(10))
    assert labels.tolist() != list(range(10))
    assert torch.equal(torch.cat([batch.inputs for batch in batches]), PLAIN.evaluate(samples.images[labels]))


@pytest.mark.parametrize(("count", "sizes"), [(2, [2]), (4, [4]), (5, [4]), (6, [4, 2]), (9, [4, 4])])
def test_a_last_batch_of_one_sample_is_dropped(image_set: Make, count: int, sizes: list[int]) -> None:
    data = client(image_set(torch.arange(count)))
    assert [len(batch.targets) for batch in data.batches(1, 1)] == sizes
    assert data.steps_per_epoch == len(sizes)
    assert data.num_samples == count


@pytest.mark.parametrize(("count", "text"), [(1, "one sample"), (0, "no sample")])
def test_a_client_with_one_sample_is_an_error(image_set: Make, count: int, text: str) -> None:
    with pytest.raises(DataError, match=rf"client 3 \(domain d0\) is a client with {text}; training needs 2"):
        client(image_set(torch.arange(count)))


def test_batches_of_one_are_an_error(image_set: Make) -> None:
    with pytest.raises(ConfigError, match="batch_size is 1"):
        client(image_set([0, 1]), batch_size=1)


def test_iterating_is_evaluation_in_order(image_set: Make) -> None:
    samples = image_set(torch.arange(9))
    for data in (client(samples), TestSamples("d0", augmented(samples), batch_size=4)):
        batches = [(images, labels) for images, labels in data]
        assert len(batches) == len(data) == 3
        assert torch.equal(torch.cat([labels for _, labels in batches]), samples.labels)
        assert torch.equal(torch.cat([images for images, _ in batches]), AUGMENTED.evaluate(samples.images))


def test_test_batches_are_the_iteration(image_set: Make) -> None:
    data = TestSamples("d0", augmented(image_set(torch.arange(9))), batch_size=4)
    assert same(list(data.batches("cpu")), list(data))
    assert data.num_samples == 9


def test_batches_land_on_the_device_asked_for(image_set: Make) -> None:
    samples = image_set(torch.arange(4))
    resident = client(samples).to("meta")
    assert resident.samples.images.is_meta
    assert all(batch.inputs.is_meta and batch.targets.is_meta for batch in client(samples).batches(1, 1, "meta"))
    assert client(samples).to("cpu").samples.images is samples.images
