"""Random draws made deterministic, so that networks of different widths can be compared while they drop out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from fedml_dapper.models.dispatch_mode import DispatchMode

aten = torch.ops.aten
_SEED = 17


class Draws(DispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which every random number is the same quantile of its distribution, whatever shape is drawn.

    Near 1 dropout and stochastic depth keep everything; near 0 they drop all they can. Operations without a rule here
    are seeded by the number of draws before them alone.
    """

    def __init__(self, quantile: float) -> None:
        super().__init__()
        self._quantile = quantile
        self.count = 0
        """How often something was drawn."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        self.count += 1
        torch.manual_seed(_SEED + self.count)
        out = func(*args, **(kwargs or {}))
        rule = _RULES.get(func.overloadpacket)
        if rule is not None:
            values = {argument.name: argument.default_value for argument in func._schema.arguments}
            values.update(zip(values, args, strict=False))
            rule(out, self._quantile, {**values, **(kwargs or {})})
        return out


def _uniform(out: Tensor, quantile: float, values: Mapping[str, Any]) -> None:
    low = values.get("from", 0.0)
    high = values.get("to", 1.0)
    out.fill_(low + quantile * (high - low))


def _normal(out: Tensor, quantile: float, values: Mapping[str, Any]) -> None:
    mean = values.get("mean", 0.0)
    std = values.get("std", 1.0)
    out.copy_(torch.as_tensor(mean + std * NormalDist().inv_cdf(quantile)))


def _exponential(out: Tensor, quantile: float, values: Mapping[str, Any]) -> None:
    out.fill_(-log(1 - quantile) / values["lambd"])


def _bernoulli(out: Tensor, quantile: float, values: Mapping[str, Any]) -> None:
    share = values["self"] if values.get("p") is None else values["p"]
    out.copy_(torch.as_tensor(share > 1 - quantile))


def _leaky(out: Tensor, quantile: float, values: Mapping[str, Any]) -> None:
    """Draw the slopes of a randomised leaky ReLU again.

    The operation has left its own slopes in ``noise``, and may have overwritten its input.
    """
    low = values["lower"]
    high = values["upper"]
    if values["training"]:
        out.copy_(torch.where(out < 0, out / values["noise"] * (low + quantile * (high - low)), out))


_RULES: Mapping[Any, Callable[[Tensor, float, Mapping[str, Any]], None]] = {
    **dict.fromkeys((aten.rand, aten.rand_like, aten.uniform_), _uniform),
    **dict.fromkeys((aten.randn, aten.randn_like, aten.normal, aten.normal_), _normal),
    **dict.fromkeys((aten.bernoulli, aten.bernoulli_), _bernoulli),
    aten.exponential_: _exponential,
    **dict.fromkeys((aten.rrelu_with_noise, aten.rrelu_with_noise_), _leaky),
}
"""Operation -> function that overwrites its output with the quantile."""
