"""Aggregations: what takes in a round's uploads and makes one model of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from fedml_dapper.errors import DapperError
from fedml_dapper.methods.contract.messages import Upload
from fedml_dapper.methods.contract.problem import Problem
from fedml_dapper.methods.contract.state import ServerState
from fedml_dapper.pruning import (
    ClippedMean,
    FixedPointMean,
    PartialSum,
    PrivateMean,
    PruningPlan,
    RecoveringMean,
    Recovery,
    RobustMean,
    ScreenedMean,
    Tensors,
)

ServerUpdate = Callable[[ServerState, Tensors], object]
"""A step of the server, given its state and the mean of a round's uploads; it returns None."""
_HOLDING = RecoveringMean | ClippedMean | PrivateMean
"""Means that can let uploads wait; the others keep all of them, or none."""


class Aggregation(Protocol):
    """One round's aggregation. Uploads arrive in ascending client id; robust means keep them until the end."""

    def add(self, upload: Upload) -> None:
        """Fold one upload in; raises ``ProtocolError``, with nothing changed, if it does not fit."""

    def close(self) -> None:
        """Write the new global model, and what the method remembers, into the server's state."""


@runtime_checkable
class MergingAggregation(Aggregation, Protocol):
    """An aggregation that also takes sums of uploads, such as an edge makes of its clients'."""

    def merge(self, partial: PartialSum, plans: Iterable[PruningPlan]) -> None:
        """Fold in a sum of uploads, whose ``plans`` say what each of them held.

        They are made as they are asked for, since a plan can take as long as ranking a network's channels.

        Raises ``ProtocolError``, with nothing changed, if the sum does not fit.
        """


@runtime_checkable
class HoldingAggregation(Aggregation, Protocol):
    """An aggregation that folds several uploads in one pass, which takes less time than one after another."""

    def hold(self) -> None:
        """Let uploads that are added from now on wait for :meth:`fold` or :meth:`close`."""

    def fold(self) -> None:
        """Fold in the uploads that wait."""


class RecoverAndAverage:
    """Mean of slim or full models by kept index, weighted by samples, or uniformly.

    What ``dapper_args.defence.aggregation`` or ``dapper_args.privacy`` ask for takes the place of the mean.
    ``recovery`` says what stands in for coordinates that a client does not hold. ``update`` writes the new global
    model, given the server and the mean (:meth:`Method.server_update`); without one the mean is the new model.
    """

    def __init__(
        self, server: ServerState, problem: Problem, recovery: Recovery = "global",
        update: ServerUpdate | None = None,
    ) -> None:  # fmt: skip
        self._server = server
        self._layout = problem.layout
        self._share_of = problem.noise_share
        self._uniform = problem.uniform_weights
        self._update = update
        sent = {name: tensor for name, tensor in server.weights.items() if name not in problem.personal_tensors}
        self._mean = _mean_of_round(sent, problem, recovery, server.round + 1)
        self._added: list[int] = []

    def add(self, upload: Upload) -> None:
        weight = 1 if self._uniform else upload.num_samples
        if isinstance(self._mean, FixedPointMean):
            share = self._share_of(upload.round, upload.client_id)
            self._mean.add(upload.weights, upload.plan, weight, upload.unsliced, share)
        else:
            self._mean.add(upload.weights, upload.plan, weight, upload.unsliced)
        self._added.append(upload.client_id)

    def hold(self) -> None:
        if isinstance(self._mean, _HOLDING):
            self._mean.hold()

    def fold(self) -> None:
        if isinstance(self._mean, _HOLDING):
            self._mean.fold()

    def partial(self) -> PartialSum:
        """The sum of what was added so far, for another aggregation's :meth:`merge`."""
        return self._plain_mean.partial()

    def merge(self, partial: PartialSum, plans: Iterable[PruningPlan]) -> None:
        del plans  # the sum says itself how much of each coordinate it holds
        self._plain_mean.merge(partial)

    @property
    def _plain_mean(self) -> RecoveringMean | PrivateMean | FixedPointMean:
        assert isinstance(self._mean, RecoveringMean | PrivateMean | FixedPointMean), "Method.takes_edges sees to that"
        return self._mean

    def close(self) -> None:
        mean = {**self._server.weights, **self._mean.result()}
        if isinstance(self._mean, ScreenedMean):
            self._server.verdicts = dict(zip(self._added, self._mean.verdicts, strict=True))
            if not any(verdict.counted for verdict in self._mean.verdicts):
                return  # not even momentum moves the model where no upload counts
        if self._update is None:
            self._server.weights = mean
        else:
            _take_step(self._update, self._server, mean)


def _take_step(update: ServerUpdate, server: ServerState, mean: Tensors) -> None:
    """Let ``update`` write the new global model; raise :class:`DapperError` for one that is none."""
    name = getattr(update, "__qualname__", "server_update")
    before = {entry: tensor.shape for entry, tensor in server.weights.items()}
    if update(server, mean) is not None:
        raise DapperError(f"{name} returns something, which nobody reads; write the new model into server.weights")
    after = {entry: tensor.shape for entry, tensor in server.weights.items()}
    if wrong := sorted(entry for entry in before.keys() | after.keys() if before.get(entry) != after.get(entry)):
        raise DapperError(
            f"{name} leaves a global model in which {len(wrong)} entries are missing, new or of another shape, such as"
            f" `{wrong[0]}`; server.weights has to hold every entry of `mean`, in its shape"
        )


def _mean_of_round(
    previous: Tensors, problem: Problem, recovery: Recovery, round_: int
) -> UploadsMean | PrivateMean | FixedPointMean:
    privacy = problem.privacy
    secure = problem.secure_sums
    if secure is not None:
        return FixedPointMean(previous, problem.layout, recovery, secure.code, secure.rules.min_holders)
    if privacy is None or privacy.where == "client":
        return mean_of_uploads(previous, problem, recovery)
    noise = privacy.noise(problem.seed, round_)
    return PrivateMean(previous, problem.layout, recovery, privacy.clip, privacy.std, noise)


UploadsMean = RecoveringMean | ScreenedMean | ClippedMean | RobustMean
"""The mean of uploads, or a robust statistic in its place."""


def mean_of_uploads(previous: Tensors, problem: Problem, recovery: Recovery) -> UploadsMean:
    """An empty mean to fold uploads into one by one, or what ``dapper_args.defence`` puts in its place."""
    layout = problem.layout
    defence = problem.defence
    match defence.aggregation:
        case "mean":
            return RecoveringMean(previous, layout, recovery)
        case "screened_mean":
            return ScreenedMean(previous, layout, recovery, defence.least_agreement, defence.most_length)
        case "norm_clipping":
            return ClippedMean(previous, layout, recovery, defence.clip_change)
        case "trimmed_mean":
            return RobustMean(previous, layout, recovery, defence.trimmed_share, defence.min_holders)
        case "median":
            return RobustMean(previous, layout, recovery, None, defence.min_holders)
