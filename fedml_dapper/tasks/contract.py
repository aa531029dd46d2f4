"""Base class of tasks: the loss of training, the metrics of evaluation, and the meaning of outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedml_dapper.capture import Unchanging
from fedml_dapper.inputs import Inputs
from fedml_dapper.inputs import described as each_described
from fedml_dapper.metric import Metric


class Task(Unchanging, ABC):
    """What a federation learns to do: a loss, metrics, and the meaning of a model's outputs.

    Everywhere ``outputs`` are those of the model for a batch, and ``targets`` those of the data.
    """

    name: ClassVar[str]
    headline: ClassVar[Metric]
    """Metric that results report, and that chooses the best round."""
    panels: ClassVar[tuple[str, ...]] = ()
    """Names of the pictures that :meth:`draw` makes of a sample; none where the task draws nothing."""
    has_labels: ClassVar[bool] = False
    """Whether a sample's target is one class, an int64 number; some methods need that."""
    has_logits: ClassVar[bool] = False
    """Whether :meth:`logits` gives logits of classes, which methods that distil compare."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss that training minimises: a scalar, the mean over the batch."""

    @abstractmethod
    def sums(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return what :meth:`figures` needs, by name: tensors that add up over batches, such as counts and summed
        errors."""

    @abstractmethod
    def figures(self, sums: Mapping[str, Tensor]) -> Mapping[str, float]:
        """Return all metrics by name, the headline's included, from ``sums`` over all batches (float64, on the CPU)."""

    def weight(self, targets: Tensor) -> int | Tensor:
        """Return what the loss of a batch is a mean over: its samples, or those of their parts that count.

        By it the pieces of a batch (``train_args.micro_batch_size``) count as they do in the whole.
        """
        return len(targets)

    def total_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss summed over the batch, so that batches of any size add up."""
        return self.loss(outputs, targets) * len(targets)

    def prediction(self, outputs: Tensor) -> Tensor:
        """Return outputs in the form of targets; by default the outputs themselves."""
        return outputs

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the logits of each prediction in ``outputs``, shape (N, C); by default the outputs themselves."""
        return outputs

    def augment(self, inputs: Inputs, targets: Tensor, generator: torch.Generator) -> tuple[Inputs, Tensor]:
        """Return a training batch with inputs and targets augmented together; by default unchanged.

        All random numbers come from ``generator``, which is on the CPU.
        """
        del generator
        return inputs, targets

    def draw(self, inputs: Inputs, targets: Tensor, outputs: Tensor) -> Tensor:
        """Draw the ``panels`` of every sample for reports, uint8 of shape (B, panels, H, W, 3)."""
        raise NotImplementedError

    def misfit(self, outputs: Tensor, num_classes: int) -> str:
        """Return why a model's ``outputs`` do not fit this task; empty where they do."""
        del outputs, num_classes
        return ""

    def misfit_of_targets(self, targets: Tensor, num_classes: int) -> str:
        """Return why a batch of ``targets`` does not fit this task, and what to do; empty where it does.

        By default targets have to be classes if the task has labels.
        """
        del num_classes
        return no_classes(targets) if self.has_labels else ""


def no_classes(targets: Tensor) -> str:
    """Return why ``targets`` are not one class per sample, int64 (B,), and what to do; empty where they are."""
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
    """Describe dtype and shape of a batch."""
    return each_described(batch, _described)


def _described(batch: Tensor) -> str:
    return f"{str(batch.dtype).removeprefix('torch.')} of shape ({', '.join(['B', *map(str, batch.shape[1:])])})"
