from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedml_dapper.datasets import Suite, contact_sheet


def test_every_domain_and_class_has_its_tiles(small_suite: Callable[..., Suite]) -> None:
    suite = small_suite([8, 12])
    for domain in suite.domains:
        for label in range(4):
            domain.train.images[domain.train.labels == label] = 60 * label + 10
    few, more = contact_sheet(suite, per_class=1), contact_sheet(suite, per_class=2)
    assert few.width == more.width
    assert more.height > few.height
    pixels = np.asarray(more)
    areas = [int((pixels == 60 * label + 10).all(axis=2).sum()) for label in range(4)]
    assert all(abs(area - 2 * 2 * 56 * 56) < 100 for area in areas)


def test_a_class_with_too_few_images_leaves_a_gap(small_suite: Callable[..., Suite]) -> None:
    assert contact_sheet(small_suite([4]), per_class=3).height > 3 * 56


def test_many_classes_do_not_make_it_wider(small_suite: Callable[..., Suite]) -> None:
    suite = small_suite([4])
    twenty, hundred = (replace(suite, classes=("",) * count) for count in (20, 100))
    assert contact_sheet(hundred).width == contact_sheet(twenty).width > contact_sheet(suite).width
