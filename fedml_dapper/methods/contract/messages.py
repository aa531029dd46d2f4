"""Messages between server and client in a round."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from fedml_dapper.config import Uplink
from fedml_dapper.pruning import DENSE, ChannelLayout, PruningPlan, Tensors, bitmap_bytes
from fedml_dapper.pruning.uplink import is_reduced, rounded, travelling_bytes


@dataclass(frozen=True, eq=False)
class Downlink:
    """Message to a client: the model to start from. Receivers copy the tensors before they change them."""

    round: int
    client_id: int
    weights: Tensors
    plan: PruningPlan = DENSE
    """Channels that ``weights`` hold, for methods that prune before they send."""
    extras: Tensors = field(default_factory=dict)
    """Further tensors of the method, by name (control variates, prototypes, ...)."""
    level: int | None = None
    """Capability level at which the client is to train in this round; the server fills it in."""


@dataclass(frozen=True)
class TrainingMetrics:
    """Report of local training: mean loss per sample over the last local epoch, optimizer steps, wall-clock seconds,
    and the task's headline (in classification accuracy in percent) of the client's own model on its own test samples
    before and after, where that is measured."""

    loss: float
    steps: int
    seconds: float
    accuracy_before: float | None = None
    accuracy_after: float | None = None


@dataclass(frozen=True, eq=False)
class Upload:
    """Message to the server: the trained model, cut to ``plan`` but for the tensors named in ``unsliced``."""

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
    kind: Uplink = layout.uplink if isinstance(message, Upload) else layout.downlink
    weights = sum(
        travelling_bytes(tensor.shape, layout.tensors[name], kind) for name, tensor in message.weights.items()
    )
    extras = sum(tensor.nbytes for tensor in message.extras.values())
    return weights + extras + bitmap_bytes(layout, message.plan.widths)


def as_received(upload: Upload, layout: ChannelLayout) -> Upload:
    """``upload`` with its weights rounded to what ``layout.uplink`` can carry; the same object where that is all."""
    if layout.uplink == "fp32":
        return upload
    return replace(upload, weights=_rounded(upload.weights, layout, layout.uplink))


def as_sent(downlink: Downlink, layout: ChannelLayout) -> Downlink:
    """``downlink`` with its weights rounded to what ``layout.downlink`` can carry; the same object in fp32."""
    if layout.downlink == "fp32":
        return downlink
    return replace(downlink, weights=_rounded(downlink.weights, layout, layout.downlink))


def _rounded(weights: Tensors, layout: ChannelLayout, kind: Uplink) -> dict[str, Tensor]:
    return {
        name: rounded(tensor, kind) if is_reduced(layout.tensors[name], kind) else tensor
        for name, tensor in weights.items()
    }
