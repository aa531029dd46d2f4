"""Pruning plans, slim models, their aggregation into the dense global model, and what slim models cost.

The way of a round: a capability level gives a pruning ratio (``levels``), the ratio a width for every group of channels
(``budget``), the widths a plan of which channels stay (``plan``), and the plan a smaller network (``slim``). What that
network learns comes back into the dense model by recovery (``recovery``). All of them read which channels belong
together from a :class:`ChannelLayout`, which ``tracing`` finds once per network.
"""

from fedml_dapper.pruning.budget import solve_widths
from fedml_dapper.pruning.clipping import ClippedMean, relative_change
from fedml_dapper.pruning.fixed_point_mean import FixedPointMean, encoded_changes
from fedml_dapper.pruning.footprint import Footprint, bitmap_bytes, footprint
from fedml_dapper.pruning.layout import Axis, ChannelGroup, ChannelLayout, TensorSpec, Widths
from fedml_dapper.pruning.levels import LEVEL_RULES, Device, Fleet, levels_by
from fedml_dapper.pruning.noise_share import NoiseShare, rounding
from fedml_dapper.pruning.packing import Packing
from fedml_dapper.pruning.plan import (
    DENSE,
    PruningPlan,
    Tensors,
    importance,
    plan_at_random,
    plan_by_importance,
    plan_window,
    ranked,
)
from fedml_dapper.pruning.private import PrivateMean, clipped, disturbed
from fedml_dapper.pruning.recovery import PartialSum, RecoveringMean, check_fits, check_partial
from fedml_dapper.pruning.robust import RobustMean
from fedml_dapper.pruning.running_sum import Recovery
from fedml_dapper.pruning.scope import Scoped, size_of
from fedml_dapper.pruning.screening import ScreenedMean, Verdict
from fedml_dapper.pruning.slim import carry_optimizer_state, slim_layout, slim_model, slim_tensors, write_back
from fedml_dapper.pruning.tracing import IDLE, trace_layout
from fedml_dapper.pruning.verification import verify_layout

__all__ = [
    "DENSE",
    "IDLE",
    "LEVEL_RULES",
    "Axis",
    "ChannelGroup",
    "ChannelLayout",
    "ClippedMean",
    "Device",
    "FixedPointMean",
    "Fleet",
    "Footprint",
    "NoiseShare",
    "Packing",
    "PartialSum",
    "PrivateMean",
    "PruningPlan",
    "RecoveringMean",
    "Recovery",
    "RobustMean",
    "Scoped",
    "ScreenedMean",
    "TensorSpec",
    "Tensors",
    "Verdict",
    "Widths",
    "bitmap_bytes",
    "carry_optimizer_state",
    "check_fits",
    "check_partial",
    "clipped",
    "disturbed",
    "encoded_changes",
    "footprint",
    "importance",
    "levels_by",
    "plan_at_random",
    "plan_by_importance",
    "plan_window",
    "ranked",
    "relative_change",
    "rounding",
    "size_of",
    "slim_layout",
    "slim_model",
    "slim_tensors",
    "solve_widths",
    "trace_layout",
    "verify_layout",
    "write_back",
]
