from pathlib import Path

import numpy as np
import pytest
import torch

from fedml_dapper.config import DataArgs
from fedml_dapper.datasets import PUBLISHED, data_root, load_suite
from fedml_dapper.errors import ConfigError, DataError


def test_an_unknown_suite_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"unknown suite `digits_ofline`; did you mean `digits_offline`\?"):
        load_suite(DataArgs(dataset="digits_ofline"))


def test_a_missing_domain_says_where_it_looked_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_suite(DataArgs(dataset="digits", data_cache_dir=tmp_path))
    text = str(caught.value)
    assert "\n" not in text
    expected = ["domain mnist", str(tmp_path), "digits_mnist.npz", "digits/mnist/", "torchvision/ (MNIST)"]
    remedies = ["DAPPER_DATA", "data_args.data_cache_dir", "data_args.download=true", "data/README.md"]
    assert all(part in text for part in expected + remedies)


def test_no_download_is_offered_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="domain caltech") as caught:
        load_suite(DataArgs(dataset="office_caltech10", data_cache_dir=tmp_path))
    assert "data_args.download" not in str(caught.value)


def test_the_root_is_the_setting_then_the_environment_then_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAPPER_DATA", "/from/environment")
    assert data_root(Path("/from/setting")) == Path("/from/setting")
    assert data_root(None) == Path("/from/environment")
    monkeypatch.delenv("DAPPER_DATA")
    assert data_root(None) == Path("data")


def test_flips_follow_the_suite_unless_set() -> None:
    for flip in (None, False, True):
        suite = load_suite(DataArgs(dataset="digits_offline", horizontal_flip=flip))
        assert suite.domains[0].train.preprocessing.horizontal_flip is bool(flip)
        assert suite.domains[0].train.preprocessing.crop_padding == 2


def test_the_protocols_of_the_registered_suites() -> None:
    facts = {
        name: (
            tuple(domain.name for domain in recipe.domains),
            recipe.client_share,
            recipe.preprocessing.horizontal_flip,
            recipe.preprocessing.crop_padding,
            recipe.swap_in_missing_classes,
        )
        for name, recipe in PUBLISHED.items()
        if recipe.partition == "domain_shares"
    }
    assert facts == {
        "digits": (("mnist", "usps", "svhn", "syn"), 0.01, False, 4, False),
        "office_caltech10": (("caltech", "amazon", "webcam", "dslr"), 0.2, True, 4, True),
        "digits_offline": (("scans", "blended", "fonts", "segments"), 0.25, False, 2, False),
    }


def test_the_image_size_can_be_set() -> None:
    suite = load_suite(DataArgs(dataset="digits_offline", image_size=20))
    assert (suite.example.shape[-1], suite.label) == (20, "digits_offline (input 20x20)")
    images = suite.domains[0].test.images[:2]
    assert suite.domains[0].train.preprocessing.evaluate(images).shape == (2, 3, 20, 20)
    assert suite.domains[0].train.preprocessing.augment(images, torch.Generator()).shape == (2, 3, 20, 20)


def _write(root: Path, name: str, train: int, test: int) -> None:
    np.savez_compressed(
        root / name,
        x_train=np.zeros((train, 1, 1), dtype=np.uint8),
        y_train=np.zeros(train, dtype=np.int64),
        x_test=np.zeros((test, 1, 1), dtype=np.uint8),
        y_test=np.zeros(test, dtype=np.int64),
    )


def test_full_sources_are_preferred_and_too_small_ones_are_subsets(tmp_path: Path) -> None:
    for name in ("mnist", "usps", "svhn_small", "syn", "mnistm_subset"):
        _write(tmp_path, f"digits_{name}.npz", 2, 1)
    _write(tmp_path, "digits_usps.npz", 7291, 2007)
    suite = load_suite(DataArgs(dataset="digits", data_cache_dir=tmp_path))
    found = [(domain.name, domain.source, domain.is_subset) for domain in suite.domains]
    assert found == [
        ("mnist", "digits_mnist.npz", True),
        ("usps", "digits_usps.npz", False),
        ("svhn", "digits_svhn_small.npz", True),
        ("syn", "digits_syn.npz", False),
    ]
    _write(tmp_path, "digits_svhn.npz", 3, 1)
    assert len(load_suite(DataArgs(dataset="digits", data_cache_dir=tmp_path)).domains[2].train) == 3
