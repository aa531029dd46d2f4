from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fedml_dapper.datasets import ImageSet, Suite
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
    assert (suite.label, suite.num_classes, suite.input_size) == ("small", 4, 8)
    first, second = suite.domains
    assert replace(suite, domains=(first, replace(second, is_subset=True))).label == "small (subset)"
