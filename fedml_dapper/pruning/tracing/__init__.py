"""From a network to its groups of channels.

Of plain networks, the papers' among them, torch-pruning's dependency graph tells the groups (``dependencies``). Of
others its indices do not say where channels go, so these are followed through one forward pass. Every activation is
marked with the channels that lie along one of its axes: a number for each entry. Layers with weights (``layers``) say
which of their rows and columns belong to which channels; everything else (``operations``) moves numbers as it moves
values, whatever is concatenated, flattened or permuted. What is not known here holds the channels that reach it: they
are never cut. ``graph`` makes groups of the rest, ``trace`` tries them out.
"""

from fedml_dapper.pruning.tracing.trace import IDLE, trace_layout

__all__ = ["IDLE", "trace_layout"]
