"""The network as a device runs it: with normalisation inside, plain convolutions, and nothing to train."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedml_dapper.datasets import Preprocessing
from fedml_dapper.inputs import Inputs, like
from fedml_dapper.models import Backbone, with_plain_convolutions
from fedml_dapper.models.adopt import AdoptedBackbone
from fedml_dapper.models.passing import called


class Deployed(nn.Module):
    """A network as devices run it, from pixels, uint8 (N, 3, S, S), to a model's outputs.

    Without ``preprocessing`` its inputs are what the data set gives.
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(self, model: Backbone, preprocessing: Preprocessing | None) -> None:
        super().__init__()
        network = model.module if isinstance(model, AdoptedBackbone) else model
        self.network = with_plain_convolutions(network)
        for name in ("mean", "std"):
            values = None if preprocessing is None else torch.tensor(getattr(preprocessing, name)).view(3, 1, 1)
            self.register_buffer(name, values)
        self.eval().requires_grad_(False)

    def forward(self, inputs: Inputs) -> Tensor:
        if self.mean is not None and self.std is not None and isinstance(inputs, Tensor):
            inputs = (inputs.float() / 255 - self.mean) / self.std
        outputs: Tensor = called(self.network, inputs)
        return outputs


class InPositions(nn.Module):
    """A deployed network with one positional argument per tensor of its input, as formats for devices need it.

    ``example`` says which tensor is which.
    """

    def __init__(self, deployed: Deployed, example: Inputs) -> None:
        super().__init__()
        self.deployed = deployed
        self._example = example
        self.eval()

    def forward(self, *tensors: Tensor) -> Tensor:
        outputs: Tensor = self.deployed(like(self._example, tensors))
        return outputs
