"""Transforms from stored pixels to network input: batched resizing, augmentation and normalisation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

_CHUNK_PIXELS = 2**22
"""Pixels worked on at a time; bounds the float copy of a resize to some 50 MB."""
_TOGETHER_PIXELS = 2**18
"""Pixels of batches that are transformed together: 256 images of 32 x 32, which take 3 MB."""


@dataclass(frozen=True)
class Preprocessing:
    """The papers' transforms: resize, random crop with black padding, optional flip, normalisation.

    Images that are stored smaller than ``input_size`` are resized here, batch by batch: stored at that size, 10,000
    pictures of 256 x 256 would take 2 GB. A whole batch is cropped and flipped at once, as uint8, on its device. The
    random numbers come from a CPU generator, so results do not depend on the device; and equally many are always drawn,
    so switching flips on or off leaves the crops as they are.
    """

    input_size: int = 32
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    crop_padding: int = 4
    horizontal_flip: bool = False

    @property
    def most_at_once(self) -> int:
        """Number of images up to which batches are transformed together."""
        return _TOGETHER_PIXELS // self.input_size**2

    def evaluate(self, images: Tensor) -> Tensor:
        """Normalise ``images`` uint8 (B, 3, H, W) to float32 (B, 3, S, S), with the channels last in memory.

        A convolution computes in the memory format of its input, so this makes networks run channels last, which is
        faster.
        """
        images = resize(images, self.input_size)
        white, mean, std = _scale(self.mean, self.std, images.device)
        pixels = images.to(torch.float32, memory_format=torch.channels_last)
        return pixels.div_(white).sub_(mean).div_(std)

    def augment(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Crop, flip and normalise ``images`` uint8 (B, 3, H, W) at random, to float32 (B, 3, S, S)."""
        return self.augmented(images, self.draws(len(images), generator).to(images.device))

    def draws(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw tops and lefts of crops, and flips, for ``count`` images: int64 (3, count) on the CPU."""
        offsets = torch.randint(2 * self.crop_padding + 1, (2, count), generator=generator)
        flip = torch.rand(count, generator=generator) < 0.5
        return torch.cat([offsets, flip[None]])

    def augmented(self, images: Tensor, draws: Tensor) -> Tensor:
        """Crop, flip and normalise ``images`` uint8 (B, 3, H, W) as ``draws`` say, to float32 (B, 3, S, S).

        Images and draws lie on one device.
        """
        (top, left, flip) = draws
        size = self.input_size
        pad = self.crop_padding
        windows = F.pad(resize(images, size), (pad, pad, pad, pad)).unfold(2, size, 1).unfold(3, size, 1)
        crops = windows[torch.arange(len(images), device=images.device), :, top, left]
        if self.horizontal_flip:
            crops = torch.where(flip.bool().view(-1, 1, 1, 1), crops.flip(-1), crops)
        return self.evaluate(crops)

    def fitted_to(self, image_sets: Iterable[Tensor]) -> Preprocessing:
        """Return the same transforms, normalising by mean and standard deviation of all pixels of ``image_sets``.

        Each set is uint8 (N, 3, H, W); statistics are per channel. One that is the same in all pixels, as two of three
        are in pictures of a fluorescence microscope, becomes 0.
        """
        counts = torch.zeros(3, 256, dtype=torch.int64)
        for images in image_sets:
            for chunk in _chunks(images, images.shape[-1]):
                counts += torch.stack([torch.bincount(chunk[:, c].flatten(), minlength=256) for c in range(3)])
        share = counts.double() / counts.sum(dim=1, keepdim=True)
        level = torch.arange(256, dtype=torch.float64) / 255
        mean = (share * level).sum(dim=1)
        std = ((share * level**2).sum(dim=1) - mean**2).sqrt()
        std = torch.where((counts > 0).sum(dim=1) == 1, 1, std)
        return replace(self, mean=_triple(mean), std=_triple(std))


@lru_cache
def _scale(
    mean: tuple[float, float, float], std: tuple[float, float, float], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """White, mean and standard deviation on ``device``, brought there once."""
    # white as a tensor: CUDA multiplies by the reciprocal of a plain number, which rounds differently from the CPU
    white = torch.full((1,), 255.0, device=device)
    return white, torch.tensor(mean, device=device).view(3, 1, 1), torch.tensor(std, device=device).view(3, 1, 1)


def _triple(values: Tensor) -> tuple[float, float, float]:
    red, green, blue = values.tolist()
    return red, green, blue


def resize(images: Tensor, size: int) -> Tensor:
    """Resize ``images`` uint8 (N, C, H, W) to (N, C, size, size): antialiased bilinear, rounded to nearest."""
    if images.shape[-2:] == (size, size):
        return images
    return torch.cat([_resize_chunk(chunk, size) for chunk in _chunks(images, size)])


def _chunks(images: Tensor, size: int) -> tuple[Tensor, ...]:
    pixels = max(images.shape[-2] * images.shape[-1], size * size)
    return torch.split(images, max(1, _CHUNK_PIXELS // pixels))


def _resize_chunk(images: Tensor, size: int) -> Tensor:
    resized = F.interpolate(
        images.to(torch.float32), size=(size, size), mode="bilinear", antialias=True, align_corners=False
    )
    return resized.round_().clamp_(0, 255).to(torch.uint8)
