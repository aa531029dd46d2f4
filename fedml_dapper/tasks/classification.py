"""Classification: one class per sample."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedml_dapper.metric import TOP_1
from fedml_dapper.tasks.contract import Task
from fedml_dapper.tasks.cross_entropy import cross_entropy


class Classification(Task):
    """Cross-entropy of logits (B, C) with classes, int64 (B,)."""

    name = "classification"
    headline = TOP_1
    has_labels = True
    has_logits = True

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)

    def total_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets, reduction="sum")

    def sums(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        return {"correct": (self.prediction(outputs) == targets).sum(), "samples": torch.tensor(len(targets))}

    def figures(self, sums: Mapping[str, Tensor]) -> Mapping[str, float]:
        return {TOP_1.name: 100 * float(sums["correct"]) / float(sums["samples"])}

    def prediction(self, outputs: Tensor) -> Tensor:
        """Return the most likely class of each sample, int64 (B,)."""
        return outputs.argmax(dim=1)

    def misfit(self, outputs: Tensor, num_classes: int) -> str:
        if outputs.shape == (len(outputs), num_classes):
            return ""
        found = ", ".join(["B", *map(str, outputs.shape[1:])])
        return (
            f"it gives ({found}), and (B, {num_classes}) is expected for the data's {num_classes} classes; let it take"
            " `num_classes`, or set its size in model_args.arguments"
        )
