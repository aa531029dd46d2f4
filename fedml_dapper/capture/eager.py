"""Steps as a client's epochs take them, and the way of taking them that captures nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn

from fedml_dapper.datasets import Batch


class TrainingStep(Protocol):
    """One optimizer step on a batch, as a frozen dataclass of all that it reads and writes.

    Its first fields are ``model``, ``optimizer`` and ``total``, whose tensors it writes in place; it writes no others,
    and waits for no value of the device.
    """

    @property
    def model(self) -> nn.Module: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    @property
    def total(self) -> Tensor: ...

    def __call__(self, batch: Batch) -> None: ...


class Capture(Protocol):
    """A way of taking the steps of an epoch."""

    def epoch(self, step: TrainingStep) -> AbstractContextManager[Callable[[Batch], None]]:
        """Provide what takes ``step`` on one batch after another.

        Where the block ends, the tensors of the step hold what its batches have made of them.
        """


class _Eager:
    """Every step is Python's."""

    def epoch(self, step: TrainingStep) -> AbstractContextManager[Callable[[Batch], None]]:
        return nullcontext(step)


EAGER: Capture = _Eager()
