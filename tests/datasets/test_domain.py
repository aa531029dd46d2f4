from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fedml_dapper.datasets import ImageSet, Suite
from fedml_dapper.datasets.image_set import concatenate
from fedml_dapper.errors import DataError


def test_take_copies_in_the_order_asked(image_set: Callable[..., ImageSet]) -> None:
    samples = image_set([0, 1, 2, 3])
    taken = samples.take(torch.tensor([3, 1]))
    assert taken.labels.tolist() == [3, 1]
    assert torch.equal(taken.images, samples.images[[3, 1]])
    taken.images.zero_()
    assert samples.images[3].any()


@pytest.mark.parametrize(
    ("images", "labels", "text"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64), "uint8"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), r"\(N, 3, H, W\)"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int32), "int64"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), r"shape \(2,\)"),
    ],
)
def test_wrong_tensors_are_refused(images: torch.Tensor, labels: torch.Tensor, text: str) -> None:
    with pytest.raises(DataError, match=text):
        ImageSet(images, labels)


def test_one_subset_domain_makes_the_suite_a_subset(small_suite: Callable[..., Suite]) -> None:
    suite = small_suite([8, 8])
    assert (suite.label, suite.num_classes, suite.example.shape[-1]) == ("small", 4, 8)
    first, second = suite.domains
    assert replace(suite, domains=(first, replace(second, is_subset=True))).label == "small (subset)"


def test_grey_images_stay_a_third_of_the_memory(image_set: Callable[..., ImageSet]) -> None:
    colour = image_set([0, 1, 2])
    grey = ImageSet(colour.images[:, :1].expand(-1, 3, -1, -1), colour.labels)
    assert (colour.is_grey, grey.is_grey) == (False, True)
    taken, joined = grey.take(torch.tensor([2, 0])), concatenate([grey, grey.take(torch.tensor([1]))])
    assert torch.equal(taken.images, grey.images[[2, 0]])
    assert torch.equal(joined.images, grey.images[[0, 1, 2, 1]])
    assert taken.images.untyped_storage().nbytes() == 2 * 8 * 8
    assert joined.images.untyped_storage().nbytes() == 4 * 8 * 8
    assert not concatenate([grey, colour]).is_grey


def test_sets_are_joined_in_order_at_the_largest_size(image_set: Callable[..., ImageSet]) -> None:
    small, large = image_set([3, 1], size=4), image_set([2], size=8)
    joined = concatenate([small, large])
    assert joined.labels.tolist() == [3, 1, 2]
    assert joined.images.shape == (3, 3, 8, 8)
    assert torch.equal(joined.images[2], large.images[0])


def test_merged_is_training_then_test(small_suite: Callable[..., Suite]) -> None:
    [domain] = small_suite([10]).domains
    merged = domain.merged()
    assert torch.equal(merged.images, torch.cat([domain.train.images, domain.test.images]))
    assert torch.equal(merged.labels, torch.cat([domain.train.labels, domain.test.labels]))
    assert torch.equal(merged.labels, domain.merged_labels())


@pytest.mark.parametrize("grey", [False, True])
def test_a_view_is_the_copy_that_it_saves(image_set: Callable[..., ImageSet], grey: bool) -> None:
    whole = image_set([3, 1, 2, 0, 1])
    if grey:
        whole = ImageSet(whole.images[:, :1].expand(-1, 3, -1, -1), whole.labels, whole.preprocessing)
    places, some = torch.tensor([4, 0, 2]), torch.tensor([2, 0])
    view, copied = whole.view(places), whole.take(places)
    assert len(view) == 3
    assert view.labels.tolist() == copied.labels.tolist() == [1, 3, 2]
    pairs = [
        (view.draw(some, torch.Generator().manual_seed(1)), copied.draw(some, torch.Generator().manual_seed(1))),
        *zip(view.batches(2), copied.batches(2), strict=True),
        *zip(view.take(some).batches(2), copied.take(some).batches(2), strict=True),
        *zip(view.split([1, 2])[1].batches(2), copied.split([1, 2])[1].batches(2), strict=True),
        *zip(view.joined([view]).batches(9), copied.joined([view]).batches(9), strict=True),
    ]
    for samples in (view, copied):
        together = samples.draw_each([some, some[:1]], torch.Generator().manual_seed(2))
        one_by_one = torch.Generator().manual_seed(2)
        pairs += zip(together, [copied.draw(some, one_by_one), copied.draw(some[:1], one_by_one)], strict=True)
    for one, other in pairs:
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)
    assert torch.equal(view.pictures(some), copied.pictures(some))
    assert torch.equal(view.example, copied.example)
    assert view.to("cpu") is view
