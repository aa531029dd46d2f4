"""FedRolex (Alam et al., NeurIPS 2022).

As HeteroFL, but the window of kept channels moves on by one channel every round, around the end: in round t it starts
at (t - 1) mod C in a group of C channels. So all channels are trained evenly, also where no client holds the full
model. The original narrows the residual streams too (``dapper_args.pruning.scope: grouped``). Its code clips gradients
to norm 1 (``max_grad_norm``), counts clients alike in convolutions, and weighs other coordinates by how often they were
trained; here ``aggregation_weights`` decides. Masked classes, static BatchNorm and the scaler: see
``channel_window.py``.
"""

from __future__ import annotations

from fedml_dapper.methods.parts.channel_window import WindowMethod


class FedRolex(WindowMethod):
    """Rolling sub-models: the window starts one channel further every round."""

    name = "fedrolex"

    def window_start(self, round_: int) -> int:
        return round_ - 1
