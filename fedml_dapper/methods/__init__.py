"""Federated learning methods: their contract, the parts that several share, and the catalogue, one file each."""

from __future__ import annotations

from typing import Any

from fedml_dapper.config import DapperArgs, did_you_mean
from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.catalogue.dapperfl import DapperFL
from fedml_dapper.methods.catalogue.dapperfl_slim import DapperFLSlim
from fedml_dapper.methods.catalogue.depthfl import DepthFL
from fedml_dapper.methods.catalogue.ditto import Ditto
from fedml_dapper.methods.catalogue.fdse import FDSE
from fedml_dapper.methods.catalogue.fedap import FedAP
from fedml_dapper.methods.catalogue.fedavg import FedAvg
from fedml_dapper.methods.catalogue.fedavg_small import FedAvgSmall
from fedml_dapper.methods.catalogue.fedavg_strong import FedAvgStrong
from fedml_dapper.methods.catalogue.fedavgm import FedAvgM
from fedml_dapper.methods.catalogue.fedbabu import FedBABU
from fedml_dapper.methods.catalogue.fedbn import FedBN
from fedml_dapper.methods.catalogue.fedcmd import FedCMD
from fedml_dapper.methods.catalogue.feddrop import FedDrop
from fedml_dapper.methods.catalogue.feddyn import FedDyn
from fedml_dapper.methods.catalogue.fedecover import FedEcover
from fedml_dapper.methods.catalogue.fedfa import FedFA
from fedml_dapper.methods.catalogue.fedfomo import FedFomo
from fedml_dapper.methods.catalogue.fedheal import FedHEAL
from fedml_dapper.methods.catalogue.fedmp import FedMP
from fedml_dapper.methods.catalogue.fedper import FedPer
from fedml_dapper.methods.catalogue.fedprox import FedProx
from fedml_dapper.methods.catalogue.fedrep import FedRep
from fedml_dapper.methods.catalogue.fedrolex import FedRolex
from fedml_dapper.methods.catalogue.fedsr import FedSR
from fedml_dapper.methods.catalogue.fiarse import FIARSE
from fedml_dapper.methods.catalogue.fjord import FjORD
from fedml_dapper.methods.catalogue.fpl import FPL
from fedml_dapper.methods.catalogue.heterofl import HeteroFL
from fedml_dapper.methods.catalogue.lg_fedavg import LGFedAvg
from fedml_dapper.methods.catalogue.local import Local
from fedml_dapper.methods.catalogue.moon import MOON
from fedml_dapper.methods.catalogue.nefl import NeFL
from fedml_dapper.methods.catalogue.partialfed import PartialFed
from fedml_dapper.methods.catalogue.pfedsim import PFedSim
from fedml_dapper.methods.catalogue.scaffold import SCAFFOLD
from fedml_dapper.methods.catalogue.scalefl import ScaleFL
from fedml_dapper.methods.contract import (
    Aggregation,
    Augment,
    ClientContext,
    ClientProfile,
    Downlink,
    HoldingAggregation,
    LocalTraining,
    Loss,
    Memory,
    MergingAggregation,
    Method,
    MethodParams,
    Pass,
    Phase,
    Privacy,
    Problem,
    RecoverAndAverage,
    SecureSums,
    ServerState,
    Tensors,
    Terms,
    TrainingMetrics,
    Upload,
    as_received,
    payload_bytes,
)
from fedml_dapper.methods.contract.batchnorm import recalibrate, renew_statistics, running_statistics
from fedml_dapper.registry import Registry


def _fits(found: object) -> str:
    """Reason why ``found`` is no method, for :class:`Registry`; empty where it is one."""
    if not isinstance(found, type) or not issubclass(found, Method):
        return "no method; derive a class from fedml_dapper.methods.Method (docs/add_a_method.md)"
    missing = [attribute for attribute in ("name", "Params") if not hasattr(found, attribute)]
    return f"a method without `{missing[0]}`; give its class one (docs/add_a_method.md)" if missing else ""


_BUILT_IN: tuple[type[Method[Any]], ...] = (
    DapperFL, DapperFLSlim, DepthFL, Ditto, FDSE, FedAP, FedAvg, FedAvgM, FedAvgSmall, FedAvgStrong, FedBABU, FedBN,
    FedCMD, FedDrop, FedDyn, FedEcover, FedFA, FedFomo, FedHEAL, FedMP, FedPer, FedProx, FedRep, FedRolex, FedSR,
    FIARSE, FjORD, FPL, HeteroFL, LGFedAvg, Local, MOON, NeFL, PartialFed, PFedSim, SCAFFOLD, ScaleFL,
)  # fmt: skip

METHODS: Registry[type[Method[Any]]] = Registry(
    "dapper_args.method", "method", {method.name: method for method in _BUILT_IN}, _fits
)
"""Methods that ``dapper_args.method`` may name."""

__all__ = [
    "METHODS",
    "Aggregation",
    "Augment",
    "ClientContext",
    "ClientProfile",
    "DapperFL",
    "Downlink",
    "FedAvg",
    "HoldingAggregation",
    "LocalTraining",
    "Loss",
    "Memory",
    "MergingAggregation",
    "Method",
    "MethodParams",
    "Pass",
    "Phase",
    "Privacy",
    "Problem",
    "RecoverAndAverage",
    "SecureSums",
    "ServerState",
    "Tensors",
    "Terms",
    "TrainingMetrics",
    "Upload",
    "as_received",
    "build_method",
    "effective_params",
    "payload_bytes",
    "recalibrate",
    "renew_statistics",
    "running_statistics",
]


def effective_params(args: DapperArgs) -> dict[str, Any]:
    """The settings of the method named in ``args`` as plain values, defaults included; raises ``ConfigError``."""
    method = METHODS.find(args.method)
    values: dict[str, Any] = method.check_params(args.params.get(method.name, {})).model_dump(mode="json")
    return values


def build_method(args: DapperArgs, problem: Problem) -> Method[Any]:
    """The method named in ``args`` with its settings. All methods' settings are checked; raises ``ConfigError``."""
    method = METHODS.find(args.method)
    for name, values in args.params.items():
        if name != method.name and name not in METHODS:
            known = did_you_mean(name, {*METHODS, method.name})
            raise ConfigError(f"dapper_args.params: unknown method `{name}`{known}")
        (method if name == method.name else METHODS[name]).check_params(values)
    return method(method.check_params(args.params.get(method.name, {})), problem)
