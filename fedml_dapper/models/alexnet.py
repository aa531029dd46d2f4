"""AlexNet with BatchNorm behind every layer and hidden layers of 1024 (the backbone of FDSE)."""

from __future__ import annotations

from collections import OrderedDict
from typing import cast

from torch import Tensor, nn

from fedml_dapper.errors import ConfigError
from fedml_dapper.models.backbone import Backbone

WIDTH = 64
"""Channels of the first convolution as published."""
_SMALLEST_INPUT = 63
"""Below it nothing is left for the last pooling."""
_POOLED = 6
"""Side of the feature maps after adaptive pooling, whatever the size of the images."""


class AlexNet(Backbone):
    """Five blocks of convolution - BN - ReLU (- max-pool), two of linear - BN - ReLU; z is the last one's output.

    Convolutions have 1, 3, 6, 4 and 4 times ``width`` channels, linear layers 16 times; d = 16 ``width``. Raises
    :class:`ConfigError` for images of less than 63 x 63 pixels.
    """

    def __init__(self, width: int, num_classes: int, input_size: int) -> None:
        super().__init__()
        if input_size < _SMALLEST_INPUT:
            raise ConfigError(
                f"model_args.model: alexnet pools images of {input_size}x{input_size} to nothing; set"
                f" data_args.image_size to {_SMALLEST_INPUT} or more (256 as published)"
            )
        self.features = nn.Sequential(
            _conv_block(3, width, 11, stride=4, padding=2, pool=True),
            _conv_block(width, 3 * width, 5, padding=2, pool=True),
            _conv_block(3 * width, 6 * width, 3, padding=1),
            _conv_block(6 * width, 4 * width, 3, padding=1),
            _conv_block(4 * width, 4 * width, 3, padding=1, pool=True),
        )
        self.pool = nn.AdaptiveAvgPool2d(_POOLED)
        self.hidden = nn.Sequential(
            _linear_block(4 * width * _POOLED**2, 16 * width),
            _linear_block(16 * width, 16 * width),
        )
        self.predictor = nn.Linear(16 * width, num_classes)

    def conv_stages(self) -> list[nn.Sequential]:
        return cast("list[nn.Sequential]", list(self.features))

    def encode(self, images: Tensor) -> Tensor:
        representations: Tensor = self.hidden(self.pool(self.features(images)).flatten(1))
        return representations


def alexnet(width: int, num_classes: int, input_size: int) -> AlexNet:
    """12,974,154 parameters at width 64 and 10 classes, for images of any size from 63 x 63 on."""
    return AlexNet(width, num_classes, input_size)


def _conv_block(
    in_channels: int, out_channels: int, kernel_size: int, *, padding: int, stride: int = 1, pool: bool = False
) -> nn.Sequential:
    layers = OrderedDict[str, nn.Module](
        conv=nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding),
        bn=nn.BatchNorm2d(out_channels),
        relu=nn.ReLU(),
    )
    if pool:
        layers["pool"] = nn.MaxPool2d(3, stride=2)
    return nn.Sequential(layers)


def _linear_block(in_features: int, out_features: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            linear=nn.Linear(in_features, out_features), bn=nn.BatchNorm1d(out_features), relu=nn.ReLU()
        )
    )
