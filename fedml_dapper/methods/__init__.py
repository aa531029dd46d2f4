"""Federated learning methods behind one contract; one file each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedml_dapper.config import DapperArgs, did_you_mean
from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.base import Aggregation, Method, MethodParams, RecoverAndAverage, Task
from fedml_dapper.methods.dapperfl import DapperFL
from fedml_dapper.methods.ditto import Ditto
from fedml_dapper.methods.fdse import FDSE
from fedml_dapper.methods.fedap import FedAP
from fedml_dapper.methods.fedavg import FedAvg
from fedml_dapper.methods.fedbabu import FedBABU
from fedml_dapper.methods.fedbn import FedBN
from fedml_dapper.methods.fedcmd import FedCMD
from fedml_dapper.methods.feddrop import FedDrop
from fedml_dapper.methods.feddyn import FedDyn
from fedml_dapper.methods.fedfa import FedFA
from fedml_dapper.methods.fedfomo import FedFomo
from fedml_dapper.methods.fedheal import FedHEAL
from fedml_dapper.methods.fedmp import FedMP
from fedml_dapper.methods.fedper import FedPer
from fedml_dapper.methods.fedprox import FedProx
from fedml_dapper.methods.fedrep import FedRep
from fedml_dapper.methods.fedrolex import FedRolex
from fedml_dapper.methods.fedsr import FedSR
from fedml_dapper.methods.fpl import FPL
from fedml_dapper.methods.heterofl import HeteroFL
from fedml_dapper.methods.lg_fedavg import LGFedAvg
from fedml_dapper.methods.local import Local
from fedml_dapper.methods.local_training import ClientContext, LocalTraining
from fedml_dapper.methods.messages import Downlink, TrainingMetrics, Upload, as_received, payload_bytes
from fedml_dapper.methods.moon import MOON
from fedml_dapper.methods.nefl import NeFL
from fedml_dapper.methods.partialfed import PartialFed
from fedml_dapper.methods.pfedsim import PFedSim
from fedml_dapper.methods.scaffold import SCAFFOLD
from fedml_dapper.methods.state import ClientProfile, Memory, ServerState

METHODS: Mapping[str, type[Method[Any]]] = {
    method.name: method
    for method in (
        DapperFL,
        Ditto,
        FDSE,
        FedAP,
        FedAvg,
        FedBABU,
        FedBN,
        FedCMD,
        FedDrop,
        FedDyn,
        FedFA,
        FedFomo,
        FedHEAL,
        FedMP,
        FedPer,
        FedProx,
        FedRep,
        FedRolex,
        FedSR,
        FPL,
        HeteroFL,
        LGFedAvg,
        Local,
        MOON,
        NeFL,
        PartialFed,
        PFedSim,
        SCAFFOLD,
    )
}
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
    "as_received",
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
