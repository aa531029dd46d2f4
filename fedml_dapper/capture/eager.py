"""Steps as a client's epochs take them, and the way of taking them that captures nothing."""

from __future__ import annotations

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


class Taker(Protocol):
    """What takes a step on one batch after another."""

    def __call__(self, batch: Batch) -> None:
        """Take the step."""

    def hand_back(self) -> None:
        """Bring what the steps have made into the step's own tensors, which may be read and changed then."""


class Capture(Protocol):
    """A way of taking steps."""

    def steps(self, step: TrainingStep) -> AbstractContextManager[Taker]:
        """Provide what takes ``step``, which is handed back where the block ends."""


class EagerSteps:
    """Steps that are Python's."""

    def __init__(self, step: TrainingStep) -> None:
        self._step = step

    def __call__(self, batch: Batch) -> None:
        self._step(batch)

    def hand_back(self) -> None:
        """Steps leave what they make where it belongs."""


class _Eager:
    """Every step is Python's."""

    def steps(self, step: TrainingStep) -> AbstractContextManager[Taker]:
        return nullcontext(EagerSteps(step))


EAGER: Capture = _Eager()
