"""Capability level -> pruning ratio -> plan -> slim model; slim upload -> recovered global model; footprints."""

from fedml_dapper.pruning.budget import solve_widths
from fedml_dapper.pruning.clipping import ClippedMean, relative_change
from fedml_dapper.pruning.footprint import Footprint, bitmap_bytes, footprint
from fedml_dapper.pruning.layout import Axis, ChannelGroup, ChannelLayout, TensorSpec, Widths, trace_layout
from fedml_dapper.pruning.levels import assign_levels
from fedml_dapper.pruning.plan import (
    DENSE,
    PruningPlan,
    Tensors,
    plan_at_random,
    plan_by_importance,
    plan_window,
)
from fedml_dapper.pruning.recovery import RecoveringMean, check_fits
from fedml_dapper.pruning.robust import RobustMean
from fedml_dapper.pruning.running_sum import Recovery
from fedml_dapper.pruning.slim import carry_optimizer_state, slim_model, slim_tensors

__all__ = [
    "DENSE",
    "Axis",
    "ChannelGroup",
    "ChannelLayout",
    "ClippedMean",
    "Footprint",
    "PruningPlan",
    "RecoveringMean",
    "Recovery",
    "RobustMean",
    "TensorSpec",
    "Tensors",
    "Widths",
    "assign_levels",
    "bitmap_bytes",
    "carry_optimizer_state",
    "check_fits",
    "footprint",
    "plan_at_random",
    "plan_by_importance",
    "plan_window",
    "relative_change",
    "slim_model",
    "slim_tensors",
    "solve_widths",
    "trace_layout",
]
