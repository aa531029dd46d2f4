"""Uploads of a mixed fleet for measurements: two clients a level, each with its own slightly trained model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedml_dapper.config import ModelArgs
from fedml_dapper.methods import TrainingMetrics, Upload
from fedml_dapper.models import build_backbone, example_image
from fedml_dapper.pruning import DENSE, ChannelLayout, plan_by_importance, slim_tensors, solve_widths, trace_layout

RATIOS = (0.0, 0.2, 0.4, 0.6, 0.8)


@dataclass(frozen=True)
class Fleet:
    """A global model and what ``clients`` made of it: full models, and uploads cut to each one's level."""

    weights: dict[str, Tensor]
    layout: ChannelLayout
    full: Sequence[dict[str, Tensor]]
    uploads: Sequence[Upload]


def fleet(model: str, clients: int, input_size: int = 32, ratios: Sequence[float] = RATIOS) -> Fleet:
    """``clients`` clients of ``model``, their levels in turn."""
    backbone = build_backbone(ModelArgs(model=model), 10, 1, example_image(input_size))
    layout = trace_layout(backbone, example_image(input_size), "internal")
    weights = {name: tensor.detach().clone() for name, tensor in backbone.state_dict().items()}
    generator = torch.Generator().manual_seed(1)
    full, uploads = [], []
    for client in range(clients):
        trained = {
            name: tensor + 0.01 * torch.randn(tensor.shape, generator=generator)
            if tensor.is_floating_point()
            else tensor.clone()
            for name, tensor in weights.items()
        }
        widths = solve_widths(layout, ratios[client % len(ratios)], "parameters")
        plan = plan_by_importance(layout, trained, widths) if widths else DENSE
        full.append(trained)
        uploads.append(
            Upload(
                round=1,
                client_id=client,
                num_samples=100 + client,
                weights={name: tensor.clone() for name, tensor in slim_tensors(trained, layout, plan).items()},
                metrics=TrainingMetrics(1.0, 1, 1.0),
                plan=plan,
            )
        )
    return Fleet(weights, layout, full, uploads)
