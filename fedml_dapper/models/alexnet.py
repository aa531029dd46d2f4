"""AlexNet with BatchNorm behind every layer and hidden layers of 1024 units (the backbone of FDSE)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from torch import Tensor, nn

from fedml_dapper.config import Norm
from fedml_dapper.errors import ConfigError
from fedml_dapper.models.backbone import Backbone
from fedml_dapper.models.standardised import GROUP, StandardisedConv2d

WIDTH = 64
"""Channels of the first convolution as published."""
_SMALLEST_INPUT = 63
"""Smallest side of an image; with less, nothing is left for the last pooling."""
_POOLED = 6
"""Side of the feature maps after adaptive pooling, whatever the size of the images."""


_NORMS: Mapping[Norm, Callable[[int], nn.Module]] = {
    "group": lambda channels: nn.GroupNorm(max(1, channels // GROUP), channels),
    "standardised": lambda channels: nn.Identity(),
}
"""Norms behind both convolutions and linear layers; the class of BatchNorm depends on the layer."""
NORMS: tuple[Norm, ...] = ("batch", *_NORMS)


class AlexNet(Backbone):
    """Five blocks of convolution - BN - ReLU (- max-pool), two of linear - BN - ReLU; z is the last one's output.

    Convolutions have 1, 3, 6, 4 and 4 times ``width`` channels, linear layers 16 times; d = 16 ``width``. Another
    ``norm`` replaces each BN by another layer or none. With standardised filters the linear layers are convolutions
    over the whole map, so that their weights are standardised, too.

    Raises:
        ConfigError: Images are smaller than 63 x 63 pixels.
    """

    def __init__(self, width: int, num_classes: int, input_size: int, norm: Norm = "batch") -> None:
        super().__init__()
        if input_size < _SMALLEST_INPUT:
            raise ConfigError(
                f"model_args.model: alexnet pools images of {input_size}x{input_size} to nothing; set"
                f" data_args.image_size to {_SMALLEST_INPUT} or more (256 as published)"
            )
        block = partial(_conv_block, norm=norm)
        self.features = nn.Sequential(
            block(3, width, 11, stride=4, padding=2, pool=True),
            block(width, 3 * width, 5, padding=2, pool=True),
            block(3 * width, 6 * width, 3, padding=1),
            block(6 * width, 4 * width, 3, padding=1),
            block(4 * width, 4 * width, 3, padding=1, pool=True),
        )
        self.pool = nn.AdaptiveAvgPool2d(_POOLED)
        if norm == "standardised":
            self.hidden = nn.Sequential(block(4 * width, 16 * width, _POOLED), block(16 * width, 16 * width, 1))
        else:
            self.hidden = nn.Sequential(
                _linear_block(4 * width * _POOLED**2, 16 * width, norm), _linear_block(16 * width, 16 * width, norm)
            )
        self._takes_maps = norm == "standardised"
        self.predictor = nn.Linear(16 * width, num_classes)

    def conv_stages(self) -> list[nn.Sequential]:
        return cast("list[nn.Sequential]", list(self.features))

    def encode(self, images: Tensor) -> Tensor:
        pooled = self.pool(self.features(images))
        representations: Tensor = self.hidden(pooled if self._takes_maps else pooled.flatten(1))
        return representations.flatten(1)


def alexnet(width: int, num_classes: int, input_size: int, norm: Norm = "batch") -> AlexNet:
    """Build AlexNet: 12,974,154 parameters at width 64 and 10 classes, for images from 63 x 63 pixels on."""
    return AlexNet(width, num_classes, input_size, norm)


def _conv_block(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    *,
    norm: Norm,
    padding: int = 0,
    stride: int = 1,
    pool: bool = False,
) -> nn.Sequential:
    kind = StandardisedConv2d if norm == "standardised" else nn.Conv2d
    layers = OrderedDict[str, nn.Module](
        conv=kind(in_channels, out_channels, kernel_size, stride, padding),
        bn=_NORMS.get(norm, nn.BatchNorm2d)(out_channels),
        relu=nn.ReLU(),
    )
    if pool:
        layers["pool"] = nn.MaxPool2d(3, stride=2)
    return nn.Sequential(layers)


def _linear_block(in_features: int, out_features: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            linear=nn.Linear(in_features, out_features),
            bn=_NORMS.get(norm, nn.BatchNorm1d)(out_features),
            relu=nn.ReLU(),
        )
    )
