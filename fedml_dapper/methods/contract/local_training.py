"""Local epochs on a client, with the counting that every method needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedml_dapper.config import Precision, TrainArgs
from fedml_dapper.datasets import Batch, ClientData
from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.contract.clipping import clip_adaptively
from fedml_dapper.methods.contract.messages import TrainingMetrics
from fedml_dapper.methods.contract.optimizers import uncompiled
from fedml_dapper.methods.contract.state import ClientProfile, Memory
from fedml_dapper.models import Backbone
from fedml_dapper.process.profiling import fetching, part

Loss = Callable[[Backbone, Batch], Tensor]
"""A local objective: the model's mean loss over a batch."""
Terms = Callable[[Backbone, Batch], Iterator[Tensor]]
"""A local objective that comes term by term. Gradients of each are taken before the next is computed, so that memory
holds what one of them needs; terms may share outputs as values only."""
_AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
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
        self._loss = float("nan")
        self._scaler = torch.GradScaler(client.device.type, enabled=client.precision == "fp16")
        self._started = time.perf_counter()

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
        before_step: Callable[[], None] | None = None,
        mode: Callable[[Backbone], object] = nn.Module.train,
    ) -> None:
        """One pass over the client's images, minimising ``loss`` (a mean over the batch).

        With ``train_args.micro_batch_size``, ``loss`` is called for each piece of a batch, and counts by its samples.
        ``before_step`` may change the gradients, before they are clipped; ``mode`` puts the model's layers into the
        modes they train in.
        """
        self._epoch += 1
        mode(model)
        total = torch.zeros((), dtype=torch.float64, device=self._client.device)
        samples = 0
        head = model.head_tensors
        body = [parameter for name, parameter in model.named_parameters() if name not in head]
        drawn = self._client.data.batches(self._round, self._epoch, self._client.device)
        for batch in fetching("data", self._client.augment(drawn, self._round, self._epoch)):
            optimizer.zero_grad(set_to_none=True)
            for piece in batch.pieces(self._args.micro_batch_size or len(batch.targets)):
                with part("forward/backward"):
                    value = self._take_gradients(loss, model, piece, len(piece.targets) / len(batch.targets))
                total += value * len(piece.targets)
            with part("optimizer"):
                self._scaler.unscale_(optimizer)
                if before_step is not None:
                    before_step()
                if self._args.adaptive_clipping is not None:
                    clip_adaptively(body, self._args.adaptive_clipping)
                if self._args.max_grad_norm is not None:
                    stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
                    nn.utils.clip_grad_norm_(stepped, self._args.max_grad_norm)
                self._scaler.step(optimizer)
                self._scaler.update()
                if after_step is not None:
                    after_step()
            samples += len(batch.targets)
            self._steps += 1
            self._client.on_step(self._steps, self._epochs * self._client.data.steps_per_epoch)
        self._loss = float(total) / samples

    def _take_gradients(self, loss: Loss | Terms, model: Backbone, batch: Batch, share: float) -> Tensor:
        """Add ``share`` of the gradients of ``loss``, term by term; returns its value."""
        precision = self._client.precision
        value = torch.zeros((), device=self._client.device)
        autocast = torch.autocast(self._client.device.type, _AUTOCAST[precision], enabled=precision != "fp32")
        with autocast:
            found = loss(model, batch)
        terms = found if isinstance(found, Iterator) else iter((_one_number(found),))
        while True:
            with autocast:
                term = next(terms, None)
            if term is None:
                return value
            self._scaler.scale(term * share).backward()  # type: ignore[no-untyped-call]  # torch ships it untyped
            value = value + term.detach()

    def metrics(self) -> TrainingMetrics:
        """Report of the epochs so far: loss of the last one, steps, seconds."""
        return TrainingMetrics(self._loss, self._steps, time.perf_counter() - self._started)


def _one_number(loss: object) -> Tensor:
    """Return ``loss``; raise :class:`ConfigError` where a task or method of the user's own gives something else."""
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss
    given = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
    raise ConfigError(
        f"the loss of a batch is {given}, and has to be a tensor of one number, such as the mean over the batch; mend"
        " what train_args.task or dapper_args.method gives"
    )


def new_optimizer(
    args: TrainArgs, parameters: Iterable[nn.Parameter], rate: float, momentum: float | None = None
) -> torch.optim.Optimizer:
    """The optimizer that ``args`` name, at learning rate ``rate``; ``momentum`` replaces the setting's."""
    match args.client_optimizer:
        case "sgd":
            momentum = args.momentum if momentum is None else momentum
            return uncompiled(torch.optim.SGD)(parameters, rate, momentum, weight_decay=args.weight_decay)
        case "adam":
            return uncompiled(torch.optim.Adam)(parameters, rate, weight_decay=args.weight_decay)
        case "adamw":
            return uncompiled(torch.optim.AdamW)(parameters, rate, weight_decay=args.weight_decay)
