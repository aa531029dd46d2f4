from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedml_dapper.config import DataArgs
from fedml_dapper.datasets import SUITES, divide, load_suite
from fedml_dapper.errors import DataError

PACS = ("art_painting", "cartoon", "photo", "sketch")
OFFICE = ("caltech", "amazon", "dslr", "webcam")
DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


def test_the_suites_hold_fdses_protocol() -> None:
    for name, domains, num_classes in (
        ("pacs", PACS, 7), ("office_caltech10_fdse", OFFICE, 10), ("domainnet", DOMAINNET, 10)
    ):  # fmt: skip
        recipe = SUITES[name]
        assert tuple(domain.name for domain in recipe.domains) == domains
        assert len(recipe.classes) == num_classes
        assert recipe.partition == "one_per_domain"
        assert recipe.preprocessing.input_size == 256
        image = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 256, 256)
        assert recipe.preprocessing.evaluate(image)[0, :, 0, 0].tolist() == pytest.approx([0.0, 0.2, 1.0])
        augmented = recipe.preprocessing.augment(image, torch.Generator())
        assert torch.equal(augmented, recipe.preprocessing.evaluate(image))


def test_pacs(real_data: Callable[..., Path]) -> None:
    args = DataArgs(dataset="pacs", data_cache_dir=real_data(*(f"pacs_{name}.npz" for name in PACS)))
    suite = load_suite(args)
    assert [len(domain.train) + len(domain.test) for domain in suite.domains] == [2048, 2344, 1670, 3929]
    assert suite.label == "pacs (images reduced to 64x64)"
    division = divide(suite, args, 4, batch_size=50, seed=1)
    assert [client.num_samples for client in division.clients] == [1639, 1876, 1336, 3144]
    assert division.clients[0].samples.images.shape[1:] == (3, 64, 64)  # enlarged batch by batch
    assert next(division.clients[0].batches(1, 1)).inputs.shape == (50, 3, 256, 256)


def test_office_tests_have_the_papers_denominators(real_data: Callable[..., Path]) -> None:
    root = real_data(*(f"office_caltech10_{name}.npz" for name in OFFICE))
    args = DataArgs(dataset="office_caltech10_fdse", data_cache_dir=root, image_size=64)
    suite = load_suite(args)
    assert suite.label == "office_caltech10_fdse (input 64x64)"
    division = divide(suite, args, 4, batch_size=50, seed=1)
    assert [tests.test.num_samples for tests in division.client_tests] == [112, 95, 15, 29]
    assert [test.num_samples for test in division.domain_tests] == [112, 95, 15, 29]


def _pack(root: Path, side: int) -> None:
    classes = np.array(SUITES["pacs"].classes)
    for name in PACS:
        x, y = np.zeros((10, side, side), dtype=np.uint8), np.arange(10) % 7
        np.savez(root / f"pacs_{name}.npz", x=x, y=np.sort(y), classes=classes)


@pytest.mark.parametrize(
    ("side", "image_size", "label"),
    [
        (227, None, "pacs (subset)"),
        (64, None, "pacs (subset, images reduced to 64x64)"),
        (64, 64, "pacs (subset, input 64x64)"),
        (64, 128, "pacs (subset, images reduced to 64x64, input 128x128)"),
    ],
)
def test_the_label_says_what_is_not_as_published(tmp_path: Path, side: int, image_size: int | None, label: str) -> None:
    _pack(tmp_path, side)
    suite = load_suite(DataArgs(dataset="pacs", data_cache_dir=tmp_path, image_size=image_size))
    assert suite.label == label
    assert suite.example.shape[-1] == (image_size or 256)


def _write_pictures(root: Path) -> None:
    """Four pictures of each of DomainNet's ten classes and of one more; the first three of each are listed."""
    for domain in DOMAINNET:
        lists: dict[str, list[str]] = {"train": [], "test": []}
        for label, name in enumerate((*SUITES["domainnet"].classes, "zigzag")):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (8, 6), (label, number, 0)).save(folder / f"{number}.png")
            lists["test"].append(f"{domain}/{name}/0.png {label}")
            lists["train"] += [f"{domain}/{name}/{number}.png {label}" for number in (1, 2)]
        for part, lines in lists.items():
            (root / f"{domain}_{part}.txt").write_text("\n".join(reversed(lines)) + "\n")


def test_domainnets_own_lists_name_its_pictures(tmp_path: Path) -> None:
    _write_pictures(tmp_path / "domainnet")
    args = DataArgs(dataset="domainnet", data_cache_dir=tmp_path, image_size=16)
    suite = load_suite(args)
    for domain in suite.domains:
        assert (len(domain.train), len(domain.test)) == (20, 10)
        assert domain.train.labels.tolist() == [label for label in range(10) for _ in range(2)]
        assert domain.test.images[:, 0, 0, 0].tolist() == domain.test.labels.tolist() == list(range(10))
        assert sorted(set(domain.train.images[:, 1, 0, 0].tolist())) == [1, 2]
    assert [client.num_samples for client in divide(suite, args, 6, 50, 1).clients] == [24] * 6


def test_domainnet_as_folders_of_its_ten_classes(tmp_path: Path) -> None:
    _write_pictures(tmp_path / "domainnet")
    for file in (tmp_path / "domainnet").glob("*.txt"):
        file.unlink()
    args = DataArgs(dataset="domainnet", data_cache_dir=tmp_path, image_size=16)
    with pytest.raises(DataError, match=r"clipart: has 11 classes .*expected bird, feather"):
        load_suite(args)
    for domain in DOMAINNET:
        (tmp_path / "domainnet" / domain / "zigzag").rename(tmp_path / f"{domain}_zigzag")
    assert [len(domain.merged()) for domain in load_suite(args).domains] == [40] * 6


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda root: (root / "clipart_test.txt").unlink(), r"clipart_test\.txt: not a readable list"),
        (lambda root: (root / "clipart_train.txt").write_text("clipart/zigzag/0.png 10"), "lists no picture of bird"),
        (lambda root: (root / "clipart" / "bird" / "1.png").unlink(), r"1\.png: not a readable picture"),
    ],
)
def test_a_bad_list_is_named(tmp_path: Path, break_it: Callable[[Path], object], message: str) -> None:
    _write_pictures(tmp_path / "domainnet")
    break_it(tmp_path / "domainnet")
    with pytest.raises(DataError, match=message):
        load_suite(DataArgs(dataset="domainnet", data_cache_dir=tmp_path, image_size=16))
