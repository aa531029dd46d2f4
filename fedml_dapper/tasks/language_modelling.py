"""Causal language modelling: the next token at every position."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, inf

import torch
from torch import Tensor

from fedml_dapper.errors import DataError
from fedml_dapper.metric import TOP_1, Metric
from fedml_dapper.tasks.contract import Task, described
from fedml_dapper.tasks.cross_entropy import NOTHING, cross_entropy

PERPLEXITY = Metric("perplexity", higher_is_better=False)
_ACCURACY = "next-token accuracy"
_LARGEST_LOSS = 700.0
"""Mean loss above which a perplexity is no float any more."""


class LanguageModelling(Task):
    """Cross-entropy of logits (B, T, V) with the tokens that follow, int64 (B, T), over those that count.

    ``targets[:, t]`` is the token that position t is to predict, so data give tokens and the same moved by one. Padding
    has the ``ignore_index``, and counts nowhere. Perplexity is e to the mean loss of a token, over all tokens of a test
    set.
    """

    name = "language_modelling"
    headline = PERPLEXITY
    has_logits = True

    def __init__(self, ignore_index: int = NOTHING) -> None:
        self._ignored = ignore_index

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._summed(outputs, targets) / self.weight(targets).clamp(min=1)

    def weight(self, targets: Tensor) -> Tensor:
        return (targets != self._ignored).sum()

    def sums(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return summed loss, tokens that count, and how many of them are the likeliest."""
        loss = self._summed(outputs, targets).double()
        hits = self.prediction(outputs) == targets
        counts = targets != self._ignored
        return {
            "loss": loss,
            "tokens": self.weight(targets),
            "hits": (hits & counts).sum(),
        }

    def figures(self, sums: Mapping[str, Tensor]) -> Mapping[str, float]:
        tokens = float(sums["tokens"])
        if tokens == 0:
            raise DataError(
                "a test set has no token that counts; every target is train_args.task_arguments.ignore_index"
            )
        mean = float(sums["loss"]) / tokens
        return {
            PERPLEXITY.name: exp(mean) if mean < _LARGEST_LOSS else inf,
            _ACCURACY: 100 * float(sums["hits"]) / tokens,
        }

    def prediction(self, outputs: Tensor) -> Tensor:
        """Return the likeliest token that follows each position, int64 (B, T)."""
        return outputs.argmax(dim=-1)

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the logits of each position, (B * T, V), those of padding among them."""
        return outputs.flatten(0, 1)

    def misfit(self, outputs: Tensor, num_classes: int) -> str:
        del num_classes
        if outputs.ndim == 3:
            return ""
        given = ", ".join(("B", *map(str, outputs.shape[1:])))
        return f"it gives ({given}), and (B, T, V) is expected, a number for each token that may follow each position"

    def misfit_of_targets(self, targets: Tensor, num_classes: int) -> str:
        del num_classes
        wanted = "a target is int64 of shape (B, T): the token that follows each position"
        if targets.ndim != 2:
            return f"{described(targets)}, and {wanted}"
        if targets.dtype != torch.int64:
            return f"{described(targets)}, and {wanted}; tokens.long() makes one of whole numbers"
        negative = targets[(targets != self._ignored) & (targets < 0)]
        if len(negative):
            return (
                f"tokens with the number {int(negative[0])}; {self._ignored} (ignore_index) marks what counts nowhere"
            )
        return ""

    def _summed(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if targets.shape != outputs.shape[:2]:
            raise DataError(
                f"targets of shape {tuple(targets.shape)} for outputs of shape {tuple(outputs.shape)}: one is needed"
                " for each position"
            )
        return cross_entropy(outputs.transpose(1, 2), targets, reduction="sum", ignored=self._ignored)


class NextToken(LanguageModelling):
    """The same, judged by how many tokens are the likeliest: an accuracy, by which benches and searches compare."""

    name = "next_token"
    headline = TOP_1

    def figures(self, sums: Mapping[str, Tensor]) -> Mapping[str, float]:
        figures = dict(super().figures(sums))
        return {TOP_1.name: figures.pop(_ACCURACY), **figures}
