"""Figures of the models that clients trained, before aggregation.

They are measured right after training and kept in the client's memory. The memory travels with the client and is in
checkpoints, so a client that sits out a round is still scored by the model that it trained last.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, cast

from fedml_dapper.federation.scoring.testing import Figures
from fedml_dapper.methods import Memory

_KEY = "trained_figures"


@dataclass(frozen=True)
class TrainedFigures:
    """Figures of a trained model on the client's test samples, and on its validation samples where it has some."""

    test: Figures
    validation: Figures | None

    def keep(self, memory: Memory) -> None:
        """Write the figures into the client's memory, over those of its last training."""
        memory.values[_KEY] = asdict(self)

    @classmethod
    def recall(cls, memory: Memory) -> TrainedFigures | None:
        """Read the figures from the client's memory; None for a client that has not trained."""
        kept = cast("dict[str, dict[str, Any] | None] | None", memory.values.get(_KEY))
        if kept is None or kept["test"] is None:
            return None
        validation = kept["validation"]
        return cls(Figures(**kept["test"]), None if validation is None else Figures(**validation))
