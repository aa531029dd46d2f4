"""How many classes the numbers of a data set stand for, and when they are ids instead."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedml_dapper.errors import DataError

MOST_CLASSES = 1_000_000
"""The outputs of a network, beyond which it would fill a machine's memory."""
_NO_IDS = 10_000
"""Numbers below this are taken for classes, however few of them occur."""
_SHARE_OF_IDS = 10
"""Classes that occur, times this, have to be as many as the highest number says, where that is not below the above."""
_RENUMBERING = "torch.unique(targets, return_inverse=True)[1] numbers all that occur from 0 on"


def count_classes(where: str, labels: Sequence[Tensor]) -> int:
    """One more than the highest of ``labels``, each int64 (N,); raises :class:`DataError` where they must be ids."""
    highest = max((int(some.max()) for some in labels), default=-1)
    if highest < _NO_IDS:
        return highest + 1
    occurring = len(torch.unique(torch.cat(list(labels))))
    if highest >= max(_SHARE_OF_IDS * occurring, _NO_IDS):
        raise DataError(
            f"{where}: the highest class number is {highest:,}, and {occurring:,} classes occur; numbers that leave"
            f" most out look like ids: {_RENUMBERING}, or state in data_args.classes how many there are"
        )
    return check_count(where, highest + 1)


def check_count(where: str, count: int) -> int:
    """``count``; raises :class:`DataError` where no network has so many outputs."""
    if count > MOST_CLASSES:
        raise DataError(
            f"{where}: {count:,} classes are more than the {MOST_CLASSES:,} that a network may have as outputs;"
            f" {_RENUMBERING}"
        )
    return count
