"""The contract of a method, and all that it is written with."""

from fedml_dapper.methods.contract.aggregation import (
    Aggregation,
    HoldingAggregation,
    MergingAggregation,
    RecoverAndAverage,
    UploadsMean,
    mean_of_uploads,
)
from fedml_dapper.methods.contract.base import Method, MethodParams, P
from fedml_dapper.methods.contract.local_training import Augment, ClientContext, LocalTraining
from fedml_dapper.methods.contract.messages import (
    Downlink,
    TrainingMetrics,
    Upload,
    as_received,
    as_sent,
    payload_bytes,
)
from fedml_dapper.methods.contract.phases import Pass, Phase, forward_only
from fedml_dapper.methods.contract.privacy import Privacy, SecureSums
from fedml_dapper.methods.contract.problem import Problem
from fedml_dapper.methods.contract.state import ClientProfile, Memory, ServerState, Value
from fedml_dapper.methods.contract.step import Loss, Terms
from fedml_dapper.pruning import Tensors

__all__ = [
    "Aggregation",
    "Augment",
    "ClientContext",
    "ClientProfile",
    "Downlink",
    "HoldingAggregation",
    "LocalTraining",
    "Loss",
    "Memory",
    "MergingAggregation",
    "Method",
    "MethodParams",
    "P",
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
    "UploadsMean",
    "Value",
    "as_received",
    "as_sent",
    "forward_only",
    "mean_of_uploads",
    "payload_bytes",
]
