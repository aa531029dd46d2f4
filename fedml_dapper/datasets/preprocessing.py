"""From stored pixels to network input: one resize at load, then batched augmentation and normalisation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_RESIZE_CHUNK = 4096
"""Images resized at a time; bounds the float copy to some 50 MB at 32 x 32."""


@dataclass(frozen=True)
class Preprocessing:
    """The transforms of METHODS E.1-E.2: random crop with black padding, optional flip, normalisation.

    A whole batch is cropped and flipped at once, as uint8, on the device where it lies. The random numbers come from
    a CPU generator, so results do not depend on the device, and always in the same amount, so switching flips on or
    off leaves the crops as they are.
    """

    input_size: int = 32
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    crop_padding: int = 4
    horizontal_flip: bool = False

    def evaluate(self, images: Tensor) -> Tensor:
        """Normalised float32 (B, 3, S, S) of ``images`` uint8 (B, 3, S, S)."""
        mean = torch.tensor(self.mean, device=images.device).view(3, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(3, 1, 1)
        # A tensor: CUDA multiplies by the reciprocal of a plain number, which rounds differently from the CPU.
        white = torch.full((1,), 255.0, device=images.device)
        return images.to(torch.float32).div_(white).sub_(mean).div_(std)

    def augment(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Randomly cropped, flipped and normalised float32 (B, 3, S, S) of ``images`` uint8 (B, 3, S, S)."""
        count, size, pad = len(images), images.shape[-1], self.crop_padding
        top, left = torch.randint(2 * pad + 1, (2, count), generator=generator).to(images.device)
        flip = torch.rand(count, generator=generator) < 0.5
        windows = F.pad(images, (pad, pad, pad, pad)).unfold(2, size, 1).unfold(3, size, 1)
        crops = windows[torch.arange(count, device=images.device), :, top, left]
        if self.horizontal_flip:
            crops = torch.where(flip.to(images.device).view(count, 1, 1, 1), crops.flip(-1), crops)
        return self.evaluate(crops)


def resize(images: Tensor, size: int) -> Tensor:
    """``images`` uint8 (N, C, H, W) as uint8 (N, C, size, size): antialiased bilinear, rounded to nearest."""
    if images.shape[-2:] == (size, size):
        return images
    chunks = [_resize_chunk(chunk, size) for chunk in torch.split(images, _RESIZE_CHUNK)]
    return torch.cat(chunks)


def _resize_chunk(images: Tensor, size: int) -> Tensor:
    resized = F.interpolate(
        images.to(torch.float32), size=(size, size), mode="bilinear", antialias=True, align_corners=False
    )
    return resized.round_().clamp_(0, 255).to(torch.uint8)
