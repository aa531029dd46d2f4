import hashlib
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images
from torch import mean, std

from fedml_dapper.datasets import ImageSet, Suite
from fedml_dapper.datasets.digits_offline import DIGITS_OFFLINE
from fedml_dapper.datasets.digits_offline.canvas import place
from fedml_dapper.datasets.digits_offline.fonts import TEST_FONTS, TRAIN_FONTS
from fedml_dapper.datasets.digits_offline.scans import scans
from fedml_dapper.datasets.digits_offline.shipped_files import DIGITS, FONTS, PHOTOGRAPHS, shipped
from fedml_dapper.errors import DataError


@pytest.fixture(scope="module")
def suite() -> Suite:
    return DIGITS_OFFLINE.load(Path())


def sets(suite: Suite) -> list[ImageSet]:
    return [samples for domain in suite.domains for samples in (domain.train, domain.test)]


def fingerprints(suite: Suite) -> list[str]:
    return [hashlib.sha256(samples.images.numpy().tobytes()).hexdigest() for samples in sets(suite)]


def test_two_builds_are_identical_whatever_the_global_seed(suite: Suite) -> None:
    for domain in DIGITS_OFFLINE.domains:
        domain.sources[0].render.cache_clear()
    with torch.random.fork_rng():
        torch.manual_seed(99)
        assert fingerprints(DIGITS_OFFLINE.load(Path("nowhere"))) == fingerprints(suite)


def test_four_balanced_domains(suite: Suite) -> None:
    assert suite.label == "digits_offline"
    assert [domain.name for domain in suite.domains] == ["scans", "blended", "fonts", "segments"]
    for samples, per_class in zip(sets(suite), [67, 20] * 4, strict=True):
        assert torch.equal(samples.labels.bincount(), torch.full((10,), per_class))
        assert samples.images.shape == (10 * per_class, 3, 32, 32)


def test_no_image_occurs_twice(suite: Suite) -> None:
    images = [image.numpy().tobytes() for samples in sets(suite) for image in samples.images]
    assert len(set(images)) == len(images) == 4 * 870


def test_scans_and_fonts_are_disjoint() -> None:
    parts = [masks for remainder in (0, 1) for masks in scans(remainder)]
    originals = [mask.numpy().tobytes() for masks in parts for mask in masks]
    assert [len(masks) for masks in parts] == [670, 200, 670, 200]
    assert len(set(originals)) == 1740
    assert not set(TRAIN_FONTS) & set(TEST_FONTS)


def style(samples: ImageSet) -> torch.Tensor:
    """Brightness, colourfulness and roughness, each as mean and spread over an image: (N, 6)."""
    pixels = samples.images.float() / 255
    grey, colour = pixels.mean(1), pixels.amax(1) - pixels.amin(1)
    roughness = grey.diff(dim=2).abs()
    return torch.stack([moment(map_, dim=(1, 2)) for map_ in (grey, colour, roughness) for moment in (mean, std)], 1)


def test_domains_look_different(suite: Suite) -> None:
    """The nearest training image in style tells the domain of a test image."""
    known = [style(domain.train) for domain in suite.domains]
    scale = torch.cat(known).std(0)
    for own, domain in enumerate(suite.domains):
        distances = [torch.cdist(style(domain.test) / scale, styles / scale).amin(1) for styles in known]
        assert (torch.stack(distances).argmin(0) == own).float().mean() > 0.8  # by chance: 0.25


def test_place_scales_and_shifts_in_pixels() -> None:
    dot = torch.zeros(1, 1, 32, 32)
    dot[..., 12:20, 12:20] = 1
    placed = place(dot, scale=torch.tensor([0.5]), shift=torch.tensor([[4.0, -6.0]]))[0, 0]
    rows, columns = placed.sum(1), placed.sum(0)
    pixels = torch.arange(32) + 0.5
    assert (columns @ pixels / placed.sum()).item() == pytest.approx(20, abs=0.05)
    assert (rows @ pixels / placed.sum()).item() == pytest.approx(10, abs=0.05)
    assert placed.sum().item() == pytest.approx(16, abs=1)


def test_the_files_are_those_that_the_packages_themselves_give() -> None:
    images, labels = load_digits(return_X_y=True)
    assert np.array_equal(np.loadtxt(shipped("sklearn", DIGITS), delimiter=","), np.column_stack([images, labels]))
    for name, photograph in zip(PHOTOGRAPHS, load_sample_images().images, strict=True):
        assert np.array_equal(np.asarray(Image.open(shipped("sklearn", name))), photograph)
    assert shipped("matplotlib", FONTS) == Path(mpl.get_data_path(), "fonts", "ttf")


@pytest.mark.parametrize("package", ["sklearn", "no_such_package"])
def test_a_file_that_a_package_no_longer_ships_is_named(package: str) -> None:
    with pytest.raises(DataError, match=f"drawn from gone.csv of {package}"):
        shipped(package, "gone.csv")
