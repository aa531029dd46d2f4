"""Number of classes in a data set, and a check that its labels are class numbers rather than ids."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedml_dapper.errors import DataError

MOST_CLASSES = 1_000_000
"""Most outputs of a network: more would not fit into a machine's memory."""
_NO_IDS = 10_000
"""Labels below this count as classes, however few of them occur."""
_SHARE_OF_IDS = 10
"""Highest label per class that occurs, from which on labels look like ids; applies from ``_NO_IDS`` on."""
_RENUMBERING = "torch.unique(targets, return_inverse=True)[1] numbers all that occur from 0 on"


def count_classes(where: str, labels: Sequence[Tensor]) -> int:
    """Return one more than the highest of ``labels``, each int64 (N,).

    Raises:
        DataError: Labels are so high, and so few of them occur, that they must be ids.
    """
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
    """Return ``count``.

    Raises:
        DataError: No network can have so many outputs.
    """
    if count > MOST_CLASSES:
        raise DataError(
            f"{where}: {count:,} classes are more than the {MOST_CLASSES:,} that a network may have as outputs;"
            f" {_RENUMBERING}"
        )
    return count
