"""FedPer (Arivazhagan et al., arXiv 1912.00818): a shared base under personal top layers.

A client trains base and personal layers jointly; the base is averaged as in FedAvg, the personal layers, which start
from the initial model, never leave the client.
"""

from __future__ import annotations

from functools import cached_property

from pydantic import Field

from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.contract import Method, MethodParams, Problem
from fedml_dapper.methods.parts.layers import layers_of


class FedPerParams(MethodParams):
    """Settings of FedPer."""

    num_personal_layers: int = Field(default=1, ge=0)
    """Number of personal layers from the top, convolutions and linear ones, each with its BatchNorm: 1 is the
    classifier, 0 FedAvg."""


class FedPer(Method[FedPerParams]):
    """FedAvg on the base, personal layers on top."""

    name = "fedper"
    Params = FedPerParams
    has_global_model = False
    serves_newcomers = False
    cost_note = "every client trains the full model and keeps its top layers between rounds."

    def __init__(self, params: FedPerParams, problem: Problem) -> None:
        super().__init__(params, problem)
        layers = layers_of(self.problem.backbone)
        if params.num_personal_layers > len(layers):
            raise ConfigError(
                f"dapper_args.params.fedper.num_personal_layers: the model has only {len(layers)} layers, not"
                f" {params.num_personal_layers}; 1 keeps the classifier personal"
            )

    @cached_property
    def personal(self) -> frozenset[str]:
        """State-dict entries of the top layers."""
        layers = layers_of(self.problem.backbone)
        top = layers[len(layers) - self.params.num_personal_layers :]
        return frozenset(tensor for layer in top for tensor in layer.tensors)
