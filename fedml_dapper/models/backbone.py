"""What every model offers: an encoder ``g_e`` and a predictor ``g_p``."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod

from torch import Tensor, nn


class Backbone(nn.Module, ABC):
    """A network split into encoder (all but the last linear layer) and predictor (the last linear layer)."""

    predictor: nn.Linear

    @abstractmethod
    def encode(self, images: Tensor) -> Tensor:
        """Representations z, shape (B, d), of normalised ``images``, shape (B, 3, S, S)."""

    @property
    def has_representations(self) -> bool:
        """Whether z is one vector a sample under a linear predictor."""
        return isinstance(self.predictor, nn.Linear)

    def conv_stages(self) -> list[nn.Sequential]:
        """What every convolutional stage ends in, in the order of the forward pass; empty where none are marked.

        A module appended to one of them sees the stage's output, shape (B, C', S', S'), after its pooling.
        """
        return []

    def predict(self, representations: Tensor) -> Tensor:
        """Logits, shape (B, C), of ``representations``, shape (B, d)."""
        logits: Tensor = self.predictor(representations)
        return logits

    def forward(self, images: Tensor) -> Tensor:
        return self.predict(self.encode(images))


class ExtendedBackbone(Backbone):
    """A copy of a backbone whose encoder subclasses extend by layers of their own; the predictor stays on top."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(backbone)
        self.predictor = self.encoder.predictor
        del self.encoder.predictor  # else the state dict would hold it twice
