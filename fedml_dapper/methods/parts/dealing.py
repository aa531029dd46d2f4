"""Choice of the channels that a client is sent: the most important ones, and a share of the others in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedml_dapper.methods.contract import Problem, ServerState
from fedml_dapper.pruning import DENSE, PruningPlan, Widths, importance, plan_by_importance, ranked
from fedml_dapper.randomness.seeding import Stream, numpy_generator


def dealt_plan(problem: Problem, server: ServerState, client_id: int, share: float) -> PruningPlan:
    """Channels of ``client_id`` in the coming round: the global model's most important ones, and others in turn for a
    ``share`` of its width (:func:`deal`); the whole model where nothing is cut."""
    widths = [problem.widths(profile.ratio) for profile in server.profiles]
    if not widths[client_id]:
        return DENSE
    weights = problem.whole(server.weights)
    rankings = {name: ranked(importance(problem.layout, name, weights)) for name in problem.layout.groups}
    drawn = numpy_generator(problem.seed, Stream.METHOD, server.round)
    return deal(rankings, widths, client_id, share, drawn)


def first_ranked_plan(problem: Problem, server: ServerState, level: int) -> PruningPlan:
    """The global model's most important channels alone, as many as a device of ``level`` can carry."""
    widths = problem.widths(problem.ratios[level - 1])
    return plan_by_importance(problem.layout, problem.whole(server.weights), widths)


def deal(
    rankings: Mapping[str, Tensor], widths: Sequence[Widths], client: int, share: float, generator: np.random.Generator
) -> PruningPlan:
    """Channels of one ``client``, given the ``widths`` that it and all others are sent.

    Of each group's width, a ``share`` is dealt: in a random order of the channels, every client's part begins where
    that of the client before it ends. So a round in which all clients take part, with equal widths, leaves no channel
    out that it has room for; others may. The rest of the width are the first channels of the group's ranking (int64,
    most important first), which clients have in common.
    """
    kept = {}
    for name, ranking in rankings.items():
        order = torch.from_numpy(generator.permutation(len(ranking)))  # drawn for every client alike
        if name not in widths[client]:
            continue
        parts = [round(share * of.get(name, 0)) for of in widths]
        own = widths[client][name]
        core = ranking[: own - parts[client]]
        others = order[torch.isin(order, core, invert=True)]
        start = sum(parts[:client]) % max(1, len(others))
        dealt = others.roll(-start)[: parts[client]]
        kept[name] = torch.cat([core, dealt]).sort().values
    return PruningPlan(kept)
