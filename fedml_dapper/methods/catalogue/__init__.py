"""The methods, one file each; none imports another. A run loads the one that it uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from fedml_dapper.methods.contract import Method

_CLASSES = {
    "dapperfl": "DapperFL",
    "dapperfl_exits": "DapperFLExits",
    "dapperfl_slim": "DapperFLSlim",
    "depthfl": "DepthFL",
    "ditto": "Ditto",
    "fdse": "FDSE",
    "fedap": "FedAP",
    "fedavg": "FedAvg",
    "fedavg_small": "FedAvgSmall",
    "fedavg_strong": "FedAvgStrong",
    "fedavgm": "FedAvgM",
    "fedbabu": "FedBABU",
    "fedbn": "FedBN",
    "fedcmd": "FedCMD",
    "feddrop": "FedDrop",
    "feddyn": "FedDyn",
    "fedecover": "FedEcover",
    "fedfa": "FedFA",
    "fedfomo": "FedFomo",
    "fedheal": "FedHEAL",
    "fedmp": "FedMP",
    "fedper": "FedPer",
    "fedprox": "FedProx",
    "fedrep": "FedRep",
    "fedrolex": "FedRolex",
    "fedsr": "FedSR",
    "fiarse": "FIARSE",
    "fjord": "FjORD",
    "flexlora": "FlexLoRA",
    "flora": "FLoRA",
    "fpl": "FPL",
    "heterofl": "HeteroFL",
    "hetlora": "HetLoRA",
    "lg_fedavg": "LGFedAvg",
    "local": "Local",
    "moon": "MOON",
    "nefl": "NeFL",
    "partialfed": "PartialFed",
    "pfedsim": "PFedSim",
    "profl": "ProFL",
    "raflora": "RaFLoRA",
    "scaffold": "SCAFFOLD",
    "scalefl": "ScaleFL",
}
"""Each method's class, by the name of the method, which is that of its file."""


class Catalogue(Mapping[str, type[Method[Any]]]):
    """The built-in methods by name; a method's file is loaded when it is asked for."""

    def __getitem__(self, name: str) -> type[Method[Any]]:
        class_name = _CLASSES[name]
        kind: type[Method[Any]] = getattr(import_module(f"{__name__}.{name}"), class_name)
        return kind

    def __contains__(self, name: object) -> bool:
        return name in _CLASSES

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)
