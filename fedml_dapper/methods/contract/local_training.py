"""Local epochs on a client, with the counting that every method needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import nan

import torch
from torch import Tensor, nn

from fedml_dapper.capture import EAGER, Capture
from fedml_dapper.config import Precision, TrainArgs
from fedml_dapper.datasets import Batch, ClientData
from fedml_dapper.inputs import Inputs
from fedml_dapper.methods.contract.messages import TrainingMetrics
from fedml_dapper.methods.contract.metrics_on_gpu import GPUClock, MetricsOnGPU
from fedml_dapper.methods.contract.optimizers import uncompiled
from fedml_dapper.methods.contract.state import ClientProfile, Memory
from fedml_dapper.methods.contract.step import Loss, Step, Terms
from fedml_dapper.models import Backbone
from fedml_dapper.models.training_memory import NetworkMemory, network_memory
from fedml_dapper.process.profiling import fetching, part

Augment = Callable[[Iterable[Batch], int, int], Iterable[Batch]]
"""Augmentation: from the batches of an epoch, its round and its number, to the batches that are trained on."""
StepListener = Callable[[int, int], None]
"""Listener that is called after each optimizer step, with (steps done, steps in all)."""


@dataclass
class ClientContext:
    """A client as a method sees it: who it is, its images, what it remembers, where it computes."""

    profile: ClientProfile
    data: ClientData
    memory: Memory = field(default_factory=Memory)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Precision = "fp32"
    augment: Augment = lambda batches, round_, epoch: batches
    """Augmentation of the task, beside the data's."""
    on_step: StepListener = lambda done, total: None
    capture: Capture = EAGER
    """The way of taking steps."""
    weigh: Callable[[Tensor], int | Tensor] = len
    """:meth:`~fedml_dapper.tasks.Task.weight` of the task."""


class LocalTraining:
    """The local epochs of one client in one round, by the optimizer of ``train_args`` (DapperFL, Table 4: SGD).

    Batches depend on (seed, client, round, epoch) only, so all methods see the same ones.
    """

    def __init__(self, client: ClientContext, round_: int, args: TrainArgs, epochs: int | None = None) -> None:
        self._client = client
        self._round = round_
        self._args = args
        self._epochs = args.epochs if epochs is None else epochs
        self._epoch = 0
        self._steps = 0
        self._mean_loss = torch.tensor(nan)
        """Mean loss of the last epoch, which stays on the device until somebody asks for it."""
        self._scaler = torch.GradScaler(client.device.type) if client.precision == "fp16" else None
        self._started = time.perf_counter()
        self._clock = GPUClock(client.device) if client.device.type == "cuda" else None

    @property
    def learning_rate(self) -> float:
        """Learning rate of the present round."""
        return self._args.learning_rate * self._args.learning_rate_decay ** (self._round - 1)

    @part("optimizer")
    def optimizer(
        self, model: nn.Module, momentum: float | None = None, parameters: Iterable[nn.Parameter] | None = None
    ) -> torch.optim.Optimizer:
        """A fresh optimizer: momentum starts at zero in every round. It steps ``parameters``, by default all of the
        model's; ``momentum`` replaces the setting's for methods that need SGD with another."""
        stepped = model.parameters() if parameters is None else parameters
        return new_optimizer(self._args, stepped, self.learning_rate, momentum)

    def epoch(
        self,
        model: Backbone,
        optimizer: torch.optim.Optimizer,
        loss: Loss | Terms,
        after_step: Callable[[], None] | None = None,
        *,
        times: int = 1,
        before_step: Callable[[], None] | None = None,
        mode: Callable[[Backbone], object] = nn.Module.train,
    ) -> None:
        """``times`` passes over the client's images, minimising ``loss`` (a mean over the batch).

        With ``train_args.micro_batch_size``, ``loss`` is called for each piece of a batch, and counts by its samples.
        ``before_step`` may change the gradients, before they are clipped; ``mode`` puts the model's layers into the
        modes they train in. Between two passes of one call nothing but the steps changes the model.
        """
        if times == 0:
            return
        mode(model)
        total = torch.zeros((), dtype=torch.float64, device=self._client.device)
        precision = self._client.precision
        weigh = self._client.weigh
        step = Step(model, optimizer, total, loss, self._args, precision, before_step, after_step, self._scaler, weigh)
        with self._client.capture.steps(step) as take:
            for together in (times - 1, 1):  # the last one by itself, as its loss is reported
                total.zero_()
                samples = sum(self._pass(take) for _ in range(together))
                take.hand_back()
                if together > 0:
                    self._mean_loss = total / samples

    def _pass(self, take: Callable[[Batch], None]) -> int:
        """Take a step on each batch of the next epoch; returns the number of samples."""
        self._epoch += 1
        samples = 0
        drawn = self._client.data.batches(self._round, self._epoch, self._client.device)
        for batch in fetching("data", self._client.augment(drawn, self._round, self._epoch)):
            take(batch)
            samples += len(batch.targets)
            self._steps += 1
            self._client.on_step(self._steps, self._epochs * self._client.data.steps_per_epoch)
        return samples

    def metrics(self) -> TrainingMetrics:
        """Report of the epochs so far: loss of the last one, steps, seconds; of a GPU, its own."""
        if self._clock is not None:
            return MetricsOnGPU(self._mean_loss, self._steps, self._clock.stop())
        return TrainingMetrics(float(self._mean_loss), self._steps, time.perf_counter() - self._started)


def new_optimizer(
    args: TrainArgs, parameters: Iterable[nn.Parameter], rate: float, momentum: float | None = None
) -> torch.optim.Optimizer:
    """The optimizer that ``args`` name, at learning rate ``rate``; ``momentum`` replaces the setting's."""
    stepped = list(parameters)
    decay = args.weight_decay
    on_gpu = all(parameter.is_cuda for parameter in stepped)
    fused = True if on_gpu else None  # one kernel for all parameters; what torch takes on a CPU is left to it
    match args.client_optimizer:
        case "sgd":
            momentum = args.momentum if momentum is None else momentum
            return uncompiled(torch.optim.SGD)(stepped, rate, momentum, weight_decay=decay, fused=fused)
        case "adam":
            return uncompiled(torch.optim.Adam)(stepped, rate, weight_decay=decay, fused=fused, capturable=on_gpu)
        case "adamw":
            return uncompiled(torch.optim.AdamW)(stepped, rate, weight_decay=decay, fused=fused, capturable=on_gpu)


def training_memory(model: nn.Module, example: Inputs, args: TrainArgs) -> NetworkMemory:
    """Count the memory of training ``model`` by the optimizer that ``args`` name, on inputs like ``example``."""
    return network_memory(model, example, lambda parameters: new_optimizer(args, parameters, rate=0.0))
