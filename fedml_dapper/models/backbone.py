"""Base class of all models: an encoder ``g_e`` and a predictor ``g_p``."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Backbone(nn.Module, ABC):
    """A network split into encoder (all but the last linear layer) and predictor (the last linear layer)."""

    predictor: nn.Linear
    """The last linear layer; networks that are not built in may have none."""

    @abstractmethod
    def encode(self, inputs: Any) -> Tensor:
        """Return the representations z of ``inputs``, shape (B, d).

        ``inputs`` are one tensor or several (:data:`~fedml_dapper.inputs.Inputs`); images have shape (B, 3, S, S) and
        are normalised.
        """

    @property
    def has_representations(self) -> bool:
        """Whether z is one vector per sample, under a linear predictor."""
        return isinstance(self.predictor, nn.Linear)

    @property
    def label(self) -> str:
        """Name of the network in errors."""
        return type(self).__name__

    @property
    def predictor_name(self) -> str | None:
        """Name of the predictor among the modules; None where there is no predictor."""
        return next((name for name, module in self.named_modules() if module is self.predictor), None)

    @property
    def head_tensors(self) -> frozenset[str]:
        """State-dict entries of the predictor; none where there is no predictor."""
        name = self.predictor_name
        predictor = self.predictor
        if name is None:
            return frozenset()
        return frozenset(f"{name}.{entry}" if name else entry for entry in predictor.state_dict())

    @property
    def module_order(self) -> Sequence[str]:
        """Names of all modules, in the order in which a forward pass reaches them."""
        return [name for name, _ in self.named_modules()]

    def conv_stages(self) -> list[nn.Sequential]:
        """Return the last module of every convolutional stage, in forward order; empty if none are marked.

        A module appended to one of them gets the stage's output, shape (B, C', S', S'), after its pooling.
        """
        return []

    def predict(self, representations: Tensor) -> Tensor:
        """Return the logits, shape (B, C), of ``representations``, shape (B, d)."""
        logits: Tensor = self.predictor(representations)
        return logits

    def forward(self, inputs: Any) -> Tensor:
        """Return the outputs of :meth:`predict` for the representations of :meth:`encode`."""
        return self.predict(self.encode(inputs))

    def release_predictor(self) -> nn.Linear:
        """Remove the predictor and return it; the backbone can only encode from then on."""
        predictor = self.predictor
        del self.predictor
        return predictor


class ExtendedBackbone(Backbone):
    """A copy of a backbone whose encoder subclasses extend by layers of their own; the predictor stays on top."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(backbone)
        self.predictor = self.encoder.release_predictor()  # left there too, the state dict would hold it twice


def example_image(size: int) -> Tensor:
    """Return one image of zeros as backbones take it, shape (1, 3, ``size``, ``size``)."""
    return torch.zeros(1, 3, size, size)
