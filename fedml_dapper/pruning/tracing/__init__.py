"""Tracing: from a network to its groups of channels, by one forward pass.

Networks of plain layers only, the papers' among them, get their groups from torch-pruning's dependency graph
(``dependencies``). For others its indices do not say where channels go, so channels are followed through one forward
pass. Every activation is marked with the channels that lie along one of its axes: a number for each entry. Layers with
weights (``layers``) say which of their rows and columns belong to which channels; all other operations (``operations``)
move the numbers as they move values, whatever is concatenated, flattened or permuted. Channels that reach an unknown
operation are held: they are never cut. ``graph`` makes groups of the rest, and ``trace`` tries each of them out.
"""

from fedml_dapper.pruning.tracing.trace import IDLE, trace_layout

__all__ = ["IDLE", "trace_layout"]
