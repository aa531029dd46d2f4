"""FedAvg on the smallest level's network for all: what the weakest device can carry, everywhere.

The baseline that unequal devices have to be compared with: where it is as good as the full model, there is nothing that
sub-models of several sizes could win.
"""

from __future__ import annotations

from dataclasses import replace

from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.contract import Method, MethodParams
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import plan_window, slim_model


class FedAvgSmallParams(MethodParams):
    """Settings of the baseline: none; the size follows from ``dapper_args.levels`` and ``pruning``."""


class FedAvgSmall(Method[FedAvgSmallParams]):
    """The initial network's leading channels, as many as the weakest level keeps; then FedAvg."""

    name = "fedavg_small"
    Params = FedAvgSmallParams
    allows_personal_layers = True
    cost_note = "every device, whatever its level, trains and runs the weakest level's network."

    def build_model(self, backbone: Backbone) -> Backbone:
        """``backbone`` at the size of the weakest level, its channels as they are initialised.

        Raises :class:`ConfigError` under a scope that cuts nothing.
        """
        whole = replace(self.problem, slims=True)
        if whole.pruning.scope == "official_mask":
            raise ConfigError(
                "dapper_args.pruning.scope: official_mask removes nothing, so fedavg_small's network would be the full"
                " one; set it to internal or grouped, or choose dapper_args.method: fedavg"
            )
        widths = whole.widths(max(self.problem.ratios))
        return slim_model(backbone, whole.layout, plan_window(whole.layout, widths))

    def has_level_model(self, level: int) -> bool:
        """True: every device can run what the weakest can."""
        del level
        return True
