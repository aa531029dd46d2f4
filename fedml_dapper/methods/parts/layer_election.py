"""Election of a layer by FedCMD's clients (Eq. 5-6): scores of layers, votes, winners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from fedml_dapper.errors import ProtocolError
from fedml_dapper.methods.contract import Problem, RecoverAndAverage, ServerState, Upload, Value
from fedml_dapper.methods.parts.activations import Activation
from fedml_dapper.methods.parts.wasserstein import Moments, wasserstein
from fedml_dapper.pruning import Tensors

_IMAGES, _LABELS, _LOGITS = "/images", "/labels", "/logits"  # no layer is called so


class LayerMetric:
    """Scores of consecutive ``layers``, the model's last one at the end, from their activations, batch by batch."""

    def __init__(self, layers: Sequence[str], device: torch.device | str) -> None:
        self._layers = layers
        self._moments = {name: Moments(1, device) for name in (_IMAGES, _LABELS, *layers, _LOGITS)}

    def add(self, images: Tensor, labels: Tensor, seen: Mapping[str, Activation]) -> None:
        """Take in one batch: what went into the model, what should come out, what its layers made of it."""
        values = {_IMAGES: images, _LABELS: labels, _LOGITS: seen[self._layers[-1]].output}
        values |= {layer: seen[layer].input for layer in self._layers}
        for name, tensor in values.items():
            self._moments[name].add(tensor.reshape(-1, 1))

    def scores(self) -> list[float]:
        """Score s_l of every layer; each value of a tensor counts alike and all are scaled to [0, 1] by their range."""
        gaussians = {name: moments.scaled() for name, moments in self._moments.items()}
        outputs = [gaussians[name] for name in (*self._layers, _LOGITS)]  # a layer's output is the next one's input
        return shift_changes(gaussians[_IMAGES], gaussians[_LABELS], outputs)


def shift_changes(images: Tensor, labels: Tensor, outputs: Sequence[Tensor]) -> list[float]:
    """Scores s_l = |f_l - f_(l-1)|, f_l = W2(o_l, y) - W2(o_l, x), for all but the first of ``outputs``, its reference.

    Images, labels and outputs are Gaussians of shape (2, 1).
    """
    shifts = [float(wasserstein(output, labels) - wasserstein(output, images)) for output in outputs]
    return [abs(after - before) for before, after in pairwise(shifts)]


def favourite(scores: Sequence[float]) -> tuple[int, bool]:
    """The index of the smallest score, of equals the lowest, and whether there were equals."""
    best = min(scores)
    return scores.index(best), scores.count(best) > 1


def winner(votes: Sequence[int]) -> int:
    """The layer with the most votes in a round, of equals the lowest; ``votes`` by layer."""
    return votes.index(max(votes))


def elected(rounds: Sequence[Sequence[int]]) -> int:
    """The layer that won most rounds, of equals that with most votes in all, then the lowest."""
    winners = [winner(votes) for votes in rounds]
    totals = [sum(column) for column in zip(*rounds, strict=True)]
    return max(range(len(totals)), key=lambda layer: (winners.count(layer), totals[layer], -layer))


def voted_in(server: ServerState, round_: int) -> bool:
    """Whether ``round_`` is the last round in which there was a vote."""
    return server.memory.values.get("voted_in") == round_


def votes_so_far(server: ServerState) -> list[list[int]]:
    """Votes by layer, of every round in which there was a vote."""
    return cast("list[list[int]]", server.memory.values.get("votes", []))


class AverageAndElect(RecoverAndAverage):
    """Aggregation of phase 1: FedAvg, and the round's votes by candidate, appended to the server's memory.

    A round that is void has no vote.
    """

    def __init__(self, server: ServerState, problem: Problem, num_candidates: int) -> None:
        super().__init__(server, problem)
        self._votes = [0] * num_candidates
        self._tied = 0

    def add(self, upload: Upload) -> None:
        check_vote(upload.extras, len(self._votes))
        super().add(upload)
        self._votes[int(upload.extras["vote"])] += 1
        self._tied += int(upload.extras["tied"])

    def close(self) -> None:
        super().close()
        self._server.memory.values["votes"] = cast("list[Value]", [*votes_so_far(self._server), self._votes])
        self._server.memory.values["tied_votes"] = self._tied
        self._server.memory.values["voted_in"] = self._server.round + 1


def check_vote(extras: Tensors, num_candidates: int) -> None:
    """Check that ``extras`` are a vote for a candidate and whether it was a tie; raises :class:`ProtocolError`."""
    if extras.keys() != {"vote", "tied"} or any(t.dtype != torch.int64 or t.dim() for t in extras.values()):
        raise ProtocolError(f"upload should hold two int64 numbers, vote and tied, found {sorted(extras)}")
    if not 0 <= int(extras["vote"]) < num_candidates or int(extras["tied"]) not in (0, 1):
        raise ProtocolError(f"upload's vote is {int(extras['vote'])}, of {num_candidates} layers")
