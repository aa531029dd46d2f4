"""What travels between server and client in a round."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedml_dapper.pruning import DENSE, ChannelLayout, PruningPlan, Tensors, bitmap_bytes


@dataclass(frozen=True, eq=False)
class Downlink:
    """Server to client: the model to start from. Receivers copy the tensors before they change them."""

    round: int
    client_id: int
    weights: Tensors
    plan: PruningPlan = DENSE
    """Channels that ``weights`` hold, for methods that prune before they send."""
    extras: Tensors = field(default_factory=dict)
    """Whatever else the method sends, by name (control variates, prototypes, ...)."""


@dataclass(frozen=True)
class TrainingMetrics:
    """How local training went: mean loss per sample over the last local epoch, optimizer steps, wall-clock seconds, and
    accuracy (percent) of the client's own model on its own test samples before and after, where that is measured."""

    loss: float
    steps: int
    seconds: float
    accuracy_before: float | None = None
    accuracy_after: float | None = None


@dataclass(frozen=True, eq=False)
class Upload:
    """Client to server: the trained model, cut to ``plan`` but for the tensors named in ``unsliced``."""

    round: int
    client_id: int
    num_samples: int
    weights: Tensors
    metrics: TrainingMetrics
    plan: PruningPlan = DENSE
    unsliced: frozenset[str] = frozenset()
    extras: Tensors = field(default_factory=dict)


def payload_bytes(message: Downlink | Upload, layout: ChannelLayout) -> int:
    """Bytes of a message's tensors, and one bit per channel of each group its plan cuts."""
    tensors = [*message.weights.values(), *message.extras.values()]
    return sum(tensor.nbytes for tensor in tensors) + bitmap_bytes(layout, message.plan.widths)
