"""FedAvg (McMahan et al., AISTATS 2017): full models on every client, averaged by their numbers of samples.

All of it is in the contract's defaults, ``contract/base.py``: a client trains E epochs of SGD on the task's loss from
the model it received (``local_update``), and the server takes the weighted mean of what clients send (``aggregation``).
"""

from __future__ import annotations

from fedml_dapper.methods.contract import Method, MethodParams


class FedAvgParams(MethodParams):
    """Settings of FedAvg, of which there are none."""


class FedAvg(Method[FedAvgParams]):
    """Local SGD on the task's loss, then the mean weighted by samples; capability levels are ignored."""

    name = "fedavg"
    Params = FedAvgParams
    allows_personal_layers = True
