"""A client's epoch of SGD in plain torch, to compare methods' own training with."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from fedml_dapper.config import TrainArgs
from fedml_dapper.models import Backbone


def sgd(model: Backbone, args: TrainArgs) -> torch.optim.SGD:
    """As ``args`` say, in the first round."""
    return torch.optim.SGD(model.parameters(), args.learning_rate, args.momentum, weight_decay=args.weight_decay)


def descend(
    model: Backbone, optimizer: torch.optim.SGD, batches: Iterable[tuple[Tensor, Tensor]],
    penalty: Callable[[Tensor], Tensor],
) -> None:  # fmt: skip
    """A step a batch along cross-entropy plus the ``penalty`` on its representations, shape (B, d)."""
    model.train()
    for images, labels in batches:
        representations = model.encode(images)
        loss = F.cross_entropy(model.predict(representations), labels) + penalty(representations)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
