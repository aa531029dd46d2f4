"""Cross-entropy that names a target which is none of the classes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedml_dapper.errors import DataError

_HALF = (torch.float16, torch.bfloat16)
NOTHING = -100
"""Target that torch leaves out of the loss by default."""


def cross_entropy(outputs: Tensor, targets: Tensor, reduction: str = "mean", ignored: int = NOTHING) -> Tensor:
    """Return the cross-entropy of logits (B, C, ...) with classes, int64 (B, ...), without ``ignored`` ones.

    Raises:
        DataError: A target is none of the C classes; on a GPU torch ends with an error of its own instead.
    """
    logits = outputs.float() if outputs.dtype in _HALF else outputs  # sums over many targets do not fit these
    try:
        return F.cross_entropy(logits, targets, ignore_index=ignored, reduction=reduction)
    except IndexError as error:
        if strange := unknown_class(targets, outputs.shape[1], ignored):
            raise DataError(strange) from error
        raise


def unknown_class(targets: Tensor, classes: int, ignored: int) -> str:
    """Return which target is none of the ``classes`` nor ``ignored``, and what to do; empty where all are known."""
    strange = targets[(targets != ignored) & ((targets < 0) | (targets >= classes))]
    if not len(strange):
        return ""
    return (
        f"a batch has the class {int(strange[0])}, and the network knows 0 to {classes - 1}; mend the targets, or say"
        " how many classes there are"
    )
