import pytest
import torch
from torchvision.transforms import functional as reference

from fedml_dapper.datasets import Preprocessing
from fedml_dapper.datasets.preprocessing import resize

IMAGES = torch.randint(256, (17, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def one_by_one(images: torch.Tensor, preprocessing: Preprocessing) -> torch.Tensor:
    """The transforms as torchvision does them: pad, crop, flip, ``ToTensor``, normalise; one image at a time."""
    rng, pad, size = generator(), preprocessing.crop_padding, images.shape[-1]
    corners = torch.randint(2 * pad + 1, (2, len(images)), generator=rng).T.tolist()
    flips = torch.rand(len(images), generator=rng) < 0.5
    results = []
    for image, (top, left), flip in zip(images, corners, flips, strict=True):
        cropped = reference.crop(reference.pad(image, [pad] * 4, fill=0), top, left, size, size)
        flipped = reference.hflip(cropped) if flip and preprocessing.horizontal_flip else cropped
        results.append(as_torchvision(flipped, preprocessing))
    return torch.stack(results)


def as_torchvision(image: torch.Tensor, preprocessing: Preprocessing) -> torch.Tensor:
    unit = reference.to_tensor(image.permute(1, 2, 0).numpy())
    return reference.normalize(unit, list(preprocessing.mean), list(preprocessing.std))


@pytest.mark.parametrize("flip", [False, True])
def test_augmentation_is_torchvisions_bit_for_bit(flip: bool) -> None:
    preprocessing = Preprocessing(12, crop_padding=4, horizontal_flip=flip)
    assert torch.equal(preprocessing.augment(IMAGES, generator()), one_by_one(IMAGES, preprocessing))


def test_evaluation_is_torchvisions_bit_for_bit() -> None:
    preprocessing = Preprocessing(12)
    expected = torch.stack([as_torchvision(image, preprocessing) for image in IMAGES])
    assert torch.equal(preprocessing.evaluate(IMAGES), expected)


def test_without_padding_only_flips_remain_and_only_when_on() -> None:
    off, on = (Preprocessing(12, crop_padding=0, horizontal_flip=flip) for flip in (False, True))
    plain, flipped = off.augment(IMAGES, generator()), on.augment(IMAGES, generator())
    assert torch.equal(plain, off.evaluate(IMAGES))
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(plain, flipped, strict=True)]
    kept = [torch.equal(a, b) for a, b in zip(plain, flipped, strict=True)]
    assert all(a != b for a, b in zip(mirrored, kept, strict=True))
    assert any(mirrored)
    assert any(kept)


def test_padding_is_black_before_normalisation() -> None:
    preprocessing = Preprocessing(12, crop_padding=12)
    white = torch.full_like(IMAGES, 255)
    black_and_white = preprocessing.evaluate(
        torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 1, 1)
    )
    augmented = preprocessing.augment(white, generator())
    for channel in range(3):
        assert set(augmented[:, channel].unique().tolist()) == set(black_and_white[:, channel].flatten().tolist())


@pytest.mark.parametrize("flip", [False, True])
def test_random_numbers_are_consumed_in_a_fixed_amount(flip: bool) -> None:
    rng, reference_rng = generator(), generator()
    Preprocessing(12, crop_padding=3, horizontal_flip=flip).augment(IMAGES, rng)
    Preprocessing(12, crop_padding=1).augment(IMAGES, reference_rng)
    assert torch.equal(rng.get_state(), reference_rng.get_state())


def test_the_stored_images_stay_as_they_are() -> None:
    before = IMAGES.clone()
    Preprocessing(12, crop_padding=0).augment(IMAGES, generator())
    Preprocessing(12).evaluate(IMAGES)
    assert torch.equal(IMAGES, before)


@pytest.mark.parametrize("size", [12, 16, 48])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_bits(size: int) -> None:
    preprocessing = Preprocessing(size, horizontal_flip=True)
    on_gpu = preprocessing.augment(IMAGES.cuda(), generator())
    assert on_gpu.is_cuda
    assert torch.equal(on_gpu.cpu(), preprocessing.augment(IMAGES, generator()))


@pytest.mark.parametrize("size", [8, 16, 48])
def test_resizing_a_batch_is_resizing_beforehand(size: int) -> None:
    preprocessing = Preprocessing(size, crop_padding=2, horizontal_flip=True)
    beforehand = resize(IMAGES, size)
    assert torch.equal(preprocessing.evaluate(IMAGES), preprocessing.evaluate(beforehand))
    assert torch.equal(preprocessing.augment(IMAGES, generator()), preprocessing.augment(beforehand, generator()))


def test_statistics_are_those_of_all_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedml_dapper.datasets.preprocessing._CHUNK_PIXELS", 5 * 12 * 12)
    first, second = IMAGES[:4], resize(IMAGES[4:], 8)
    fitted = Preprocessing(12, crop_padding=1).fitted_to([first, second])
    pixels = torch.cat([part.transpose(0, 1).reshape(3, -1) for part in (first, second)], dim=1).double() / 255
    assert fitted.mean == pytest.approx(pixels.mean(dim=1).tolist(), rel=1e-12)
    assert fitted.std == pytest.approx(pixels.std(dim=1, correction=0).tolist(), rel=1e-9)
    assert (fitted.input_size, fitted.crop_padding) == (12, 1)


def test_a_channel_that_is_the_same_everywhere_becomes_zero() -> None:
    images = IMAGES.clone()
    images[:, 0] = 0
    images[:, 2] = 77
    inputs = Preprocessing(12).fitted_to([images]).evaluate(images)
    torch.testing.assert_close(inputs[:, [0, 2]], torch.zeros_like(inputs[:, [0, 2]]), rtol=0, atol=1e-6)
    assert bool(inputs.isfinite().all())


def test_resize_is_antialiased() -> None:
    stripes = torch.tensor([0, 0, 0, 200], dtype=torch.uint8).repeat(16).expand(1, 1, 64, 64)
    small = resize(stripes, 16)
    assert small.shape == (1, 1, 16, 16)
    assert (small[..., 1:-1] == 50).all()


def test_resize_rounds_to_nearest() -> None:
    # Half-way between pixel centres 1/4 and 3/4: weights (1, 3) / 4.
    pixels = torch.tensor([[[[0, 3], [0, 3]]]], dtype=torch.uint8)
    assert resize(pixels, 4)[0, 0, 0].tolist() == [0, 1, 2, 3]


def test_resize_in_chunks_is_resize_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = resize(IMAGES, 8)
    monkeypatch.setattr("fedml_dapper.datasets.preprocessing._CHUNK_PIXELS", 5 * 12 * 12)
    assert torch.equal(resize(IMAGES, 8), at_once)
