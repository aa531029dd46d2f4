"""Federated learning methods behind one contract; one file each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedml_dapper.config import DapperArgs, did_you_mean
from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.base import Aggregation, Method, MethodParams, RecoverAndAverage, Task
from fedml_dapper.methods.dapperfl import DapperFL
from fedml_dapper.methods.fedavg import FedAvg
from fedml_dapper.methods.local_training import ClientContext, LocalTraining
from fedml_dapper.methods.messages import Downlink, TrainingMetrics, Upload, payload_bytes
from fedml_dapper.methods.state import ClientProfile, Memory, ServerState

METHODS: Mapping[str, type[Method[Any]]] = {method.name: method for method in (DapperFL, FedAvg)}
"""Name in ``dapper_args.method`` -> method."""

__all__ = [
    "METHODS",
    "Aggregation",
    "ClientContext",
    "ClientProfile",
    "DapperFL",
    "Downlink",
    "FedAvg",
    "LocalTraining",
    "Memory",
    "Method",
    "MethodParams",
    "RecoverAndAverage",
    "ServerState",
    "Task",
    "TrainingMetrics",
    "Upload",
    "build_method",
    "payload_bytes",
]


def build_method(args: DapperArgs, task: Task) -> Method[Any]:
    """The method named in ``args`` with its settings. All methods' settings are checked; raises ``ConfigError``."""
    for place, name in [("method", args.method), *(("params", name) for name in args.params)]:
        if name not in METHODS:
            raise ConfigError(f"dapper_args.{place}: unknown method `{name}`{did_you_mean(name, METHODS)}")
    for name, values in args.params.items():
        METHODS[name].check_params(values)
    method = METHODS[args.method]
    return method(method.check_params(args.params.get(args.method, {})), task)
