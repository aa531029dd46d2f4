"""Federated learning methods: their contract, the parts that several share, and the catalogue, one file each."""

from __future__ import annotations

import logging
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from fedml_dapper.config import DapperArgs, did_you_mean
from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.catalogue import Catalogue
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
    as_sent,
    payload_bytes,
)
from fedml_dapper.methods.contract.batchnorm import recalibrate, renew_statistics, running_statistics
from fedml_dapper.methods.contract.requirements import check_untied
from fedml_dapper.process.lazy_imports import lazy_names
from fedml_dapper.registry import Registry

if TYPE_CHECKING:
    from fedml_dapper.methods.catalogue.dapperfl import DapperFL
    from fedml_dapper.methods.catalogue.fedavg import FedAvg
else:
    __getattr__ = lazy_names(__name__, __file__)


LOGGER = logging.getLogger(__name__)
_LIKE_A_HOOK = 0.85
"""Least likeness, of at most 1, of a name to a hook's by which it is taken for a slip."""


def _fits(found: object) -> str:
    """Reason why ``found`` is no method, for :class:`Registry`; empty where it is one."""
    if not isinstance(found, type) or not issubclass(found, Method):
        return "no method; derive a class from fedml_dapper.methods.Method (docs/add_a_method.md)"
    missing = [attribute for attribute in ("name", "Params") if not hasattr(found, attribute)]
    return f"a method without `{missing[0]}`; give its class one (docs/add_a_method.md)" if missing else ""


METHODS: Registry[type[Method[Any]]] = Registry("dapper_args.method", "method", Catalogue(), _fits)
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
    "as_sent",
    "build_method",
    "check_untied",
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
    if args.method not in METHODS:
        _warn_of_misspelt_hooks(method)
    for name, values in args.params.items():
        if name != method.name and name not in METHODS:
            known = did_you_mean(name, {*METHODS, method.name})
            raise ConfigError(f"dapper_args.params: unknown method `{name}`{known}")
        (method if name == method.name else METHODS[name]).check_params(values)
    return method(method.check_params(args.params.get(method.name, {})), problem)


def _warn_of_misspelt_hooks(method: type[Method[Any]]) -> None:
    """Warn of public names of a user's class that override nothing and are almost a hook's, which stays FedAvg's."""
    hooks = {name for name in vars(Method) if not name.startswith("_")}
    own = {name for kind in method.__mro__ if issubclass(kind, Method) and kind is not Method for name in vars(kind)}
    for name in sorted(name for name in own - hooks if not name.startswith("_")):
        close = get_close_matches(name, hooks, n=1, cutoff=_LIKE_A_HOOK)
        if close:
            LOGGER.warning("`%s` of %s overrides nothing; did you mean `%s`?", name, method.__name__, close[0])
