from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedml_dapper.config import DataArgs
from fedml_dapper.datasets import SUITES, Suite, divide, load_suite
from fedml_dapper.datasets.fedcmd import IMAGE_SETS
from fedml_dapper.errors import ConfigError, DataError


def load(root: Path, **settings: Any) -> Suite:
    return load_suite(DataArgs(data_cache_dir=root, **settings))


def test_the_sets_have_their_sizes_and_classes() -> None:
    facts = {
        recipe.name: (len(recipe.classes), recipe.preprocessing.input_size, recipe.domains[0].full_size)
        for recipe in IMAGE_SETS
    }
    assert facts == {
        "mnist": (10, 28, 70_000),
        "fashion_mnist": (10, 28, 70_000),
        "emnist": (62, 28, 814_255),
        "organ_a_mnist": (11, 28, 58_830),
        "organ_c_mnist": (11, 28, 23_583),
        "svhn": (10, 32, 99_289),
        "cifar10": (10, 32, 60_000),
        "cifar100": (100, 32, 60_000),
        "cinic10": (10, 32, 270_000),
        "tiny_imagenet": (200, 64, 110_000),
    }
    for recipe in IMAGE_SETS:
        assert SUITES[recipe.name] is recipe
        assert (recipe.partition, recipe.measured_on) == ("dirichlet", "all")
        assert (recipe.preprocessing.crop_padding, recipe.preprocessing.horizontal_flip) == (0, False)


def test_mnist_in_fedcmds_setting(real_data: Callable[..., Path]) -> None:
    args = DataArgs(dataset="mnist", data_cache_dir=real_data("digits_mnist.npz"), dirichlet_alpha=0.1)
    suite = load_suite(args)
    assert suite.label == "mnist"
    preprocessing = suite.domains[0].train.preprocessing
    assert preprocessing.mean == pytest.approx([0.1307] * 3, abs=5e-4)  # the constants in general use
    assert preprocessing.std == pytest.approx([0.3081] * 3, abs=5e-4)
    division = divide(suite, args, 100, batch_size=32, seed=1)
    held = [client.num_samples + tests.test.num_samples
            for client, tests in zip(division.clients, division.client_tests, strict=True)]  # fmt: skip
    assert (sum(held), min(held) >= 40) == (70_000, True)
    assert len({client.num_samples for client in division.clients}) > 50
    batch = next(division.clients[0].batches(1, 1))
    assert batch.inputs.shape[1:] == (3, 28, 28)
    assert division.clients[0].samples.is_grey  # a third of the memory


def test_small_packed_sets_are_subsets(real_data: Callable[..., Path]) -> None:
    root = real_data("digits_svhn_small.npz", "optional_cifar10_subset.npz")
    svhn, cifar10 = load(root, dataset="svhn"), load(root, dataset="cifar10")
    assert (svhn.label, cifar10.label) == ("svhn (subset)", "cifar10 (subset)")
    assert [len(suite.domains[0].merged()) for suite in (svhn, cifar10)] == [1_569, 12_000]
    with pytest.raises(ConfigError, match=r"1569 samples are too few for 100 .* to 39 or less"):
        divide(svhn, DataArgs(dataset="svhn", dirichlet_alpha=0.1), 100, batch_size=32, seed=1)


def _medmnist(file: Path, **replaced: Any) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, count in (("train", 6), ("val", 3), ("test", 2)):
        arrays[f"{part}_images"] = rng.integers(256, size=(count, 28, 28), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.arange(count, dtype=np.uint8)[:, None]
    arrays |= replaced
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})


def test_medmnists_own_files_with_validation_in_training(tmp_path: Path) -> None:
    _medmnist(tmp_path / "organcmnist.npz")
    suite = load(tmp_path, dataset="organ_c_mnist")
    [domain] = suite.domains
    assert domain.train.labels.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert domain.test.labels.tolist() == [0, 1]
    with np.load(tmp_path / "organcmnist.npz") as arrays:
        assert torch.equal(domain.train.images[6:, 1], torch.from_numpy(arrays["val_images"]))
    assert (domain.train.is_grey, suite.label) == (True, "organ_c_mnist (subset)")


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"val_labels": None}, "lacks the arrays val_labels of a MedMNIST file"),
        ({"test_labels": np.array([[0], [11]])}, "test_labels goes from 0 to 11; expected labels 0 to 10"),
    ],
)
def test_a_bad_medmnist_file_is_named(tmp_path: Path, replaced: dict[str, Any], message: str) -> None:
    _medmnist(tmp_path / "organamnist.npz", **replaced)
    with pytest.raises(DataError, match=rf"organamnist\.npz: {message}"):
        load(tmp_path, dataset="organ_a_mnist")


def test_classes_without_names_may_be_called_anything(tmp_path: Path) -> None:
    x, y = np.zeros((200, 4, 4), dtype=np.uint8), np.arange(200)
    x[:100] = 255
    np.savez(tmp_path / "tiny_imagenet.npz", x=x, y=y, classes=np.array([f"n{label:08d}" for label in range(200)]))
    suite = load(tmp_path, dataset="tiny_imagenet")
    preprocessing = suite.domains[0].train.preprocessing
    assert (preprocessing.mean, preprocessing.std) == ((0.5,) * 3, (0.5,) * 3)
    np.savez(tmp_path / "tiny_imagenet.npz", x=x, y=y, classes=np.array(["one", "two"]))
    with pytest.raises(DataError, match=r"has 2 classes \(one, two\); expected 200"):
        load(tmp_path, dataset="tiny_imagenet")
