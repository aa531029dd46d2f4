"""What every model offers: an encoder ``g_e`` and a predictor ``g_p`` (METHODS, section 0)."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Backbone(nn.Module, ABC):
    """A network split into encoder (all but the last linear layer) and predictor (the last linear layer)."""

    predictor: nn.Linear

    @abstractmethod
    def encode(self, images: Tensor) -> Tensor:
        """Representations z, shape (B, d), of normalised ``images``, shape (B, 3, S, S)."""

    def predict(self, representations: Tensor) -> Tensor:
        """Logits, shape (B, C), of ``representations``, shape (B, d)."""
        logits: Tensor = self.predictor(representations)
        return logits

    def forward(self, images: Tensor) -> Tensor:
        return self.predict(self.encode(images))
