"""LG-FedAvg (Liang et al., arXiv 2001.01523): local representations under a global top.

The lower layers, buffers included, stay on the client; only the top ones are sent and averaged as in FedAvg. All are
trained jointly on cross-entropy: the original's auxiliary losses for the representation are left out, as in the
comparisons. Where to split is open there. By default the classifier alone is shared, as in FLGo, on which FDSE's
comparison runs: its ``p: 2`` counts tensors, the classifier's weight and bias.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

from pydantic import field_validator

from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.contract import Method, MethodParams, Problem
from fedml_dapper.methods.parts.layers import Layer, layers_of, linear_layers


class LGFedAvgParams(MethodParams):
    """Settings of LG-FedAvg."""

    num_global_layers: int | Literal["all"] = 1
    """Number of shared linear layers from the top, each with its BatchNorm: 1 is the classifier, 0 trains every client
    alone. ``all`` shares the convolutions too and is FedAvg."""

    @field_validator("num_global_layers", mode="before")
    @classmethod
    def _count_or_word(cls, value: Any) -> Any:
        if value == "all" or (type(value) is int and value >= 0):
            return value
        raise ValueError(f"is {value!r}; choose a number of layers, or all")


class LGFedAvg(Method[LGFedAvgParams]):
    """FedAvg on the top linear layers alone."""

    name = "lg_fedavg"
    Params = LGFedAvgParams
    has_global_model = False
    serves_newcomers = False
    cost_note = "every client trains the full model and keeps its lower layers between rounds."

    def __init__(self, params: LGFedAvgParams, problem: Problem) -> None:
        super().__init__(params, problem)
        linear = len(self._linear_layers())
        asked = params.num_global_layers
        if not linear and asked != "all":
            raise ConfigError(
                "dapper_args.params.lg_fedavg.num_global_layers: the model has no linear layer, so nothing would be"
                " averaged; choose `all` to share its convolutions, or another method"
            )
        if isinstance(asked, int) and asked > linear:
            raise ConfigError(
                f"dapper_args.params.lg_fedavg.num_global_layers: the model has no {asked} linear layers but {linear};"
                " choose fewer, or `all` to share its convolutions too"
            )

    @cached_property
    def personal(self) -> frozenset[str]:
        """State-dict entries of everything below the top linear layers."""
        asked = self.params.num_global_layers
        linear = self._linear_layers()
        if asked == "all":
            return frozenset()
        shared = {tensor for layer in linear[len(linear) - asked :] for tensor in layer.tensors}
        return frozenset(self.problem.backbone.state_dict().keys() - shared)

    def _linear_layers(self) -> list[Layer]:
        model = self.problem.backbone
        linear = linear_layers(model, self.problem.example)
        return [layer for layer in layers_of(model) if layer.name in linear]
