"""A network of one's own: any torch module. It is told the number of classes because it takes `num_classes`."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes: int, channels: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.BatchNorm2d(2 * channels), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.dropout = nn.Dropout(0.1)
        self.fc = nn.Linear(8 * channels, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc(self.dropout(self.features(images)))
