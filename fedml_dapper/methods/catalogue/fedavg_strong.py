"""FedAvg among the devices that can carry the full model; all others, and their images, stay away.

The other baseline for unequal devices: what is lost where weak ones are left out.
"""

from __future__ import annotations

from fedml_dapper.methods.contract import Method, MethodParams


class FedAvgStrongParams(MethodParams):
    """Settings of the baseline, of which there are none."""


class FedAvgStrong(Method[FedAvgStrongParams]):
    """Full models on the clients whose level cuts nothing."""

    name = "fedavg_strong"
    Params = FedAvgStrongParams
    allows_personal_layers = True
    cost_note = "weak devices do not train, and have no model that they could run."

    def takes_part(self, level: int) -> bool:
        """Whether clients of ``level`` can run the full model, and so train it."""
        return self.has_level_model(level)
