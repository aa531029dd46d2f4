"""A small U-Net: an encoder and a decoder with skip connections (Ronneberger et al., 2015)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.errors import ConfigError
from fedml_dapper.models.backbone import Backbone

WIDTH = 16
"""Channels at full resolution."""
_SMALLEST_INPUT = 8
"""Smallest side of an image; with less, batches of two leave BatchNorm too little at the lowest resolution."""


class UNet(Backbone):
    """Three resolutions of ``width``, 2 and 4 times ``width`` channels, each twice convolution 3x3 - BN - ReLU.

    Outputs are logits of shape (B, C, S, S), one per pixel, by a 1x1 convolution: there is no single representation of
    an image, and no linear predictor.

    Raises:
        ConfigError: Images are smaller than 8 x 8 pixels, or there are no classes.
    """

    def __init__(self, width: int, num_classes: int, input_size: int) -> None:
        super().__init__()
        if input_size < _SMALLEST_INPUT:
            raise ConfigError(
                f"model_args.model: unet_small halves images of {input_size}x{input_size} twice; set"
                f" data_args.image_size to {_SMALLEST_INPUT} or more"
            )
        if num_classes == 0:
            raise ConfigError(
                "model_args.model: unet_small says of every pixel which class it is, and the data state none; list them"
                " in data_args.classes"
            )
        self.predictor = None  # type: ignore[assignment]
        self.fine = _convolutions(3, width)
        self.middle = _convolutions(width, 2 * width)
        self.coarse = _convolutions(2 * width, 4 * width)
        self.middle_up = _convolutions(4 * width + 2 * width, 2 * width)
        self.fine_up = _convolutions(2 * width + width, width)
        self.head = nn.Conv2d(width, num_classes, 1)

    def encode(self, images: Tensor) -> Tensor:
        """Return feature maps at full resolution, shape (B, width, S, S)."""
        fine = self.fine(images)
        middle = self.middle(F.max_pool2d(fine, 2))
        coarse = self.coarse(F.max_pool2d(middle, 2))
        middle = self.middle_up(_joined(coarse, middle))
        features: Tensor = self.fine_up(_joined(middle, fine))
        return features

    def predict(self, representations: Tensor) -> Tensor:
        logits: Tensor = self.head(representations)
        return logits


def unet_small(width: int, num_classes: int, input_size: int) -> UNet:
    """Build the U-Net: 118,610 parameters at width 16 and 2 classes, for images from 8 x 8 pixels on."""
    return UNet(width, num_classes, input_size)


def _joined(coarse: Tensor, fine: Tensor) -> Tensor:
    """Upsample ``coarse`` feature maps to the resolution of ``fine`` ones, and concatenate the channels of both."""
    return torch.cat([F.interpolate(coarse, size=fine.shape[-2:]), fine], dim=1)


def _convolutions(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
        nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
    )
