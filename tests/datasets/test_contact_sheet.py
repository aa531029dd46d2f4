from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedml_dapper.datasets import Suite, contact_sheet


def test_every_domain_and_class_has_its_images(small_suite: Callable[..., Suite]) -> None:
    suite = small_suite([8, 12])
    for domain in suite.domains:
        for label in range(4):
            domain.train.images[domain.train.labels == label] = 60 * label + 10
    sheet = contact_sheet(suite, per_class=2)
    assert sheet is not None
    assert sheet.classes == suite.classes
    assert list(sheet.rows) == [domain.name for domain in suite.domains]
    for row in sheet.rows.values():
        for label, column in enumerate(row):
            pixels = np.asarray(column)
            assert (pixels == 60 * label + 10).all(axis=2).sum() == 2 * 56 * 56


def test_a_class_without_images_leaves_a_gap(small_suite: Callable[..., Suite]) -> None:
    suite = small_suite([4])
    suite.domains[0].train.labels[:] = 2
    sheet = contact_sheet(suite)
    assert sheet is not None
    assert [column is not None for column in next(iter(sheet.rows.values()))] == [False, False, True, False]


def test_many_classes_do_not_make_it_larger(small_suite: Callable[..., Suite]) -> None:
    hundred = contact_sheet(replace(small_suite([40, 40, 40]), classes=("",) * 100))
    assert hundred is not None
    assert len(hundred.classes) == 20
    columns = [column for row in hundred.rows.values() for column in row if column is not None]
    assert {column.height for column in columns} == {56}
