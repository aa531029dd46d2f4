"""FedML's dashboard (MLOps), for runs that its platform started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import fedml.core.mlops as core_mlops
from fedml import mlops
from fedml.core.mlops import MLOpsStore

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import RoundRecord, RunObserver, RunRecord
from fedml_dapper.platform.tracking.metrics import metrics_of

TRAINING = "train"
AGGREGATION = "server.agg_and_eval"
"""FedML's own names of a round's phases."""


class MlopsSink(RunObserver):
    """Metrics by ``fedml.mlops.log``, the phases of a round as events, and the progress in rounds.

    FedML's own managers would send events and rounds; ours take their place, so this sink does it for every runner.
    Rounds count from 0, as FedML's do.
    """

    def __init__(self, settings: Settings) -> None:
        self._rounds = settings.train_args.comm_round
        self._round_index = -1
        self._still_training = 0
        self._phase: str | None = None

    def run_started(self, record: RunRecord) -> None:
        with _fedmls_mlops():
            mlops.log_round_info(self._rounds, -1)  # FedML's sign for "about to start"; connects
            if MLOpsStore.mlops_metrics is None:
                raise ConfigError("FedML's platform gave no addresses; see `fedml login`, or set using_mlops: false")

    def round_started(self, round_: int, client_ids: Sequence[int]) -> None:
        self._round_index = round_ - 1
        self._still_training = len(client_ids)
        self._enter(TRAINING)

    def client_stepped(self, client_id: int, done: int, total: int) -> None:
        if done == total:
            self._still_training -= 1
            if self._still_training == 0:
                self._enter(AGGREGATION)

    def round_finished(self, record: RoundRecord) -> None:
        self._enter(None)
        with _fedmls_mlops():
            mlops.log_round_info(self._rounds, self._round_index)
            mlops.log({"round": record.round, **metrics_of(record)}, step=record.round)

    def _enter(self, phase: str | None) -> None:
        with _fedmls_mlops():
            if self._phase is not None:
                mlops.event(self._phase, event_started=False, event_value=str(self._round_index))
            if phase is not None:
                mlops.event(phase, event_started=True, event_value=str(self._round_index))
        self._phase = phase


@contextmanager
def _fedmls_mlops() -> Iterator[None]:
    """Around every call of ``fedml.mlops``.

    ``mlops.log`` runs all of ``fedml.init`` again, each time: it asks the platform anew, seeds the global random
    streams, reads the command line's file unchecked and takes what it says for this run. So it is given the arguments
    that are there. And a failure switches MLOps off for FedML too: its managers make the same calls unguarded, and a
    failed ``mlops.log`` keeps a lock for which the next one waits for ever.
    """
    try:
        with patch.object(core_mlops, "get_fedml_args", lambda: MLOpsStore.mlops_args):
            yield
    except Exception:
        MLOpsStore.mlops_args.using_mlops = False
        raise
