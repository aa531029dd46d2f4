"""Models that travel down in fewer bits (``dapper_args.downlink``), and uploads of clients that started from them.

A client starts from the rounded model W_r, and the server goes on from its own W. So what rounding took off, W - W_r,
is added to each upload: the change that counts is what training made, w - W_r. Otherwise every mean of uploads would
put rounded weights in the place of the server's own, and changes of less than half a step would be lost for good. All
that follows, refill and mean (Eq. 6-7), clipping and defences among it, sees an upload of a client that started from W.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.pruning import ChannelLayout, Tensors, slim_tensors
from fedml_dapper.pruning.uplink import is_reduced, rounded


class FewerBitsDown:
    """Rounds what is sent in a round; tensors of the global model once, however many clients they go to."""

    def __init__(self, layout: ChannelLayout) -> None:
        self._layout = layout
        self._global: Tensors = {}
        """The global model of the open round."""
        self._rounded: dict[str, Tensor] = {}
        """Tensors of the global model that were rounded already in the open round, by name."""

    def begin_round(self, weights: Tensors) -> None:
        """Note the global model of a round that opens."""
        self._global = dict(weights)
        self._rounded = {}

    def sent(self, downlink: Downlink) -> Downlink:
        """Return ``downlink`` as its client receives it; the same object in fp32."""
        if self._layout.downlink == "fp32":
            return downlink
        return replace(downlink, weights=self._as_sent(downlink.weights))

    def since(self, downlink: Downlink, upload: Upload) -> Upload:
        """Return ``upload`` as if its client had started from ``downlink`` itself; the same object in fp32.

        Args:
            downlink: What the method made for the client, before it was rounded.
            upload: Its answer, of the right form.
        """
        if self._layout.downlink == "fp32":
            return upload
        names = [name for name in downlink.weights if name in upload.weights and self._is_reduced(name)]
        exact = {name: downlink.weights[name] for name in names}
        received = self._as_sent(exact)
        lost: dict[str, Tensor] = {name: exact[name] - received[name] for name in names}
        if downlink.plan.widths != upload.plan.widths:
            lost = slim_tensors(lost, self._layout, upload.plan, upload.unsliced)
        weights = {
            name: tensor + lost[name].to(tensor.device) if name in lost else tensor
            for name, tensor in upload.weights.items()
        }
        return replace(upload, weights=weights)

    def _as_sent(self, weights: Tensors) -> dict[str, Tensor]:
        return {
            name: self._rounded_form(name, tensor) if self._is_reduced(name) else tensor
            for name, tensor in weights.items()
        }

    def _rounded_form(self, name: str, tensor: Tensor) -> Tensor:
        if self._global.get(name) is not tensor:  # a part of it for one client, or of an earlier round
            return rounded(tensor, self._layout.downlink)
        if name not in self._rounded:
            self._rounded[name] = rounded(tensor, self._layout.downlink)
        return self._rounded[name]

    def _is_reduced(self, name: str) -> bool:
        return is_reduced(self._layout.tensors[name], self._layout.downlink)
