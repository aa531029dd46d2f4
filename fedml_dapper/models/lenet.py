"""LeNet5 with BatchNorm behind its convolutions, and one, two or three hidden layers (FedCMD)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedml_dapper.errors import ConfigError
from fedml_dapper.models.backbone import Backbone

WIDTH = 6
"""Channels of the first convolution as published."""
_SMALLEST_INPUT = 16
"""Smallest side of an image; with less, nothing is left for the second pooling."""


class LeNet5(Backbone):
    """Twice convolution 5x5 - BN - ReLU - max-pool, then hidden linear layers with ReLU; z is the last one's output.

    At the published width of 6 the second convolution has 16 channels and the hidden layers ``hidden_features`` units;
    other widths scale all of them alike, rounded.

    Raises:
        ConfigError: Images are smaller than 16 x 16 pixels.
    """

    def __init__(self, hidden_features: Sequence[int], width: int, num_classes: int, input_size: int) -> None:
        super().__init__()
        if input_size < _SMALLEST_INPUT:
            raise ConfigError(
                f"model_args.model: lenet5 pools images of {input_size}x{input_size} to nothing; set"
                f" data_args.image_size to {_SMALLEST_INPUT} or more"
            )
        channels = _scaled(16, width)
        self.conv1 = nn.Conv2d(3, width, 5)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, channels, 5)
        self.bn2 = nn.BatchNorm2d(channels)
        self.pool1, self.pool2 = (nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)) for _ in range(2))
        side = ((input_size - 4) // 2 - 4) // 2
        features = channels * side**2
        layers = list[nn.Module]()
        for published in hidden_features:
            units = _scaled(published, width)
            layers += [nn.Linear(features, units), nn.ReLU()]
            features = units
        self.hidden = nn.Sequential(*layers)
        self.predictor = nn.Linear(features, num_classes)

    def conv_stages(self) -> list[nn.Sequential]:
        return [self.pool1, self.pool2]

    def encode(self, images: Tensor) -> Tensor:
        features = self.pool1(self.bn1(self.conv1(images)))
        features = self.pool2(self.bn2(self.conv2(features)))
        representations: Tensor = self.hidden(features.flatten(1))
        return representations


def lenet5(width: int, num_classes: int, input_size: int) -> LeNet5:
    """Build LeNet5 with hidden layers of 120 and 84: 62,050 parameters at width 6, 10 classes and 32 x 32 pixels."""
    return LeNet5((120, 84), width, num_classes, input_size)


def lenet5_one_fc(width: int, num_classes: int, input_size: int) -> LeNet5:
    """Build LeNet5 with one hidden layer of 120: 52,246 parameters at width 6, 10 classes and 32 x 32 pixels."""
    return LeNet5((120,), width, num_classes, input_size)


def lenet5_three_fc(width: int, num_classes: int, input_size: int) -> LeNet5:
    """Build LeNet5 with hidden layers of 120, 84 and 64: 67,290 parameters at width 6, 10 classes, 32 x 32 pixels."""
    return LeNet5((120, 84, 64), width, num_classes, input_size)


def _scaled(published: int, width: int) -> int:
    return max(1, round(published * width / WIDTH))
