"""One optimizer step on a batch, which a client's epochs consist of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedml_dapper.config import Precision, TrainArgs
from fedml_dapper.datasets import Batch
from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.contract.clipping import clip_adaptively
from fedml_dapper.models import Backbone
from fedml_dapper.process.profiling import part

Loss = Callable[[Backbone, Batch], Tensor]
"""A local objective: the model's mean loss over a batch."""
Terms = Callable[[Backbone, Batch], Iterator[Tensor]]
"""A local objective that comes term by term. Gradients of each are taken before the next is computed, so that memory
holds what one of them needs; terms may share outputs as values only."""
_AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Step:
    """A step of SGD, or of another optimizer: gradients of ``loss``, clipped as ``args`` say, and what follows.

    All that it writes are the tensors of its first three fields, so that it can be captured
    (:class:`~fedml_dapper.capture.Captures`).
    """

    model: Backbone
    optimizer: torch.optim.Optimizer
    total: Tensor
    """Sum over the samples so far of their losses, float64, shape ()."""
    loss: Loss | Terms
    args: TrainArgs
    precision: Precision
    before_step: Callable[[], None] | None
    """Change of the gradients, before they are clipped."""
    after_step: Callable[[], None] | None
    scaler: torch.GradScaler | None
    """Scaling of the loss, which float16 needs."""
    weigh: Callable[[Tensor], int | Tensor] = len
    """What the loss of a batch with these targets is a mean over, a number of samples or of their parts."""

    def __call__(self, batch: Batch) -> None:
        """Take the step, on all of ``batch`` at once or, with ``train_args.micro_batch_size``, piece by piece."""
        self.optimizer.zero_grad(set_to_none=True)
        for piece in batch.pieces(self.args.micro_batch_size or len(batch.targets)):
            share = self._share(piece, batch)
            with part("forward/backward"):
                value = self._take_gradients(piece, share)
            self.total.add_(value * share * len(batch.targets))
        with part("optimizer"):
            self._clip_and_step()

    def _share(self, piece: Batch, batch: Batch) -> float | Tensor:
        """Share of the batch's loss that falls to one of its pieces; a GPU is not waited for."""
        if len(piece.targets) == len(batch.targets):
            return 1.0
        whole = self.weigh(batch.targets)
        return self.weigh(piece.targets) / (whole if isinstance(whole, int) else whole.clamp(min=1))

    def _take_gradients(self, batch: Batch, share: float | Tensor) -> Tensor:
        """Add ``share`` of the gradients of the loss, term by term; returns its value."""
        device = self.total.device
        value = torch.zeros((), device=device)
        # A graph cannot keep what autocast keeps from one pass to the next
        autocast = torch.autocast(
            device.type,
            _AUTOCAST[self.precision],
            enabled=self.precision != "fp32",
            cache_enabled=device.type != "cuda",
        )
        with autocast:
            found = self.loss(self.model, batch)
        terms = found if isinstance(found, Iterator) else iter((_one_number(found),))
        while True:
            with autocast:
                term = next(terms, None)
            if term is None:
                return value
            scaled = term * share
            if self.scaler is not None:
                scaled = self.scaler.scale(scaled)
            scaled.backward()  # type: ignore[no-untyped-call]  # torch ships it untyped
            value = value + term.detach()

    def _clip_and_step(self) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.before_step is not None:
            self.before_step()
        if self.args.adaptive_clipping is not None:
            head = self.model.head_tensors
            body = (parameter for name, parameter in self.model.named_parameters() if name not in head)
            clip_adaptively(body, self.args.adaptive_clipping)
        if self.args.max_grad_norm is not None:
            stepped = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
            nn.utils.clip_grad_norm_(stepped, self.args.max_grad_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.after_step is not None:
            self.after_step()


def _one_number(loss: object) -> Tensor:
    """Return ``loss``; raise :class:`ConfigError` where a task or method of the user's own gives something else."""
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss
    given = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
    raise ConfigError(
        f"the loss of a batch is {given}, and has to be a tensor of one number, such as the mean over the batch; mend"
        " what train_args.task or dapper_args.method gives"
    )
