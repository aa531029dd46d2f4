"""What each step of an optimizer draws anew, and all pieces of its batch share (``train_args.micro_batch_size``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class PerStep(Generic[T]):
    """The first of ``draws`` for the first step, then one more after each :meth:`advance`; ``draws`` have no end."""

    def __init__(self, draws: Iterator[T]) -> None:
        self._draws = draws
        self.now = next(draws)
        """What the present step has drawn."""

    def advance(self) -> None:
        """Draw for the next step; to be called after each one."""
        self.now = next(self._draws)
