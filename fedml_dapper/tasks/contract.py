"""What a task says: by what a model is trained, by what it is judged, and what its outputs mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedml_dapper.inputs import Inputs
from fedml_dapper.inputs import described as each_described
from fedml_dapper.metric import Metric


class Task(ABC):
    """What a federation learns to do. ``outputs`` are the model's for a batch, ``targets`` what the data says of it."""

    name: ClassVar[str]
    headline: ClassVar[Metric]
    """The figure that results, and the choice of the best round, go by."""
    panels: ClassVar[tuple[str, ...]] = ()
    """Names of the pictures that :meth:`draw` makes of a sample; none where the task draws nothing."""
    has_labels: ClassVar[bool] = False
    """Whether a sample's target is one class, an int64 number; some methods need that."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What training minimises: a scalar, the mean over the batch."""

    @abstractmethod
    def sums(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """What the figures are made of, by name: tensors that add up over batches, such as counts and summed errors."""

    @abstractmethod
    def figures(self, sums: Mapping[str, Tensor]) -> Mapping[str, float]:
        """All figures by name, the headline's among them, from ``sums`` over all batches (float64, on the CPU)."""

    def total_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss summed over the batch, so that batches of any size add up."""
        return self.loss(outputs, targets) * len(targets)

    def prediction(self, outputs: Tensor) -> Tensor:
        """What outputs mean, comparable with targets; by default the outputs themselves."""
        return outputs

    def augment(self, inputs: Inputs, targets: Tensor, generator: torch.Generator) -> tuple[Inputs, Tensor]:
        """A training batch, changed at random in inputs and targets alike; by default as it is.

        All that is random comes from ``generator``, which is on the CPU.
        """
        del generator
        return inputs, targets

    def draw(self, inputs: Inputs, targets: Tensor, outputs: Tensor) -> Tensor:
        """For reports: the ``panels`` of every sample, uint8 of shape (B, panels, H, W, 3)."""
        raise NotImplementedError

    def misfit(self, outputs: Tensor, num_classes: int) -> str:
        """What keeps ``outputs`` of a model from fitting this task, in words; empty where nothing does."""
        del outputs, num_classes
        return ""

    def misfit_of_targets(self, targets: Tensor, num_classes: int) -> str:
        """What keeps ``targets``, a batch of the data's, from fitting this task, and what to do; empty where nothing
        does. By default they are classes where the task has such."""
        del num_classes
        return no_classes(targets) if self.has_labels else ""


def no_classes(targets: Tensor) -> str:
    """What keeps ``targets`` from being one class a sample, int64 (B,), and what to do; empty where nothing does."""
    shape = targets.shape[1:]
    if not shape and targets.dtype == torch.int64:
        return ""
    if not shape and targets.dtype == torch.bool:
        remedy = "int(target) makes the classes 0 and 1"
    elif not shape:
        remedy = "int(target) makes one of 2.0"
    elif shape == (1,):
        remedy = "int(target) takes a class out of its column"
    elif len(shape) == 1:
        remedy = "int(target.argmax()) is the class of a one-hot target; of several classes at once a task of your own"
        remedy += " makes sense (docs/own_task.md)"
    else:
        remedy = "for a class a pixel choose train_args.task: segmentation"
    return f"{described(targets)}, and a class is one whole number from 0 on; {remedy}"


def described(batch: Inputs) -> str:
    """Dtype and shape, in words."""
    return each_described(batch, _described)


def _described(batch: Tensor) -> str:
    return f"{str(batch.dtype).removeprefix('torch.')} of shape ({', '.join(['B', *map(str, batch.shape[1:])])})"
